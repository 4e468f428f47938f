"""Stores that tests damage, audit, repair and rebuild.

`SoundStore` has something of everything and no fault: several log, queue and index files; single messages and batches,
tags, keys that share a hash and a slot, delays, prepared, committed and rolled back records, IPv6 hosts; every config
file. `support.faults` plants faults in it:

    store = SoundStore.make(folder)
    store.write(store.log_path(record.offset), 0, b"...")

`DamagedHome` holds numbered messages in three queues and remembers them, so that a repair can be judged. The last part
rebuilds a store from ranges of several sizes, and compares the files with each other and with those of dispatch.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.format import kernels
from penstock.format.config_tables import (
    ConsumerFilters,
    ConsumerOffsets,
    DelayOffsets,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
)
from penstock.format.index_layout import IndexHeader
from penstock.format.record import Record
from penstock.format.scan import Blank, Damage, ScanBatch, scan
from penstock.store import Message, MessageStore, Settings
from penstock.store.audit import audit
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files
from penstock.store.rebuild import RebuildReport, rebuild
from penstock.store.repair import RepairReport, repair
from support.disks import UnsyncedFiles
from support.stores import StoreHome

T0 = 1_600_000_000_000
LOG_SIZE = 16_384
UNITS_PER_FILE = 9
SLOTS, ITEMS = 50, 150
SETTINGS = Settings.dev(
    mapped_file_size_commit_log=LOG_SIZE,
    mapped_file_size_consume_queue=20 * UNITS_PER_FILE,
    max_hash_slot_num=SLOTS,
    max_index_num=ITEMS,
    max_message_size=4096,
).with_changes(max_hash_slot_num=SLOTS, max_index_num=ITEMS)
OPTIONS = ("--set", f"maxHashSlotNum={SLOTS}", "--set", f"maxIndexNum={ITEMS}")
"""What the command line must be told: an index file does not say its geometry."""
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
TOPICS = ("orders", "Alerts", "%RETRY%group")
ONCE = "once"
"""A topic with a single message, the log's first."""
PLAIN = "plain"
"""A topic whose messages have neither keys nor tags."""


