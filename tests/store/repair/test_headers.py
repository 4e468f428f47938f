"""A header has no checksum: only queues and neighbours in the log reveal its damage."""

from __future__ import annotations

import struct

import pytest
from support.damage import SMALL_LOG_SIZE, SMALL_SETTINGS, DamagedHome

from penstock.errors import StoreFailed
from penstock.format.record import Record
from penstock.store import Message

QUEUE_ID, QUEUE_OFFSET, SYS_FLAG, STORE_TIME = 12, 20, 36, 56


def topic_at(record: Record) -> int:
    return 88 + len(record.body) + 1


FAULTS = {
    "queue id": lambda record: (QUEUE_ID, struct.pack(">i", 1 - record.queue_id)),
    "a queue id below 0": lambda record: (QUEUE_ID, struct.pack(">i", -(2**31))),
    "queue offset, ahead": lambda record: (QUEUE_OFFSET, struct.pack(">q", record.queue_offset + 1024)),
    "queue offset, of another": lambda record: (QUEUE_OFFSET, struct.pack(">q", record.queue_offset - 4)),
    "queue offset, far ahead": lambda record: (QUEUE_OFFSET, struct.pack(">q", 2**40)),
    "topic, of another": lambda record: (topic_at(record), b"T"),
    "topic, a new one": lambda record: (topic_at(record), b"V"),
    "topic, an illegal one": lambda record: (topic_at(record), b"\xd5"),
    "prepared": lambda record: (SYS_FLAG, struct.pack(">i", 0x4)),
    "rolled back": lambda record: (SYS_FLAG, struct.pack(">i", 0xC)),
}


