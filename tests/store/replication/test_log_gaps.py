"""Gaps in a replica's log: which damage counts, what is noted, and the queues after a cut at a gap."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from support.stores import StoreHome

from penstock.store import BrokerRole, Message, MessageStore
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.replication.log_gaps import (
    accept_all_gaps,
    accept_gaps,
    begin_mending,
    damage_beside,
    first_gap,
    lacks_messages,
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
        begin_mending(store, gap.physical_offset, end)
        prepare_cut(store, CutPlan(gap.physical_offset, "10.0.0.8:10912", 1, "a gap"))
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
