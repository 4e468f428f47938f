"""What tests of the store share: a folder that is opened as often as a test likes, a clock, and a disk with faults."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.format.record import Record
from penstock.store import FlushDiskType, GetStatus, Message, MessageStore, PutResult, Settings
from penstock.store.file_map import FileMap
from penstock.store.files import Files


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_600_000_000_000

    def __call__(self) -> int:
        return self.now


class FaultyFiles(Files):
    """The real disk, with a hook before each sync of a map, each allocation of a file and each sync of a folder.

    A hook gets the path; it may block, count, or raise OSError as the disk would.
    """

    def __init__(self) -> None:
        self.before_sync: Callable[[Path], None] = lambda path: None
        self.before_allocate: Callable[[Path], None] = lambda path: None
        self.before_sync_folder: Callable[[Path], None] = lambda path: None

    def create_map(self, path: Path, size: int) -> FileMap:
        return self._hooked(super().create_map(path, size))

    def open_map(self, path: Path) -> FileMap:
        return self._hooked(super().open_map(path))

    def sync_folder(self, folder: Path) -> None:
        self.before_sync_folder(folder)
        super().sync_folder(folder)

    def _create_whole(self, path: Path, size: int) -> int:
        self.before_allocate(path)
        return super()._create_whole(path, size)

    def _hooked(self, made: FileMap) -> FileMap:
        really_sync = made.sync

        def sync(start: int = 0, stop: int | None = None) -> None:
            self.before_sync(made.path)
            really_sync(start, stop)

        made.sync = sync  # type: ignore[method-assign]
        return made


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

    def flip(self, path: Path, position: int) -> None:
        """Turns one bit of a file over."""
        self.write(path, position, bytes([path.read_bytes()[position] ^ 1]))

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


def refuse(kind: int) -> None:
    """What the disk does when it refuses."""
    raise OSError(kind, os.strerror(kind))


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