@pytest.mark.parametrize("number", [0, 30, 59], ids=["first", "middle", "last"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_names_another_place_than_its_unit_is_damaged(home: DamagedHome, fault: str, number: int) -> None:
    home.fill()
    record = home.record("U", 1, number)
    at, data = FAULTS[fault](record)
    home.write_log(record.physical_offset + at, data)
    report = home.repair()
    assert [(each.physical_offset, each.reason) for each in report.ranges] == [(record.physical_offset, "BAD_HEADER")]
    assert report.problems == []
    home.assert_whole(record)


def test_a_record_without_its_unit_is_accepted(home: DamagedHome) -> None:
    """A lost queue is built from the records; a stale unit of another queue does not matter."""
    home.fill()
    for path in home.queue_files("U", 1):
        path.unlink()
    report = home.repair()
    assert report.ranges == []
    assert [each.what for each in report.rebuilt] == ["U queue 1"]
    home.assert_whole()


def test_a_stale_unit_does_not_make_a_record_of_another_queue_damaged(home: DamagedHome) -> None:
    """RocketMQ leaves units after a truncation, which then point to another topic's records."""
    home.fill()
    other = home.record("U", 0, 59)
    with home.open_small() as store:
        queue = store.queues.find("T", 0)
        assert queue is not None
        assert queue.max_offset == 60
    (last,) = [path for path in home.queue_files("T") if int(path.name) == 800]
    home.write(last, 20 * (59 - 40), struct.pack(">qiq", other.physical_offset, other.size, 0))
    report = home.repair()
    assert report.ranges == []
    home.assert_whole()


@pytest.mark.parametrize("said", [0, -1, 2**62], ids=["zero", "negative", "far ahead"])
@pytest.mark.parametrize("number", [0, 30, 59], ids=["first", "middle", "last"])
def test_a_store_time_that_cannot_be_is_corrected_and_the_message_stays(
    home: DamagedHome, said: int, number: int
) -> None:
    home.fill()
    record = home.record("U", 1, number)
    home.write_log(record.physical_offset + STORE_TIME, struct.pack(">q", said))
    before = home.read_log(record.physical_offset, record.size)
    report = home.repair()
    assert report.ranges == []
    (change,) = report.changes[:1]
    assert str(record.physical_offset) in change.what
    assert (home.path / change.saved).read_bytes() == before
    assert home.errors() == []
    with home.open_small() as store:
        found = store.look_up(record.physical_offset)
        assert found is not None
        assert abs(found.store_timestamp - record.store_timestamp) <= 1000
        assert found.body == record.body
        assert len(home.read_queue(store, "U", 1)) == 60
        assert len(store.query("U", f"k{number}")) == 2


def test_store_times_of_a_clock_that_was_wrong_are_left_alone(home: DamagedHome) -> None:
    home.fill(5)
    right = home.clock.now
    home.clock.now = 1000
    with home.open_small() as store:
        home.put_numbered(store, 3, topic="early")
    home.clock.now = right
    before = home.read_log(0, SMALL_LOG_SIZE)
    report = home.repair()
    assert report.changes == []
    assert any("stored" in problem for problem in report.problems)
    assert home.read_log(0, SMALL_LOG_SIZE) == before


def test_a_topic_that_was_deleted_and_made_again_keeps_its_new_queue(home: DamagedHome) -> None:
    """Its old records are still in the log, and RocketMQ does not note the deletion."""
    home.fill(10)
    with home.open_small() as store:
        store.delete_topic("T")
        for number in range(5):
            assert store.put(Message("T", b"new %d" % number, keys=("new",))).queue_offset == number
    (home.path / "penstock" / "deleted_topics.json").unlink()
    (home.path / "penstock" / "dispatched.json").unlink()
    home.damage(home.record("U", 0, 3))
    report = home.repair()
    assert report.problems == []
    with home.open_small() as store:
        assert home.bodies(store, "T") == [b"new %d" % number for number in range(5)]


@pytest.mark.parametrize("served", [True, False], ids=["served", "cut off long ago"])
def test_records_hidden_by_a_filler_come_back_only_if_a_queue_serves_them(home: DamagedHome, served: bool) -> None:
    """RocketMQ truncates a log without zeroing it, so its fillers may hold truncated records."""
    home.fill(20)
    record = home.record("U", 0, 15)
    left = SMALL_LOG_SIZE - record.physical_offset % SMALL_LOG_SIZE
    home.write_log(record.physical_offset, left.to_bytes(4, "big") + bytes.fromhex("cbd43194"))
    hidden = [each for each in home.records.values() if each.physical_offset > record.physical_offset]
    hidden = [each for each in hidden if each.physical_offset < record.physical_offset + left]
    assert hidden
    if not served:
        for path in (home.path / "consumequeue").rglob("0*"):
            path.unlink() if path.is_file() else None
        (home.path / "penstock" / "dispatched.json").unlink()
    report = home.repair()
    assert len(report.ranges) == served
    assert len([each for each in report.changes if "hidden" in each.what]) == (not served)
    if served:
        home.assert_whole(record)
    with home.open_small() as store:
        for each in hidden:
            found = home.read_queue(store, each.topic, each.queue_id)
            assert (each in found) == served


@pytest.mark.parametrize("change", ["a store time", "hidden records", "a long file"])
def test_a_repair_for_which_the_quarantine_has_no_room_changes_nothing(home: DamagedHome, change: str) -> None:
    home.fill(20)
    damaged, record = home.record("T", 0, 1), home.record("U", 0, 15)
    home.damage(damaged)
    if change == "a store time":
        home.write_log(record.physical_offset + STORE_TIME, bytes(8))
    elif change == "hidden records":
        left = SMALL_LOG_SIZE - record.physical_offset % SMALL_LOG_SIZE
        home.write_log(record.physical_offset, left.to_bytes(4, "big") + bytes.fromhex("cbd43194"))
        for path in (home.path / "consumequeue").rglob("0*"):
            path.unlink() if path.is_file() else None
        (home.path / "penstock" / "dispatched.json").unlink()
    else:
        with home.log_files()[-1].open("ab") as file:
            file.write(bytes(SMALL_LOG_SIZE - 1) + b"x")
    before = home.listing()
    settings = SMALL_SETTINGS.with_changes(quarantine_max_bytes=damaged.size)
    with pytest.raises(StoreFailed, match="quarantineMaxBytes"):
        home.repair(settings=settings)
    after = home.listing()
    assert {name for name in after.keys() | before.keys() if after.get(name) != before.get(name)} <= {"lock"}
