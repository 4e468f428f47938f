"""What tests of retention share: a disk whose fullness a test decides, and a store of small files with ages."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from store_home import StoreHome

from penstock.store import Message, MessageStore
from penstock.store.files import Files
from penstock.store.retention.cleaner import Gone

FILE_SIZE = 4096
PER_FILE = 4
"""Messages that fit a log file."""
HOUR_MS = 3_600_000
GIB = 1 << 30


class MeasuredFiles(Files):
    """The real disk, with partitions of 100 GiB that are as full as a test says.

    A log file that is deleted counts for `percent_of_a_file` percents, so that deletion makes room.
    """

    def __init__(self) -> None:
        self.percent = 50.0
        self.queues_percent: float | None = None
        """Fullness of the queues' partition, if they have one of their own."""
        self.percent_of_a_file = 0.0
        self.broken: OSError | None = None

    def partition(self, folder: Path) -> int:
        return int("commitlog" not in folder.parts and self.queues_percent is not None)

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        if self.broken is not None:
            raise self.broken
        percent = self.percent
        if self.queues_percent is not None and "commitlog" not in folder.parts:
            percent = self.queues_percent
        used = round(percent * GIB)
        return used, 100 * GIB - used

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.parent.name == "commitlog":
            self.percent -= self.percent_of_a_file


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

    def run(self) -> list[Gone]:
        """One pass."""
        gone: list[Gone] = self.retention.cleaner.run()
        return gone

    def run_on_request(self) -> list[Gone]:
        """One pass as if somebody had asked for it."""
        self.retention.cleaner._requested = 1
        return self.run()
