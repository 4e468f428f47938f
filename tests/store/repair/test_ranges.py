"""Damaged ranges of the log are saved and covered by records that every reader skips."""

from __future__ import annotations

import msgspec
import pytest
from support.damage import SMALL_LOG_SIZE, SMALL_SETTINGS, DamagedHome

from penstock.errors import StoreInUse
from penstock.format.record import Record, decode_record, encode_record
from penstock.format.scan import ScanBatch, scan
from penstock.format.sys_flag import TRANSACTION_ROLLBACK
from penstock.store import Message
from penstock.store.audit import audit
from penstock.store.repair import LostMessages

pytestmark = pytest.mark.usefixtures("kernels_name")


def kept_bytes(home: DamagedHome, paths: list[str]) -> bytes:
    return b"".join((home.path / path).read_bytes() for path in paths)


def test_one_damaged_record_is_covered_exactly(home: DamagedHome) -> None:
    home.fill()
    broken = home.record("U", 1, 30)
    home.damage(broken)
    before = home.read_log(broken.physical_offset, broken.size)
    report = home.repair()
    (found,) = report.ranges
    assert (found.physical_offset, found.size, found.reason) == (broken.physical_offset, broken.size, "BAD_CRC")
    assert found.lost == [LostMessages("U", 1, 30, 30)]
    assert kept_bytes(home, found.saved) == before
    assert not report.problems
    home.assert_walkable()
    home.assert_whole(broken)


def test_the_record_over_damage_says_what_lay_there_and_is_in_no_queue(home: DamagedHome) -> None:
    home.fill(40, b"a longer body, so that the text fits. " * 10)
    broken = home.record("T", 0, 7)
    home.damage(broken)
    (found,) = home.repair().ranges
    record = decode_record(home.read_log(broken.physical_offset, broken.size))
    assert record.topic == "PENSTOCK_DAMAGED"
    assert record.sys_flag == TRANSACTION_ROLLBACK
    assert (record.queue_id, record.queue_offset) == (0, 0)
    assert record.physical_offset == broken.physical_offset
    before = max(each for each in home.records if each < broken.physical_offset)
    assert record.store_timestamp == record.born_timestamp == home.records[before].store_timestamp
    assert record.body.startswith(b"PENSTOCK_DAMAGED\nrange: %d bytes at " % broken.size)
    assert f"saved: {found.saved[0]}\n".encode() in record.body
    with home.open_small() as store:
        assert "PENSTOCK_DAMAGED" not in store.topics()
        assert store.queues.find("T", 0).unit(7) == (found.physical_offset, found.size, 0)  # type: ignore[union-attr]


def test_many_ranges_in_many_files_are_covered_each_by_itself(home: DamagedHome) -> None:
    home.fill()
    broken = [home.record("T", 0, number) for number in range(3, 57, 6)]
    home.damage(*broken)
    report = home.repair()
    assert [each.physical_offset for each in report.ranges] == [each.physical_offset for each in broken]
    assert report.lost_messages == len(broken)
    home.assert_walkable()
    home.assert_whole(*broken)


def test_records_next_to_each_other_are_one_range_and_their_units_lead_to_its_beginning(home: DamagedHome) -> None:
    home.fill()
    broken = [home.record(topic, queue_id, 20) for topic, queue_id in (("T", 0), ("U", 0), ("U", 1))]
    home.damage(*broken)
    (found,) = home.repair().ranges
    assert found.size == sum(each.size for each in broken)
    assert len(found.lost) == 3
    with home.open_small() as store:
        for each in broken:
            queue = store.queues.find(each.topic, each.queue_id)
            assert queue is not None
            assert queue.unit(20) == (found.physical_offset, found.size, 0)
    home.assert_whole(*broken)


def first_of(home: DamagedHome, file: int) -> Record:
    return home.records[min(each for each in home.records if each >= file * SMALL_LOG_SIZE)]


def last_of(home: DamagedHome, file: int) -> Record:
    return home.records[max(each for each in home.records if each < (file + 1) * SMALL_LOG_SIZE)]


def test_damage_at_the_start_of_the_log_and_of_a_file(home: DamagedHome) -> None:
    home.fill()
    broken = [first_of(home, 0), first_of(home, 2)]
    home.damage(*broken)
    assert [each.physical_offset for each in home.repair().ranges] == [0, 2 * SMALL_LOG_SIZE]
    home.assert_walkable()
    home.assert_whole(*broken)


def test_a_range_that_reaches_its_files_end_gets_a_record_and_a_filler(home: DamagedHome) -> None:
    home.fill()
    broken = last_of(home, 1)
    home.write_log(broken.physical_offset, b"\xff" * (2 * SMALL_LOG_SIZE - broken.physical_offset))
    (found,) = home.repair().ranges
    assert found.end == 2 * SMALL_LOG_SIZE
    home.assert_walkable()
    home.assert_whole(broken)


@pytest.mark.parametrize("left", [8, 9, 50, 92, 99, 100, 101, 200])
def test_the_filler_of_a_file_may_be_all_that_is_damaged(home: DamagedHome, left: int) -> None:
    """Whatever its size: the log continues in the next file."""
    with home.open_small() as store:
        first = store.put(Message("T", b"x", keys=("k",)))
        store.put(Message("T", b"x" * (SMALL_LOG_SIZE - left - 2 * first.size + 1), keys=("k",)))
        store.put(Message("T", b"x" * 200, keys=("k",)))
        home.remember(store)
    assert home.read_log(SMALL_LOG_SIZE - left, 8) == left.to_bytes(4, "big") + bytes.fromhex("cbd43194")
    home.write_log(SMALL_LOG_SIZE - left, b"\xff" * 8)
    (found,) = home.repair().ranges
    assert (found.physical_offset, found.size, found.lost) == (SMALL_LOG_SIZE - left, left, [])
    home.assert_walkable()
    home.assert_whole()


