"""Gaps in a replica's log: which damage counts, what is noted, and the queues after a cut at a gap."""

from __future__ import annotations

import random
import shutil
import time
from itertools import pairwise
from typing import Any

import pytest
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.store import BrokerRole, Message, MessageStore
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.replication import log_gaps
from penstock.store.replication.log_gaps import (
    accept_all_gaps,
    accept_gaps,
    begin_mending,
    damage_beside,
    first_gap,
    lacks_messages,
    limit_mending,
    log_damage,
    without,
)
from penstock.store.replication.tail_cut import CutPlan, prepare_cut

COUNT = 100
SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE}


def ranges(*pairs: tuple[int, int]) -> list[DamagedRange]:
    return [DamagedRange(begin, end - begin, "X") for begin, end in pairs]


def pairs_of(damage: list[DamagedRange]) -> list[tuple[int, int]]:
    return [(each.physical_offset, each.end) for each in damage]


def fill(store: MessageStore) -> None:
    """Messages of two topics; those of `rare` end soon after the beginning."""
    for number in range(COUNT):
        assert store.put(Message("rare" if number < 40 and number % 2 else "busy", b"%03d" % number + b"x" * 500)).ok


def numbers(home: StoreHome, store: MessageStore) -> list[int]:
    return sorted(int(body[:3]) for topic in ("busy", "rare") for body in home.bodies(store, topic))


@pytest.fixture
def master(home: StoreHome) -> StoreHome:
    """A store of epoch 1, closed, and marked as crashed."""
    with home.open() as store:
        store.roles.begin_epoch()
        fill(store)
    home.mark_crashed()
    return home


@pytest.fixture
def replica(master: StoreHome) -> StoreHome:
    """A copy of it that lost a page: the last messages of `rare` were in it."""
    copy = master.copy_to(master.path.with_name("replica"))
    copy.write(copy.log_files()[0], 5 * 4096, bytes(4096))
    return copy


def test_ranges_without_others_are_what_lies_in_none_of_them() -> None:
    assert without(ranges((10, 20)), []) == ranges((10, 20))
    assert without(ranges((10, 20)), ranges((0, 12), (14, 15), (19, 30))) == ranges((12, 14), (15, 19))
    assert without(ranges((10, 20)), ranges((10, 15), (15, 20))) == []


def test_the_first_gap_is_the_range_of_which_the_master_has_a_part() -> None:
    own = ranges((10, 20), (30, 40), (50, 60))
    assert first_gap(own, [], 0, 100) == own[0]
    assert first_gap(own, ranges((10, 20)), 0, 100) == own[1]
    assert first_gap(own, ranges((10, 20), (30, 35)), 0, 100) == own[1], "a part is enough"
    assert first_gap(own, own, 0, 100) is None
    assert first_gap(own, [], 20, 100) == own[1], "the master has deleted what is before 20"
    assert first_gap(own, [], 20, 30) is None, "the logs part at 30"


def test_a_master_looks_into_its_own_log_where_a_slave_has_damage(master: StoreHome, replica: StoreHome) -> None:
    with replica.open(**SLAVE) as store:
        damage = log_damage(store)
    with master.open() as store:
        assert damage_beside(store, damage) == []
        assert damage_beside(store, ranges((0, 1 << 40))) == [], "no further than its own end"
        master.write(master.log_files()[0], 5 * 4096, bytes(4096))  # it does not know that yet
        assert pairs_of(damage_beside(store, damage)) == pairs_of(damage)


def test_damage_is_a_gap_until_it_is_accepted_or_the_replica_is_elected(replica: StoreHome) -> None:
    with replica.open(**SLAVE) as store:
        assert lacks_messages(store)
        accept_gaps(store, log_damage(store))
        assert not lacks_messages(store)
    with replica.open(**SLAVE) as store:
        assert not lacks_messages(store), "it is noted"
        accept_gaps(store, [])
        assert lacks_messages(store)
        accept_all_gaps(store)
        assert not lacks_messages(store)
        store.layout.gaps.write_bytes(b"garbage")
        assert lacks_messages(store), "without the note all damage counts"


@pytest.mark.parametrize("loses_queues", [False, True], ids=["with its queues", "without its queues"])
def test_a_log_that_was_cut_at_a_gap_lacks_messages_until_it_is_as_long_as_before(
    master: StoreHome, replica: StoreHome, loses_queues: bool
) -> None:
    """And no queue offset stays reserved for what the master sends again."""
    if loses_queues:
        shutil.rmtree(replica.path / "consumequeue")
    with replica.open(**SLAVE) as store:
        (gap,), end = log_damage(store), store.watermarks.appended
        assert numbers(replica, store) != list(range(COUNT))
        prepare_cut(store, CutPlan(gap.physical_offset, "10.0.0.8:10912", 1, "a gap", end))
    with master.open() as source, replica.open(**SLAVE) as store:
        assert store.watermarks.appended == gap.physical_offset
        assert log_damage(store) == []
        assert lacks_messages(store)
        accept_gaps(store, [])
        assert lacks_messages(store), "it has joined its master, and copied nothing yet"
        data = source.log.read(gap.physical_offset, end - gap.physical_offset)
        assert data is not None
        assert store.replica_log is not None
        store.replica_log.append(gap.physical_offset, data)
        assert not lacks_messages(store)
        store.catch_up()
        assert numbers(replica, store) == list(range(COUNT))
    with replica.open(**SLAVE) as store:
        assert not lacks_messages(store)
        assert numbers(replica, store) == list(range(COUNT))


