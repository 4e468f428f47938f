"""Stores that a killed writer left: made once, copied for each round."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import BenchFailed
from bench.store.ground import PREFIX, QUEUES, TAG, TOPIC
from penstock.format.index_layout import IndexGeometry
from penstock.store import Settings
from penstock.store.holes import written_ranges

_MIB = 1 << 20
_QUEUE_FILES = 256 * _MIB
"""More than the consume queues of any store here take."""
_DONE = "done"


class Sizes(msgspec.Struct, frozen=True):
    """How large the stores are."""

    log_bytes: int
    log_file: int
    index: IndexGeometry

    @property
    def disk_need(self) -> int:
        """What the writer left, and the copy of a round, each with a log file made ahead."""
        return 3 * (self.log_bytes + 2 * self.log_file + self.index.file_size + _QUEUE_FILES)


FULL = Sizes(log_bytes=2 << 30, log_file=1 << 30, index=IndexGeometry(5_000_000, 20_000_000))
QUICK = Sizes(log_bytes=12 * _MIB, log_file=8 * _MIB, index=IndexGeometry(10_000, 40_000))


class KilledStores:
    """One store for each size of body, and copies of it."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._made: dict[int, Path] = {}

    def settings(self) -> dict[str, Any]:
        """By RocketMQ's names, for both sides."""
        return {
            "mappedFileSizeCommitLog": self._sizes.log_file,
            "maxHashSlotNum": self._sizes.index.slots,
            "maxIndexNum": self._sizes.index.items,
            "osPageCacheBusyTimeOutMills": 60_000,
        }

    def our_settings(self) -> Settings:
        return Settings.load(pairs=[f"{name}={value}" for name, value in self.settings().items()])

    @contextmanager
    def copy(self, body: int) -> Iterator[Path]:
        """What the writer left, for one round, with its files' times: in the page cache, and on disk as well.

        A killed writer has flushed all but its last half second, so a start has next to nothing to write back.
        """
        target = self._folder / "copy"
        try:
            yield Path(shutil.copytree(self._left(body), target, copy_function=copy_sparse))
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _left(self, body: int) -> Path:
        if body not in self._made:
            for other in self._made.values():
                shutil.rmtree(other)
            self._made = {body: self._write(body)}
        return self._made[body]

    def _write(self, body: int) -> Path:
        """Has another process fill a store, and kills it the moment it has put everything."""
        path = self._folder / f"left-{body}"
        path.mkdir(parents=True)
        pairs = [f"{name}={value}" for name, value in self.settings().items()]
        order = [
            sys.executable,
            "-m",
            "bench.recovery.writer",
            str(path),
            str(body),
            str(self._sizes.log_bytes),
            *pairs,
        ]
        with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = writer.stdout.readline().strip()
            os.kill(writer.pid, signal.SIGKILL)
        if said != _DONE:
            raise BenchFailed(f"the writer of the store failed: {said}")
        return path


def message_columns(body: int, first: int, count: int) -> dict[str, list[Any]]:
    """The same messages as in the suite `store`: one key, one tag, four queues."""
    numbers = range(first, first + count)
    return {
        "topic": [TOPIC] * count,
        "body": [bytes(body)] * count,
        "keys": [f"{PREFIX}{number}" for number in numbers],
        "tags": [TAG] * count,
        "queue_id": [number % QUEUES for number in numbers],
    }


def copy_sparse(source: str, target: str) -> str:
    """Copies what a file really holds, and its times; allocated space that was never written stays a hole.

    Nothing is read ahead: what is counts as written from then on, for the next copy.
    """
    with Path(source).open("rb") as taken, Path(target).open("wb") as made:
        end = os.fstat(taken.fileno()).st_size
        os.posix_fadvise(taken.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for begin, stop in list(written_ranges(taken.fileno(), 0, end)):
            done = begin
            while done < stop:
                done += os.copy_file_range(taken.fileno(), made.fileno(), stop - done, done, done)
        made.truncate(end)
        os.fsync(made.fileno())
    shutil.copystat(source, target)
    return target