@pytest.mark.parametrize("size", range(92, 112))
def test_the_smallest_ranges_take_the_longest_name_that_fits(home: DamagedHome, size: int) -> None:
    with home.open_small() as store:
        for body in (b"before", b"x" * (size - 92), b"after"):
            home.clock.now += 1000
            assert store.put(Message("T", body)).ok
        home.remember(store)
    small = home.record("T", 0, 1)
    assert small.size == size
    home.write_log(small.physical_offset + 4, b"\xff" * 4)
    (found,) = home.repair().ranges
    assert found.size == size
    record = decode_record(home.read_log(small.physical_offset, size))
    assert "PENSTOCK_DAMAGED".startswith(record.topic)
    assert len(record.topic) == min(size - 91, 16)
    assert len(record.body) == max(size - 107, 0)
    assert home.errors() == []
    with home.open_small() as store:
        assert home.bodies(store, "T") == [b"before", b"after"]
        assert store.put(Message("T", b"next")).queue_offset == 3


def test_a_range_longer_than_the_largest_message_takes_several_records(home: DamagedHome) -> None:
    sizes = {"mapped_file_size_commit_log": 64 << 10, "max_message_size": 5000}
    with home.open_small(**sizes) as store:
        for number in range(20):
            assert store.put(Message("T", b"%d" % number * 1000, keys=("k",))).ok
        home.remember(store)
    broken = [each for each in home.records.values() if 3 <= each.queue_offset < 17]
    begin, size = broken[0].physical_offset, sum(each.size for each in broken)
    home.write(home.log_files()[0], begin, b"\xee" * size)
    settings = SMALL_SETTINGS.with_changes(**sizes)
    (found,) = home.repair(settings=settings).ranges
    assert (found.physical_offset, found.size) == (begin, size)
    assert found.lost == [LostMessages("T", 0, 3, 16)]
    (walked, *_) = scan(home.log_files()[0].read_bytes(), 0, 0, 64 << 10, check_crc=True)
    assert isinstance(walked, ScanBatch)
    covering = walked.rows[(walked.rows["physical_offset"] >= begin) & (walked.rows["physical_offset"] < begin + size)]
    assert len(covering) > 3
    assert covering["size"].max() <= 5000
    assert covering["size"].sum() == size
    assert [each.kind for each in audit(home.path, settings).errors] == []
    with home.open_small(**sizes) as store:
        assert [each.queue_offset for each in home.read_queue(store, "T")] == [0, 1, 2, 17, 18, 19]


def test_bytes_too_few_for_a_record_are_left_alone_and_said_so(home: DamagedHome) -> None:
    """No writer leaves such a gap, so its content is unknown; the record after it is not touched."""
    home.fill(20)
    first, second = (home.records[each] for each in sorted(home.records)[5:7])
    shorter = encode_record(msgspec.structs.replace(first, body=first.body[:-5]))
    home.write_log(first.physical_offset, shorter + b"\xee" * 5)
    before = home.read_log(second.physical_offset, second.size)
    report = home.repair()
    (found,) = report.ranges
    assert (found.size, found.saved) == (5, [])
    assert "too few" in found.not_repaired
    assert report.problems
    assert home.read_log(second.physical_offset, second.size) == before
    with home.open_small() as store:
        assert [each.physical_offset for each in store.report.damage] == [found.physical_offset]
        assert second in home.read_queue(store, second.topic, second.queue_id)


def test_a_torn_end_is_left_to_the_start_which_keeps_it_aside(home: DamagedHome) -> None:
    home.fill()
    last = home.records[max(home.records)]
    home.damage(last)
    home.mark_crashed()
    report = home.repair()
    assert report.ranges == []
    assert "truncated" in " ".join(report.start)
    assert not report.problems
    assert home.errors() == []
    with home.open_small() as store:
        assert last not in home.read_queue(store, last.topic, last.queue_id)


def test_a_dry_run_says_the_same_and_changes_nothing(home: DamagedHome) -> None:
    home.fill()
    home.damage(home.record("T", 0, 3), home.record("U", 0, 40))
    home.log_files()[2].unlink()
    before = home.listing()
    said = home.repair(dry_run=True)
    assert home.listing() == before
    done = home.repair()
    assert said.dry_run
    assert not done.dry_run
    assert said.ranges == done.ranges
    assert (said.rebuilt, said.changes, said.problems) == (done.rebuilt, done.changes, done.problems)


def test_a_store_without_damage_is_left_as_it_is(home: DamagedHome) -> None:
    home.fill()
    data = ("commitlog", "consumequeue", "index", "config")
    before = {name: content for name, content in home.listing().items() if name.startswith(data)}
    assert home.repair().found_nothing
    assert {name: content for name, content in home.listing().items() if name.startswith(data)} == before


def test_a_store_in_use_is_not_touched(home: DamagedHome) -> None:
    home.fill()
    with home.open_small():
        for dry_run in (False, True):
            with pytest.raises(StoreInUse, match=r"open in this process|in use"):
                home.repair(dry_run=dry_run)