class Spot(NamedTuple):
    """A record and where it lies."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    type: int
    body_at: int
    topic_at: int
    properties_at: int


def some_messages() -> Iterator[Message | list[Message]]:
    """Single ones and batches."""
    yield Message(ONCE, b"only one")
    for number in range(240):
        topic = TOPICS[number % len(TOPICS)]
        body = bytes([number]) * (17 * number % 400)
        queue_id = number % 2
        if number % 10 == 3:
            yield [Message(PLAIN, body), Message(PLAIN, b""), Message(PLAIN, b"batch", queue_id=1)]
        elif number % 10 == 5:
            yield Message(topic, body, keys=(f"t{number}",), sys_flag=(PREPARED, COMMIT, ROLLBACK)[number % 3])
        elif number % 20 == 7:
            yield Message(topic, body, tags="late", keys=(f"d{number}",), delay_level=3)
        else:
            host = "[::1]:9" if number % 7 == 0 else "127.0.0.1:9"
            properties = {"UNIQ_KEY": f"id{number}"} if number % 2 else {}
            yield Message(
                topic, body, keys=("Aa", "BB", f"k{number}"), tags="t", queue_id=queue_id, born_host=host,
                properties=properties,
            )  # fmt: skip


class SoundStore:
    """The folder of one such store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, folder: Path, settings: Settings = SETTINGS) -> SoundStore:
        """Fills a new store and closes it."""
        ticks = itertools.count(T0, 250)
        with MessageStore.open(folder, settings, clock=lambda: next(ticks)) as store:
            for messages in some_messages():
                if isinstance(messages, list):
                    assert store.put_many(messages).ok
                else:
                    assert store.put(messages).ok
            store.catch_up()
            ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues}
        made = cls(folder)
        made._write_config(ends)
        return made

    @property
    def config(self) -> ConfigFiles:
        return ConfigFiles(Files(), self.folder / "config")

    def _write_config(self, ends: dict[tuple[str, int], int]) -> None:
        config, topics = self.config, sorted({topic for topic, _ in ends})
        config.topics.write(TopicConfigs(topics={topic: TopicConfig(name=topic) for topic in topics}))
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        for (topic, queue_id), end in ends.items():
            offsets.setdefault((topic, "group"), {})[queue_id] = end - queue_id
        config.consumer_offsets.write(ConsumerOffsets(offsets=offsets))
        config.delay_offsets.write(DelayOffsets(offsets={3: 1}))
        config.subscription_groups.write(SubscriptionGroups(groups={"group": SubscriptionGroup(name="group")}))
        config.consumer_filters.write(ConsumerFilters())

    # -- the log ---------------------------------------------------------------------------------------------

    def log_files(self) -> list[Path]:
        return sorted((self.folder / "commitlog").iterdir())

    def log_path(self, offset: int) -> Path:
        return self.folder / "commitlog" / f"{offset - offset % LOG_SIZE:020d}"

    def records(self) -> list[Spot]:
        """Every record, in log order."""
        found = []
        for path in self.log_files():
            data, topics = path.read_bytes(), kernels.TopicTable()
            rows, _, _ = kernels.walk(data, int(path.name), 0, len(data), True, topics, 10_000)
            for row in rows:
                names = ("physical_offset", "size", "queue_id", "queue_offset", "sys_flag")
                offset, size, queue_id, queue_offset, flag = (int(row[name]) for name in names)
                places = (int(row[name]) for name in ("body_at", "topic_at", "properties_at"))
                topic = topics.name(int(row["topic_id"]))
                found.append(Spot(offset, size, topic, queue_id, queue_offset, flag & 0xC, *places))
        return found

    def middle(self, topic: str = "orders") -> Spot:
        """An ordinary record with a body in the middle of the second log file, not the first or last of its queue."""
        return next(
            spot
            for spot in self.records()
            if spot.topic == topic and not spot.type and LOG_SIZE + 4000 < spot.offset < 2 * LOG_SIZE - 4000
            and spot.topic_at - spot.body_at > 20
        )  # fmt: skip

    def end(self) -> int:
        last = self.records()[-1]
        return last.offset + last.size

    def write(self, path: Path, position: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def write_log(self, offset: int, data: bytes) -> None:
        self.write(self.log_path(offset), offset % LOG_SIZE, data)

    def read_log(self, offset: int, size: int) -> bytes:
        return self.log_path(offset).read_bytes()[offset % LOG_SIZE :][:size]

    # -- queues and index ------------------------------------------------------------------------------------

    def queue_files(self, topic: str = "orders", queue_id: int = 0) -> list[Path]:
        return sorted((self.folder / "consumequeue" / topic / str(queue_id)).iterdir())

    def unit(self, number: int, topic: str = "orders", queue_id: int = 0) -> bytes:
        path, at = self._unit_place(number, topic, queue_id)
        return path.read_bytes()[at : at + 20]

    def write_unit(self, number: int, unit: bytes, topic: str = "orders", queue_id: int = 0) -> None:
        path, at = self._unit_place(number, topic, queue_id)
        self.write(path, at, unit)

    def _unit_place(self, number: int, topic: str, queue_id: int) -> tuple[Path, int]:
        first = number - number % UNITS_PER_FILE
        folder = self.folder / "consumequeue" / topic / str(queue_id)
        return folder / f"{first * 20:020d}", number % UNITS_PER_FILE * 20

    def queue_end(self, topic: str = "orders", queue_id: int = 0) -> int:
        return sum(
            1 for spot in self.records() if (spot.topic, spot.queue_id) == (topic, queue_id) and spot.type in (0, 8)
        )

    def index_files(self) -> list[Path]:
        return sorted((self.folder / "index").iterdir())

    def header(self, path: Path) -> IndexHeader:
        return IndexHeader.unpack(path.read_bytes())


SMALL_LOG_SIZE = 4096
SMALL_UNITS_PER_FILE = 20
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": SMALL_LOG_SIZE,
    "mapped_file_size_consume_queue": SMALL_UNITS_PER_FILE * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 40,
}
SMALL_SETTINGS = Settings.dev(**SMALL).with_changes(max_hash_slot_num=50, max_index_num=40)
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
        return next(each for each in self.records.values() if queue_place_of(each) == wanted)

    def write_log(self, offset: int, data: bytes) -> None:
        self.write(self.log_file(offset), offset % SMALL_LOG_SIZE, data)

    def read_log(self, offset: int, size: int) -> bytes:
        return self.log_file(offset).read_bytes()[offset % SMALL_LOG_SIZE : offset % SMALL_LOG_SIZE + size]

    def log_file(self, offset: int) -> Path:
        return self.path / "commitlog" / f"{offset - offset % SMALL_LOG_SIZE:020d}"

    def damage(self, *records: Record) -> None:
        """Breaks the bodies of records."""
        for record in records:
            at = record.physical_offset + 88
            self.write_log(at, bytes(byte ^ 0xFF for byte in self.read_log(at, 1)))

    # -- repairing -------------------------------------------------------------------------------------------

    def repair(self, **arguments: Any) -> RepairReport:
        arguments = {"settings": SMALL_SETTINGS, "clock": self.clock, "files": UnsyncedFiles(), **arguments}
        return repair(self.path, **arguments)

    def rebuild(self, **arguments: Any) -> RebuildReport:
        arguments = {"settings": SMALL_SETTINGS, "clock": self.clock, "files": UnsyncedFiles(), **arguments}
        return rebuild(self.path, **arguments)

    def errors(self) -> list[str]:
        return [f"{each.kind}: {each.path}: {each.what}" for each in audit(self.path, SMALL_SETTINGS).errors]

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

    def walk(self) -> list[ScanBatch | Blank | Damage]:
        """The log as any reader walks it: records, fillers, damage, file by file."""
        found: list[ScanBatch | Blank | Damage] = []
        for path in self.log_files():
            found += scan(path.read_bytes(), int(path.name), 0, SMALL_LOG_SIZE, check_crc=True)
        return found

    def assert_walkable(self) -> None:
        """From the first byte to the last record there is nothing but records, and fillers at the files' ends."""
        found = self.walk()
        assert not [item for item in found if isinstance(item, Damage)]
        assert len([item for item in found if isinstance(item, Blank)]) >= len(self.log_files()) - 1


