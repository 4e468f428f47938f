"""Queues, extension files, index and notes follow the log's beginning, and stay right over a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.stores import FILE_SIZE, PER_FILE, AgedStore, StoreHome

from penstock.format.queue_unit import UNIT_SIZE, pack_unit
from penstock.store import DamagedRange, GetStatus, Message
from penstock.store.damage_and_quarantine import read_damage, write_damage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def aged(home: StoreHome) -> AgedStore:
    """Seven log files of four messages; queue files have 10 units, index files 10 keys."""
    made = AgedStore(home)
    made.fill(7)
    return made


def names(paths: list[Path]) -> list[int]:
    return [int(path.name) // UNIT_SIZE for path in paths]


def test_queue_files_go_whose_last_unit_points_before_the_log_and_the_minimum_is_corrected(aged: AgedStore) -> None:
    assert names(aged.home.queue_files("T")) == [0, 10, 20]
    aged.age(80, files=2)
    aged.run_on_request()
    assert aged.store.min_offset("T", 0) == 8
    assert names(aged.home.queue_files("T")) == [0, 10, 20], "the first file still has units of messages"
    aged.age(80, files=3)
    aged.run_on_request()
    assert aged.store.min_offset("T", 0) == 20
    assert names(aged.home.queue_files("T")) == [20]
    assert aged.store.get("T", 0, 5).status is GetStatus.OFFSET_TOO_SMALL
    assert aged.store.get("T", 0, 5).next_begin_offset == 20
    assert aged.numbers() == list(range(20, 28))


def test_the_last_queue_file_stays_and_a_queue_without_messages_has_its_maximum_for_minimum(home: StoreHome) -> None:
    """RocketMQ keeps minimum 0, and answers MESSAGE_WAS_REMOVING for ever."""
    aged = AgedStore(home)
    aged.fill(3, topic="gone")
    aged.fill(3, topic="T")
    aged.age(80, files=4)
    aged.run_on_request()
    for _ in range(2):
        assert names(home.queue_files("gone")) == [10]
        assert (aged.store.min_offset("gone", 0), aged.store.max_offset("gone", 0)) == (12, 12)
        assert aged.store.get("gone", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
        assert aged.store.get("gone", 0, 12).status is GetStatus.OFFSET_OVERFLOW_ONE
        aged.store.close()
        aged.open()
    assert aged.store.put(Message("gone", b"000012")).queue_offset == 12
    assert aged.numbers("gone") == [12]


@pytest.mark.parametrize("crashed", [False, True])
def test_minimum_offsets_are_the_same_after_a_restart(aged: AgedStore, crashed: bool) -> None:
    aged.age(80, files=4)
    aged.run_on_request()
    before = aged.home.state(aged.store)
    aged.store.close()
    if crashed:
        aged.home.mark_crashed()
    aged.open()
    assert aged.home.state(aged.store) == before
    assert aged.store.min_offset("T", 0) == 16


def test_nothing_follows_while_the_log_stays_where_it_is(aged: AgedStore) -> None:
    aged.age(80, files=6)
    aged.run_on_request()
    queue = aged.store.queues.find("T", 0)
    queue.min_offset = 3
    aged.run_on_request()
    assert queue.min_offset == 3, "as in RocketMQ, checked only when the log's minimum grew"


def test_index_files_go_whose_records_all_lie_before_the_log(aged: AgedStore) -> None:
    assert len(aged.home.index_files()) == 3
    aged.age(80, files=3)
    aged.run_on_request()
    assert len(aged.home.index_files()) == 2, "the second has keys of messages 10 to 19, and the log begins with 12"
    assert aged.found(range(28)) == list(range(12, 28))
    aged.age(80)
    aged.run_on_request()
    assert len(aged.home.index_files()) == 1
    assert aged.found(range(28)) == list(range(24, 28))
    aged.fill(2)
    assert aged.found(range(36)) == list(range(24, 36))


def test_the_last_index_file_stays_although_the_log_is_past_it(home: StoreHome) -> None:
    aged = AgedStore(home, max_index_num=1000)
    aged.fill(1)
    for number in range(4 * PER_FILE):
        assert aged.store.put(Message("keyless", b"%06d" % number + bytes(900))).ok
    aged.store.flush()
    aged.store.catch_up()
    aged.age(80)
    assert len(aged.run_on_request()) == 4
    assert len(home.index_files()) == 1
    assert aged.store.query("T", "k0") == []


def test_an_empty_index_file_does_not_make_the_one_before_it_go(aged: AgedStore) -> None:
    index = aged.store.index
    before = index.files
    index.files = (before[1], before[2])
    header = before[2].header
    before[2].set_header(type(header)())
    assert before[2].empty
    assert not index.expired(1 << 40)
    before[2].set_header(header)
    index.files = before
    assert index.expired(1 << 40)


def test_extension_files_go_that_no_unit_points_into(aged: AgedStore) -> None:
    folder = aged.home.path / "consumequeue_ext" / "T" / "0"
    folder.mkdir(parents=True)
    for start in (0, 1000, 2000):
        (folder / f"{start:020d}").write_bytes(bytes(1000))
    for number in range(28):  # message n has its unit in the extension files at 100 * n
        position = number % 10 * UNIT_SIZE
        path = aged.home.queue_files("T")[number // 10]
        physical, size, _ = aged.store.queues.find("T", 0).unit(number)
        aged.home.write(path, position, pack_unit(physical, size, 100 * number - 2**63))
    aged.age(80, files=2)
    aged.run_on_request()
    assert sorted(int(path.name) for path in folder.iterdir()) == [0, 1000, 2000], "message 8 is still there"
    aged.age(80, files=1)
    aged.run_on_request()
    assert aged.store.min_offset("T", 0) == 12
    assert sorted(int(path.name) for path in folder.iterdir()) == [1000, 2000]
    aged.age(80, files=3)
    aged.run_on_request()
    assert sorted(int(path.name) for path in folder.iterdir()) == [2000]


def test_damage_that_lies_before_the_log_is_forgotten(aged: AgedStore) -> None:
    path = aged.home.path / "penstock" / "damaged.json"
    known = [DamagedRange(start, 100, "BAD_CRC") for start in (100, 2 * FILE_SIZE - 100, 2 * FILE_SIZE, 20_000)]
    write_damage(aged.disk, path, known)
    aged.age(80, files=2)
    aged.run_on_request()
    assert read_damage(aged.disk, path) == known[2:]


def test_units_of_a_log_file_that_cannot_go_yet_stay_on_disk(aged: AgedStore) -> None:
    """A crash would bring the file back, and its records must then have their units."""
    first = aged.store.log.queue.files[0]
    assert first.acquire()
    aged.age(80, files=3)
    assert aged.run_on_request() == []
    assert aged.store.min_offset("T", 0) == PER_FILE, "readers see the new minimum already"
    assert names(aged.home.queue_files("T")) == [0, 10, 20]
    copy = aged.home.copy_to(aged.home.path.with_name("copy"))
    copy.mark_crashed()
    again = AgedStore(copy)
    assert again.numbers() == list(range(28))
    copy.close_all()
    first.release()
    assert len(aged.run_on_request()) == 3
    assert names(aged.home.queue_files("T")) == [10, 20]