def test_units_for_lost_messages_at_the_end_of_a_slaves_queue_come_back_without_a_cut(replica: StoreHome) -> None:
    """Nobody sends those messages again: their queue offsets stay reserved."""
    with replica.open(**SLAVE) as store:
        ends = [store.max_offset(topic, 0) for topic in ("busy", "rare")]
    for _ in range(2):
        replica.mark_crashed()
        with replica.open(**SLAVE) as store:
            assert [store.max_offset(topic, 0) for topic in ("busy", "rare")] == ends


def test_the_ranges_of_a_long_handshake_are_compared_in_one_pass() -> None:
    """With a search through all others for each range this takes minutes."""
    own = ranges(*((4 * number, 4 * number + 2) for number in range(20_000)))
    others = ranges(*((4 * number, 4 * number + 1) for number in range(20_000)))
    began = time.process_time()
    assert without(own, others) == ranges(*((4 * number + 1, 4 * number + 2) for number in range(20_000)))
    assert time.process_time() - began < 10


@pytest.mark.parametrize("seed", range(50))
def test_ranges_without_others_are_as_if_computed_byte_by_byte(seed: int) -> None:
    chance = random.Random(seed)

    def some() -> list[DamagedRange]:
        begins = [chance.randrange(60) for _ in range(chance.randrange(8))]
        return ranges(*((begin, begin + chance.randrange(12)) for begin in begins))

    def covered(damage: list[DamagedRange]) -> set[int]:
        return {byte for each in damage for byte in range(each.physical_offset, each.end)}

    own, others = some(), some()
    left = without(own, others)
    assert covered(left) == covered(own) - covered(others)
    assert all(each.size for each in left)
    assert all(before.end <= after.physical_offset for before, after in pairwise(left))


def test_a_master_looks_no_further_than_the_first_message_of_what_a_slave_lacks(
    master: StoreHome, replica: StoreHome
) -> None:
    """A slave waits for the answer, and may lack a whole file."""
    with replica.open(**SLAVE) as store:
        (gap,), end = log_damage(store), store.watermarks.appended
    with master.open() as store:
        master.write(master.log_files()[0], 5 * 4096, bytes(4096))  # it does not know that yet
        assert damage_beside(store, ranges((0, end))) == [], "it has the first message, so there is a gap"
        asked = ranges((gap.physical_offset, end))
        assert pairs_of(damage_beside(store, asked)) == [(gap.physical_offset, gap.end)]


def test_a_master_reads_a_limited_part_of_its_log_for_a_slave(
    master: StoreHome, replica: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica.open(**SLAVE) as store:
        (gap,) = log_damage(store)
    with master.open() as store:
        master.write(master.log_files()[0], 5 * 4096, bytes(4096))
        asked = ranges((gap.physical_offset, gap.physical_offset + 500), (gap.physical_offset + 600, gap.end))
        monkeypatch.setattr(log_gaps, "_MAX_CHECKED", 700)
        found = pairs_of(damage_beside(store, asked))
        begin = gap.physical_offset
        assert found == [(begin, begin + 500), (begin + 600, begin + 800)], "the rest counts as whole"
        answers = iter([True, False])
        assert pairs_of(damage_beside(store, asked, lambda: next(answers))) == [(begin, begin + 500)]


def test_what_a_master_knows_to_be_damaged_is_not_read_again(
    replica: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica.open() as store:
        (gap,) = log_damage(store)
        monkeypatch.setattr(log_gaps, "next_begin", lambda *_: pytest.fail("it reads its log"))
        assert damage_beside(store, [gap]) == [gap]


def test_a_log_that_was_cut_need_not_reach_further_than_its_new_master(replica: StoreHome) -> None:
    """The master was elected: what lies behind its end was acknowledged by nobody."""
    with replica.open(**SLAVE) as store:
        end = store.watermarks.appended
        accept_gaps(store, log_damage(store))
        begin_mending(store, end, end + 1000)
        assert lacks_messages(store)
        limit_mending(store, end + 500)
        assert lacks_messages(store), "the master has more"
        limit_mending(store, end + 900)
        limit_mending(store, end)
        assert not lacks_messages(store)


def test_a_store_that_was_moved_aside_lacks_messages_until_it_has_them_again(replica: StoreHome) -> None:
    with replica.open(**SLAVE) as store:
        end = store.watermarks.appended
        accept_gaps(store, log_damage(store))
        prepare_cut(store, CutPlan(None, "10.0.0.8:10912", 1, "a gap", end))
        assert lacks_messages(store)
    with replica.open(**SLAVE) as store:
        assert not store.log.queue.files
        assert not store.report.damage
        assert lacks_messages(store), "an empty replica is not whole"


def test_a_cut_without_room_leaves_the_note_of_the_gaps_as_it_was(replica: StoreHome) -> None:
    with replica.open(quarantine_max_bytes=1000, **SLAVE) as store:
        (gap,) = log_damage(store)
        accept_gaps(store, [gap])
        with pytest.raises(StoreFailed, match="quarantineMaxBytes"):
            prepare_cut(store, CutPlan(gap.physical_offset, "10.0.0.8:10912", 1, "a gap", gap.end))
        assert not lacks_messages(store)
