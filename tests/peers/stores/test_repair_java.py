"""Apache RocketMQ 4.9.8 walks past what a repair put over damage, keeps what is behind it, and goes on from there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.disks import UnsyncedFiles
from support.peers import Peer, message_json

from penstock.format.constants import DAMAGED_TOPIC
from penstock.store import Message, MessageStore, Record, Settings
from penstock.store.audit import audit
from penstock.store.rebuild import rebuild
from penstock.store.repair import RepairReport, repair

pytestmark = pytest.mark.java

LOG_SIZE = 16 * 1024
SIZES = {
    "mappedFileSizeCommitLog": LOG_SIZE,
    "mappedFileSizeConsumeQueue": 40 * 20,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
    "maxMessageSize": 8 * 1024,
}
SETTINGS = Settings.load(pairs=[f"{name}={value}" for name, value in SIZES.items()])
ONE_INDEX_FILE = 400
"""Java names index files by the millisecond: one that it fills and the next can be the same file, and keys are lost.
Where it builds the index of a whole log, tests give it room in one file."""
QUEUES = 3
MESSAGES = 300


class Filled:
    """A store whose messages are known, and who damages and repairs it."""

    def __init__(self, path: Path, settings: Settings = SETTINGS) -> None:
        self.path, self.settings = path, settings
        self.records: list[Record] = []
        with MessageStore.open(path, settings, files=UnsyncedFiles()) as store:
            for number in range(MESSAGES):
                body = b"%d " % number * (1 + number % 90)
                put = Message("orders", body, keys=(f"k{number}",), tags="TagA", queue_id=number % QUEUES)
                assert store.put(put).ok
            for queue_id in range(QUEUES):
                for offset in range(MESSAGES // QUEUES):
                    self.records += store.get("orders", queue_id, offset, 1).messages
            self.end = store.log.max_offset
        self.records.sort(key=lambda each: each.physical_offset)

    def write(self, offset: int, data: bytes) -> None:
        path = self.path / "commitlog" / f"{offset - offset % LOG_SIZE:020d}"
        with path.open("r+b") as file:
            file.seek(offset % LOG_SIZE)
            file.write(data)

    def spoil(self, *records: Record) -> None:
        for record in records:
            self.write(record.physical_offset + 4, b"\xff" * 4)

    def within(self, begin: int, end: int) -> list[Record]:
        return [each for each in self.records if begin <= each.physical_offset < end]

    def repair(self) -> RepairReport:
        report = repair(self.path, self.settings, files=UnsyncedFiles())
        assert report.problems == []
        return report


def got_from_java(java: Peer, queue_id: int) -> tuple[list[int], list[dict[str, Any]]]:
    """The numbers of the messages that Java serves of a queue, and the placeholders that it serves among them."""
    numbers: list[int] = []
    others: list[dict[str, Any]] = []
    offset = 0
    while True:
        page = java.ask("get", topic="orders", queue=queue_id, offset=offset, max=32)
        if page["status"] in ("OFFSET_OVERFLOW_ONE", "OFFSET_OVERFLOW_BADLY"):
            return numbers, others
        assert page["next_begin_offset"] > offset, page
        offset = page["next_begin_offset"]
        for message in page["messages"]:
            if DAMAGED_TOPIC.startswith(message["topic"]):
                others.append(message)
            else:
                assert (message["topic"], message["queue_id"]) == ("orders", queue_id)
                numbers.append(message["queue_offset"])


def assert_java_serves_all_but(java: Peer, filled: Filled, lost: list[Record]) -> None:
    gone = {each.physical_offset for each in lost}
    for queue_id in range(QUEUES):
        of_queue = [each for each in filled.records if each.queue_id == queue_id]
        numbers, others = got_from_java(java, queue_id)
        assert numbers == [each.queue_offset for each in of_queue if each.physical_offset not in gone]
        assert len(others) == len([each for each in of_queue if each.physical_offset in gone])
    for record in filled.records:
        hits = java.ask("query", topic="orders", key=record.keys[0], begin=0, end=2**62, max=64)
        found = [hit["physical_offset"] for hit in hits if record.keys[0] == hit["properties"].get("KEYS")]
        assert found == ([] if record.physical_offset in gone else [record.physical_offset])


def one_record(filled: Filled) -> list[Record]:
    lost = [filled.records[100]]
    filled.spoil(*lost)
    return lost


def records_here_and_there(filled: Filled) -> list[Record]:
    lost = filled.records[3:290:20]
    filled.spoil(*lost)
    return lost


def the_first_and_the_last_of_a_file(filled: Filled) -> list[Record]:
    inside = filled.within(LOG_SIZE, 2 * LOG_SIZE)
    lost = [inside[0], inside[-1]]
    filled.spoil(*lost)
    return lost


def the_end_of_a_file_with_its_filler(filled: Filled) -> list[Record]:
    lost = filled.within(LOG_SIZE, 2 * LOG_SIZE)[-3:]
    begin = lost[0].physical_offset
    filled.write(begin, b"\xee" * (2 * LOG_SIZE - begin))
    return lost


def a_range_longer_than_the_largest_message(filled: Filled) -> list[Record]:
    lost = filled.within(LOG_SIZE, 2 * LOG_SIZE)[2:-2]
    size = lost[-1].physical_offset + lost[-1].size - lost[0].physical_offset
    assert size > SIZES["maxMessageSize"]
    filled.write(lost[0].physical_offset, b"\xee" * size)
    return lost


def a_file_gone(filled: Filled) -> list[Record]:
    (filled.path / "commitlog" / f"{LOG_SIZE:020d}").unlink()
    return filled.within(LOG_SIZE, 2 * LOG_SIZE)


def a_file_cut_short(filled: Filled) -> list[Record]:
    path = filled.path / "commitlog" / f"{LOG_SIZE:020d}"
    lost = filled.within(LOG_SIZE, 2 * LOG_SIZE)[20:]
    path.write_bytes(path.read_bytes()[: lost[0].physical_offset - LOG_SIZE])
    return lost


HARMS = [
    one_record,
    records_here_and_there,
    the_first_and_the_last_of_a_file,
    the_end_of_a_file_with_its_filler,
    a_range_longer_than_the_largest_message,
    a_file_gone,
    a_file_cut_short,
]


@pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
def test_java_walks_past_it_keeps_everything_behind_it_and_goes_on(tmp_path: Path, java: Peer, crashed: bool) -> None:
    items = ONE_INDEX_FILE if crashed else SIZES["maxIndexNum"]
    settings = SETTINGS.with_changes(max_index_num=items)
    for harm in HARMS:
        print(harm.__name__)
        filled = Filled(tmp_path / harm.__name__, settings)
        lost = harm(filled)
        filled.repair()
        if crashed:  # then Java walks the whole log, from its first file on
            (filled.path / "abort").touch()
            (filled.path / "checkpoint").unlink()
        opened = java.open(filled.path, {**SIZES, "maxIndexNum": items})
        assert opened["max"] == filled.end
        assert_java_serves_all_but(java, filled, lost)
        put = java.ask("put", message=message_json(topic="orders", body=b"next", properties={"KEYS": "next"}))
        assert (put["status"], put["queue_offset"]) == ("PUT_OK", MESSAGES // QUEUES)
        java.ask("close")
        with MessageStore.open(filled.path, settings, files=UnsyncedFiles()) as store:
            assert store.report.damage == []
            assert [each.body for each in store.query("orders", "next")] == [b"next"]
        assert audit(filled.path, settings).errors == []


def test_without_a_repair_java_cuts_the_log_at_the_damage(tmp_path: Path, java: Peer) -> None:
    """Why there is a repair at all."""
    filled = Filled(tmp_path / "store")
    (lost,) = one_record(filled)
    (filled.path / "abort").touch()
    (filled.path / "checkpoint").unlink()
    assert java.open(filled.path, SIZES)["max"] == lost.physical_offset


@pytest.mark.parametrize("size", [92, 93, 106, 107, 108])
def test_java_walks_past_the_smallest_ranges(tmp_path: Path, java: Peer, size: int) -> None:
    with MessageStore.open(tmp_path / "store", SETTINGS, files=UnsyncedFiles()) as store:
        results = [store.put(Message("T", body)) for body in (b"before", b"x" * (size - 92), b"after")]
        end = store.log.max_offset
    assert results[1].size == size
    with (tmp_path / "store" / "commitlog" / ("0" * 20)).open("r+b") as log:
        log.seek(results[1].physical_offset + 4)
        log.write(b"\xff" * 4)
    assert repair(tmp_path / "store", SETTINGS, files=UnsyncedFiles()).problems == []
    (tmp_path / "store" / "abort").touch()
    (tmp_path / "store" / "checkpoint").unlink()
    assert java.open(tmp_path / "store", SIZES)["max"] == end
    assert java.ask("look", offset=results[2].physical_offset)["queue_offset"] == 2


def test_java_serves_rebuilt_queues_and_finds_times_in_them(tmp_path: Path, java: Peer) -> None:
    filled = Filled(tmp_path / "store")
    shutil.rmtree(filled.path / "consumequeue")
    shutil.rmtree(filled.path / "index")
    rebuild(filled.path, SETTINGS, files=UnsyncedFiles())
    java.open(filled.path, SIZES)
    assert_java_serves_all_but(java, filled, [])
    for record in filled.records[::30]:
        asked = {"topic": "orders", "queue": record.queue_id, "timestamp": record.store_timestamp}
        found = java.ask("offset", **asked)["offset"]
        hit = java.ask("get", topic="orders", queue=record.queue_id, offset=found, max=1)["messages"][0]
        assert hit["store_timestamp"] == record.store_timestamp
