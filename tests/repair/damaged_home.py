"""A store of small files, filled with numbered messages, that a test damages and repairs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from store_home import StoreHome
from unsynced_files import UnsyncedFiles

from penstock.format.record import Record
from penstock.format.scan import Batch, Blank, Damage, scan
from penstock.store import Message, MessageStore, Settings
from penstock.store.audit import audit
from penstock.store.repair import RebuildReport, RepairReport, rebuild, repair

LOG_SIZE = 4096
UNITS_PER_FILE = 20
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_SIZE,
    "mapped_file_size_consume_queue": UNITS_PER_FILE * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}
SETTINGS = Settings.dev(**SMALL).with_changes(max_hash_slot_num=50, max_index_num=40)
QUEUES = (("T", 0), ("U", 0), ("U", 1))


class DamagedHome(StoreHome):
    """The folder of a store with messages in three queues; `records` are those that were put, by physical offset."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.clock.now = time.time_ns() // 1_000_000 - 10**6  # an audit compares store times with the real clock
        self.records: dict[int, Record] = {}

    def open_small(self, **changes: Any) -> MessageStore:
        return self.open(files=UnsyncedFiles(), **{**SMALL, **changes})

    def fill(self, count: int = 60, body: bytes = b"") -> None:
        """`count` messages in each queue, one after the other, each with a key, and a tag."""
        with self.open_small() as store:
            for number in range(count):
                self.clock.now += 1000
                for topic, queue_id in QUEUES:
                    text = b"%s-%d-%d " % (topic.encode(), queue_id, number) + body
                    put = Message(topic, text, keys=(f"k{number}",), tags="tag", queue_id=queue_id)
                    assert store.put(put).ok
            self.remember(store)

    def remember(self, store: MessageStore) -> None:
        store.catch_up()
        for queue in store.queues:
            for record in self.read_queue(store, queue.topic, queue.queue_id):
                self.records[record.physical_offset] = record

    # -- damaging --------------------------------------------------------------------------------------------

    def record(self, topic: str, queue_id: int, queue_offset: int) -> Record:
        """A message that was put."""
        wanted = (topic, queue_id, queue_offset)
        return next(each for each in self.records.values() if place_of(each) == wanted)

    def write_log(self, offset: int, data: bytes) -> None:
        self.write(self.log_file(offset), offset % LOG_SIZE, data)

    def read_log(self, offset: int, size: int) -> bytes:
        return self.log_file(offset).read_bytes()[offset % LOG_SIZE : offset % LOG_SIZE + size]

    def log_file(self, offset: int) -> Path:
        return self.path / "commitlog" / f"{offset - offset % LOG_SIZE:020d}"

    def damage(self, *records: Record) -> None:
        """Breaks the bodies of records."""
        for record in records:
            at = record.physical_offset + 88
            self.write_log(at, bytes(byte ^ 0xFF for byte in self.read_log(at, 1)))

    # -- repairing -------------------------------------------------------------------------------------------

    def repair(self, **arguments: Any) -> RepairReport:
        arguments = {"settings": SETTINGS, "clock": self.clock, "files": UnsyncedFiles(), **arguments}
        return repair(self.path, **arguments)

    def rebuild(self, **arguments: Any) -> RebuildReport:
        arguments = {"settings": SETTINGS, "clock": self.clock, "files": UnsyncedFiles(), **arguments}
        return rebuild(self.path, **arguments)

    def errors(self) -> list[str]:
        return [f"{each.kind}: {each.path}: {each.what}" for each in audit(self.path, SETTINGS).errors]

    def assert_whole(self, *lost: Record) -> None:
        """Everything but what was lost is served, by queue and by key; an audit finds nothing; puts go on."""
        assert self.errors() == []
        assert self.repair().found_nothing, "a second repair finds something"
        gone = {each.physical_offset for each in lost}
        with self.open_small() as store:
            assert not store.report.damage
            for topic, queue_id in QUEUES:
                due = [each for each in self.records.values() if (each.topic, each.queue_id) == (topic, queue_id)]
                served = self.read_queue(store, topic, queue_id)
                assert [each for each in due if each.physical_offset not in gone] == served
                for each in due:
                    hits = [hit.physical_offset for hit in store.query(topic, each.keys[0])]
                    assert (each.physical_offset in hits) == (each.physical_offset not in gone)
                end = max((each.queue_offset for each in due), default=-1) + 1
                assert store.put(Message(topic, b"next", queue_id=queue_id)).queue_offset == end

    def walk(self) -> list[Batch | Blank | Damage]:
        """The log as any reader walks it: records, fillers, damage, file by file."""
        found: list[Batch | Blank | Damage] = []
        for path in self.log_files():
            found += scan(path.read_bytes(), int(path.name), 0, LOG_SIZE, check_crc=True)
        return found

    def assert_walkable(self) -> None:
        """From the first byte to the last record there is nothing but records, and fillers at the files' ends."""
        found = self.walk()
        assert not [item for item in found if isinstance(item, Damage)]
        assert len([item for item in found if isinstance(item, Blank)]) >= len(self.log_files()) - 1


def place_of(record: Record) -> tuple[str, int, int]:
    return record.topic, record.queue_id, record.queue_offset
