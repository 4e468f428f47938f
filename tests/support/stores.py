"""Stores for tests.

`StoreHome` is a folder that a test opens as often as it likes, with a clock that the test moves. `AgedStore` has small
files with ages, for retention. `STORES` are random stores for hypothesis. The last part runs external dispatch in
this process.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import lz4.frame
import zstandard
from hypothesis import strategies as st

from penstock.format.record import Record
from penstock.format.sys_flag import COMPRESSED
from penstock.store import FlushDiskType, GetStatus, Message, MessageStore, PutResult, Settings
from penstock.store.external_dispatch.follower import ExternalDispatch
from penstock.store.external_dispatch.packed_units_and_keys import pack, unpack
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.files.file_io import Files
from penstock.store.queue_units_and_keys import DerivedPiece, LogRange, cut_range, scan
from penstock.store.retention.cleaner import DeletedFile
from support.disks import MeasuredFiles


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_600_000_000_000

    def __call__(self) -> int:
        return self.now


class StoreHome:
    """The folder of one store. What was opened through it is closed when the test ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self._opened: list[MessageStore] = []

    def open(
        self,
        *,
        files: Files | None = None,
        read_only: bool = False,
        sync: bool = False,
        clock: Callable[[], int] | None = None,
        **changes: Any,
    ) -> MessageStore:
        """Opens it with the dev profile and these changes; `sync` is short for SYNC_FLUSH, on a disk that is busy."""
        if sync:
            changes = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 60_000, **changes}
        store = MessageStore.open(
            self.path, Settings.dev(**changes), files=files, read_only=read_only, clock=clock or self.clock
        )
        self._opened.append(store)
        return store

    def close_all(self) -> None:
        for store in self._opened:
            store.close()

    # -- files -----------------------------------------------------------------------------------------------

    def log_files(self) -> list[Path]:
        return sorted((self.path / "commitlog").iterdir())

    def queue_files(self, topic: str, queue_id: int = 0) -> list[Path]:
        return sorted((self.path / "consumequeue" / topic / str(queue_id)).iterdir())

    def index_files(self) -> list[Path]:
        return sorted((self.path / "index").iterdir())

    def write(self, path: Path, position: int, data: bytes) -> None:
        """Overwrites bytes of a file in place, as a disk that lies would."""
        with path.open("r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, path: Path, position: int, bit: int = 0) -> None:
        """Turns one bit of a file over."""
        self.write(path, position, bytes([path.read_bytes()[position] ^ (1 << bit)]))

    def mark_crashed(self) -> None:
        """Makes the next open believe that the last exit was not clean."""
        (self.path / "abort").touch()

    def kept(self) -> list[Path]:
        """The files that recovery kept aside."""
        folder = self.path / "penstock" / "quarantine"
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def listing(self) -> dict[str, bytes]:
        """Every file of the store with its content."""
        found = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in found}

    def copy_to(self, path: Path) -> StoreHome:
        shutil.copytree(self.path, path)
        return StoreHome(path)

    # -- messages --------------------------------------------------------------------------------------------

    @staticmethod
    def read_queue(store: MessageStore, topic: str, queue_id: int = 0) -> list[Record]:
        """All messages of a queue, page by page, from its minimum to its end."""
        messages: list[Record] = []
        offset = max(store.min_offset(topic, queue_id), 0)
        while True:
            page = store.get(topic, queue_id, offset)
            messages += page.messages
            if page.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE):
                return messages
            assert page.next_begin_offset > offset, page
            offset = page.next_begin_offset

    def bodies(self, store: MessageStore, topic: str, queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.read_queue(store, topic, queue_id)]

    @staticmethod
    def put_numbered(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0) -> None:
        """Messages whose body and key are their number in the queue."""
        for _ in range(count):
            number = max(store.max_offset(topic, queue_id), 0)
            assert store.put(Message(topic, b"%04d" % number, keys=(f"k{number}",), queue_id=queue_id)).ok

    def state(self, store: MessageStore) -> dict[str, object]:
        """Everything a user can see."""
        store.catch_up()
        seen: dict[str, object] = {"log": (store.log.min_offset, store.log.max_offset)}
        for queue in store.queues:
            name = f"{queue.topic}/{queue.queue_id}"
            seen[name] = (queue.min_offset, queue.max_offset)
            records = self.read_queue(store, queue.topic, queue.queue_id)
            seen[f"{name} messages"] = records
            seen[f"{name} keys"] = [len(store.query(queue.topic, key)) for record in records for key in record.keys]
            seen[f"{name} tags"] = [queue.unit(record.queue_offset)[2] for record in records]
        return seen


def eventually(condition: Callable[[], bool], otherwise: str) -> None:
    """Returns once another thread has made the condition true."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.0005)


def is_one_sentence(reason: str) -> bool:
    """What a person should see: words, on one line, without Python's names for things."""
    return len(reason) > 15 and "\n" not in reason and "Error" not in reason and "Errno" not in reason