def queue_place_of(record: Record) -> tuple[str, int, int]:
    return record.topic, record.queue_id, record.queue_offset


NOW = 1_700_000_000_000
DerivedFiles = tuple[dict[str, bytes], list[bytes]]


def derived(path: Path) -> DerivedFiles:
    """The queue files by name, the index files without."""
    queues = {str(each.relative_to(path)): each.read_bytes() for each in _queue_files(path)}
    return queues, [each.read_bytes() for each in sorted((path / "index").glob("*"))]


def times(path: Path) -> dict[str, int]:
    """When the queue files were modified, in milliseconds."""
    return {str(each.relative_to(path)): each.stat().st_mtime_ns // 1_000_000 for each in _queue_files(path)}


def _queue_files(path: Path) -> list[Path]:
    return [each for each in (path / "consumequeue").rglob("*") if each.is_file()]


def by_ranges(path: Path, range_size: int | None = None, **arguments: Any) -> RebuildReport:
    arguments = {"settings": SMALL_SETTINGS, "clock": lambda: NOW, "files": UnsyncedFiles(), **arguments}
    return rebuild(path, range_size=range_size, **arguments)


def assert_same(path: Path, *sizes: int, settings: Settings = SMALL_SETTINGS, **arguments: Any) -> RebuildReport:
    """Rebuilds copies of a store, by ranges of these sizes and of whole files; returns what the first rebuild said."""
    reports = []
    expected = copy_of(path)
    one = by_ranges(expected, 10**9, settings=settings, **arguments)
    for size in sizes:
        copy = copy_of(path)
        report = by_ranges(copy, size, settings=settings, **arguments)
        assert derived(copy) == derived(expected), f"ranges of {size} bytes"
        assert not (copy / "penstock" / "staging").exists()
        told = [(each.what, each.units, each.kept) for each in report.rebuilt]
        assert told == [(each.what, each.units, each.kept) for each in one.rebuilt]
        assert (report.log_begin, report.log_end) == (one.log_begin, one.log_end)
        assert [note.replace(str(copy), str(expected)) for note in report.start] == one.start
        reports.append(report)
        shutil.rmtree(copy)
    shutil.rmtree(expected)
    return reports[0]


def assert_as_dispatched(path: Path, settings: Settings = SMALL_SETTINGS) -> None:
    """Rebuilds a copy of a store without queues and index, and lets a start dispatch another: the files are equal.

    But for queues whose offsets go back: dispatch does not know whether their topic was deleted.
    """
    settings = settings.with_changes(mapped_file_size_commit_log=settings.mapped_file_size_commit_log)
    rebuilt = copy_of(path)
    for gone in ("consumequeue", "index"):
        shutil.rmtree(rebuilt / gone, ignore_errors=True)
    (rebuilt / "penstock" / "dispatched.json").unlink(missing_ok=True)
    dispatched = copy_of(rebuilt)
    report = by_ranges(rebuilt, 400, settings=settings)
    with MessageStore.open(dispatched, settings, clock=lambda: NOW, files=UnsyncedFiles()):
        pass
    found, due = derived(rebuilt), derived(dispatched)
    for name in report.in_log_order:
        folder = "consumequeue/" + name.replace(" queue ", "/") + "/"
        for queues, _ in (found, due):
            for file in [each for each in queues if each.startswith(folder)]:
                del queues[file]
    assert found == due
    shutil.rmtree(rebuilt)
    shutil.rmtree(dispatched)


def copy_of(path: Path) -> Path:
    made = path.with_name("copy")
    while made.exists():
        made = made.with_name(made.name + "+")
    shutil.copytree(path, made)
    return made