def assert_nothing_stored(store: MessageStore, result: PutResult, end: int) -> None:
    """A put was refused, says why, and the log still ends where it did."""
    assert not result.ok
    assert not result.stored
    assert result.msg_id == ""
    assert is_one_sentence(result.reason), result.reason
    assert store.log.queue.wrote_offset == end


FILE_SIZE = 4096
PER_FILE = 4
"""Messages that fit a log file."""
HOUR_MS = 3_600_000


class AgedStore:
    """A store of small files whose threads only do what a test has them do."""

    def __init__(self, home: StoreHome, disk: Files | None = None, **changes: Any) -> None:
        self.home = home
        self.disk = disk or MeasuredFiles()
        self.settings: dict[str, Any] = {
            "mapped_file_size_commit_log": FILE_SIZE,
            "mapped_file_size_consume_queue": 10 * 20,
            "max_hash_slot_num": 50,
            "max_index_num": 11,
            "delete_commit_log_files_interval": 0,
            "delete_consume_queue_files_interval": 0,
            "disk_enough_free_bytes": 0,
            "delete_when": f"{self.other_hour:02d}",
            "flush_interval_commit_log": HOUR_MS,  # a file is held while it is synced
            "flush_interval_consume_queue": HOUR_MS,
            **changes,
        }
        self.store = self.open()

    def open(self) -> MessageStore:
        """Opens it, again if need be; nobody looks at the disk but the test."""
        self.store = self.home.open(files=self.disk, **self.settings)
        self.retention.watcher.stop()
        return self.store

    @property
    def retention(self) -> Any:
        return self.store.retention

    # -- time ------------------------------------------------------------------------------------------------

    @property
    def hour(self) -> int:
        return datetime.fromtimestamp(self.home.clock.now / 1000).hour

    @property
    def other_hour(self) -> int:
        return (self.hour + 12) % 24

    def age(self, hours: float, *, files: int | None = None) -> None:
        """Makes the first log files, or all, look as if they were last changed so long ago."""
        seconds = self.home.clock.now / 1000 - hours * 3600
        for path in self.home.log_files()[:files]:
            os.utime(path, (seconds, seconds))

    # -- content ---------------------------------------------------------------------------------------------

    def fill(self, files: int, topic: str = "T", queue_id: int = 0) -> None:
        """Puts as many messages as fill so many log files; the next one begins another."""
        for _ in range(files * PER_FILE):
            number = self.store.max_offset(topic, queue_id)
            body = b"%06d" % number
            message = Message(topic, body.ljust(880, b"."), keys=(f"k{number}",), queue_id=queue_id)
            answer = self.store.put(message)
            assert answer.ok, answer.reason
        self.store.flush()
        self.store.catch_up()

    def numbers(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        """The numbers of the messages that can be read."""
        return [int(record.body[:6]) for record in self.home.read_queue(self.store, topic, queue_id)]

    def found(self, numbers: range, topic: str = "T") -> list[int]:
        """The numbers of the messages that are found by their keys."""
        return [number for number in numbers if len(self.store.query(topic, f"k{number}")) == 1]

    @property
    def log_names(self) -> list[int]:
        """Numbers of the log files that are on disk."""
        return [int(path.name) // FILE_SIZE for path in self.home.log_files()]

    # -- deleting --------------------------------------------------------------------------------------------

    def run(self) -> list[DeletedFile]:
        """One pass."""
        gone: list[DeletedFile] = self.retention.cleaner.run()
        return gone

    def run_on_request(self) -> list[DeletedFile]:
        """One pass as if somebody had asked for it."""
        self.retention.cleaner._requested = 1
        return self.run()


RANDOM_T0 = 1_600_000_000_000
RANDOM_LOG_SIZE = 4096
RANDOM_UNITS_PER_FILE = 7
RANDOM_SETTINGS = Settings.dev(
    mapped_file_size_commit_log=RANDOM_LOG_SIZE,
    mapped_file_size_consume_queue=20 * RANDOM_UNITS_PER_FILE,
    max_message_size=4096,
)
RANDOM_TOPICS = ("orders", "Alerts", "%RETRY%group")
ZLIB, LZ4, ZSTD = 0x1, 0x101, 0x201
PACK: dict[int, Callable[[bytes], bytes]] = {
    ZLIB: zlib.compress,
    LZ4: lz4.frame.compress,
    ZSTD: zstandard.ZstdCompressor().compress,
}
UNPACK: dict[int, Callable[[bytes], bytes]] = {
    ZLIB: zlib.decompress,
    LZ4: lz4.frame.decompress,
    ZSTD: zstandard.ZstdDecompressor().decompress,
}
TRANSACTIONS = (0, 0, 0, 0x4, 0x8, 0xC)


@st.composite
def random_messages(draw: st.DrawFn) -> Message:
    """Plain, compressed, prepared, committed or rolled back; with or without tags, keys and properties."""
    body = draw(st.binary(max_size=30)) * draw(st.sampled_from((0, 1, 1, 5, 30)))
    codec = draw(st.sampled_from((0, 0, ZLIB, LZ4, ZSTD)))
    return Message(
        draw(st.sampled_from(RANDOM_TOPICS)),
        PACK[codec](body) if codec else body,
        tags=draw(st.sampled_from(("", "Aa", "BB", "red"))),
        keys=draw(st.lists(st.sampled_from(("k1", "k2", "ключ", "Aa", "BB")), max_size=3, unique=True)),
        properties=draw(st.sampled_from(({}, {"UNIQ_KEY": "id7"}, {"a": "1", "b": "ü"}))),
        queue_id=draw(st.integers(0, 2)),
        sys_flag=codec | draw(st.sampled_from(TRANSACTIONS)),
        born_host=draw(st.sampled_from(("127.0.0.1:9", "[::1]:9"))),
        store_host=draw(st.sampled_from(("", "[fe80::1]:10911"))),
        flag=draw(st.integers(-5, 5)),
        reconsume_times=draw(st.integers(0, 3)),
    )


class Made(NamedTuple):
    """A store to make: messages or batches, one after the other, and how many log files retention takes."""

    puts: list[list[Message]]
    deleted: int

    def fill(self, store: MessageStore) -> None:
        for put in self.puts:
            answer = store.put(put[0]) if len(put) == 1 else store.put_many(put)
            assert answer.ok, answer.reason

    def make(self, folder: Path) -> None:
        """Fills it, closes it, and deletes the first log files, never the last."""
        with opened(folder) as store:
            self.fill(store)
        files = sorted((folder / "commitlog").iterdir())
        for path in files[: min(self.deleted, len(files) - 1)]:
            path.unlink()


STORES = st.builds(
    Made,
    st.lists(
        random_messages().map(lambda each: [each])
        | st.lists(random_messages().filter(lambda each: not each.sys_flag & 0xC), min_size=2, max_size=5),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 2),
)


@contextmanager
def opened(folder: Path, *, read_only: bool = False) -> Iterator[MessageStore]:
    """The store with a clock that goes on by a second for each message."""
    ticks = itertools.count(RANDOM_T0, 1000)
    with MessageStore.open(folder, RANDOM_SETTINGS, read_only=read_only, clock=lambda: next(ticks)) as store:
        yield store


@contextmanager
def empty_folder(path: Path) -> Iterator[Path]:
    """A folder that is there for one example."""
    path.mkdir()
    yield path
    shutil.rmtree(path)


def unpacked(record: Record) -> bytes:
    """The body as its sender had it."""
    codec = record.sys_flag & 0x301
    return UNPACK[codec](record.body) if record.sys_flag & COMPRESSED else record.body


def pieces_of(builder: Builder, stop: int, count: int = 3) -> list[DerivedPiece]:
    """What workers would find between where the builder stands and `stop`."""
    settings, found = builder.settings, []
    for number, (begin, end) in enumerate(cut_range(builder.position, stop, count, 1)):
        place = LogRange(
            builder.layout.commit_log,
            settings.mapped_file_size_commit_log,
            begin,
            end,
            number == 0,
            settings.delay_levels,
        )
        found += [unpack(pack(piece)) for piece in scan(place)]
    return found


def build_all(builder: Builder, *, step: int = 1 << 30, count: int = 3) -> int:
    """Batches of `step` bytes up to what is published; how many there were."""
    batches = 0
    while (end := builder.published) > builder.position:
        stop = min(end, builder.position + step)
        builder.build(stop, pieces_of(builder, stop, count))
        batches += 1
    return batches


def derived_files(folder: Path) -> dict[str, bytes]:
    """Queues by path, and index files by number: their names tell when they were made."""
    queues = sorted(path for path in (folder / "consumequeue").rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in queues}
    indexes = sorted((folder / "index").iterdir()) if (folder / "index").exists() else []
    return {**found, **{f"index {number}": path.read_bytes() for number, path in enumerate(indexes)}}


def put_mixed(home: StoreHome, store: MessageStore, count: int, start: int = 0) -> None:
    """Messages of several topics and queues, with and without keys and tags, some in batches, some delayed."""
    for number in range(start, start + count):
        home.clock.now += number % 3
        topic, queue_id = f"T{number % 3}", number % 4
        if number % 17 == 5:
            many = [Message(topic, b"batch %d %d" % (number, each), queue_id=queue_id) for each in range(3)]
            assert store.put_many(many).ok
            continue
        properties = {"DELAY": "2"} if number % 29 == 7 else {}
        keys = (f"k{number}", f"shared{number % 5}") if number % 2 else ()
        message = Message(
            topic,
            b"%d" % number * (1 + number % 50),
            tags="red" if number % 3 else "",
            keys=keys,
            queue_id=queue_id,
            properties=properties,
        )
        assert store.put(message).ok
    deadline = time.monotonic() + 30
    while isinstance(store.dispatcher, ExternalDispatch):  # its thread publishes the new end of the log
        if store.dispatcher._published[0] >= store.log.confirmed_offset:
            break
        assert time.monotonic() < deadline, "the end of the log was not published"
        time.sleep(0.001)
