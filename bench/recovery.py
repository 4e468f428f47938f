"""The suite `recovery`: from open to ready after a SIGKILL, and with queues and index lost, beside Apache RocketMQ.

Both sides open copies of the same files, which a writer of ours left when it was killed. Everything is in the page
cache: this measures the start, not the disk. `python -m bench.recovery FOLDER BODY LOG_BYTES name=value ...` is the
writer: it fills a store, prints `done` and waits to be killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.processes import JavaStore, class_path, java_store
from bench.report import java_versions
from bench.run import JAVA, OURS, SIZE_IDS, SIZE_NAMES, Goal, Row, Run, Stopwatch, Task
from bench.store import HUNDRED, KILO, PREFIX, QUEUES, TAG, TOPIC, pairs_of, settings_of
from bench.workspace import MIB, BenchFailed
from penstock.format.index_layout import IndexGeometry
from penstock.store import MessageStore, Settings
from penstock.store.files.file_io import written_ranges

_QUEUE_FILES = 256 * MIB
"""More than the consume queues of any store here take."""
_DONE = "done"
_BATCH = 10_000
_STARTS = (("restart", "restart after SIGKILL", 3), ("rebuild", "rebuild of queues and index", 5))


class Sizes(msgspec.Struct, frozen=True):
    """How large the stores are."""

    log_bytes: int
    log_file: int
    index: IndexGeometry

    @property
    def disk_need(self) -> int:
        """What the writer left, and the copy of a round, each with a log file ahead."""
        return 3 * (self.log_bytes + 2 * self.log_file + self.index.file_size + _QUEUE_FILES)


FULL = Sizes(log_bytes=2048 * MIB, log_file=1024 * MIB, index=IndexGeometry(5_000_000, 20_000_000))
QUICK = Sizes(log_bytes=12 * MIB, log_file=8 * MIB, index=IndexGeometry(10_000, 40_000))


class RecoverySuite:
    """See the module."""

    name = "recovery"
    summary = "From open to ready: after a SIGKILL, and with queues and index lost."
    sides = ("Penstock", "Java")

    def __init__(self) -> None:
        self._stores: KilledStores | None = None

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        stores = self._stores = KilledStores(folder, QUICK if quick else FULL)
        found = []
        for kind, title, goal in _STARTS:
            for body in (KILO, HUNDRED):
                text = f"{title}, 2 GB of log, {SIZE_NAMES[body]}"
                row = Row(f"{kind}-{SIZE_IDS[body]}", text, "s", Goal("ratio at least", goal), less_is_better=True)
                lost = kind == "rebuild"
                sides = {OURS: partial(stores.open, body, lost), JAVA: partial(stores.open_java, body, lost)}
                found.append(Task(kind, (row,), sides))
        return found

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        """Java starts twice over a small store first, so that its compiler has seen the walk and the dispatch."""
        assert self._stores is not None
        jars = class_path()
        with java_store(jars) as java:
            small = KilledStores(folder / "warm-up", QUICK)
            self._stores.java = small.java = java
            for lost in (False, True):
                small.open_java(HUNDRED, lost)
            yield java_versions(jars)

    def close(self) -> None:
        """Our side runs in this process."""


class KilledStores:
    """A store for each size of body as a killed writer left it, and starts over copies of it."""

    java: JavaStore

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._made: dict[int, Path] = {}

    def settings(self) -> dict[str, object]:
        return settings_of(self._sizes.log_file, self._sizes.index)

    def open(self, body: int, lost: bool) -> Run:
        """Opens a copy; `lost`: the last exit was clean, and all queues and the index are gone."""
        settings = Settings.load(pairs=pairs_of(self.settings()))
        with self._copy(body, lost) as path:
            with Stopwatch() as took:
                store = MessageStore.open(path, settings)
            with store:
                messages = sum(queue.max_offset for queue in store.queues)
        return Run.of(took.seconds, {"messages": messages}, took.cpu)

    def open_java(self, body: int, lost: bool) -> Run:
        with self._copy(body, lost) as path:
            how: dict[str, Any] = {"path": str(path), "settings": self.settings()}
            answer, cpu = self.java.bench("rebuild", topic=TOPIC, prefix=PREFIX, **how)
        return Run.of(answer["seconds"], {"messages": answer["messages"]}, cpu)

    @contextmanager
    def _copy(self, body: int, lost: bool) -> Iterator[Path]:
        """What the writer left, for one round, with its files' times: in the page cache, and on disk as well.

        A killed writer has flushed all but its last half second, so a start has next to nothing to write back.
        """
        target = self._folder / "copy"
        try:
            path = Path(shutil.copytree(self._left(body), target, copy_function=copy_sparse))
            if lost:
                (path / "abort").unlink()
                for folder in ("consumequeue", "index"):
                    shutil.rmtree(path / folder)
            yield path
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def _left(self, body: int) -> Path:
        if body not in self._made:
            for other in self._made.values():
                shutil.rmtree(other)
            self._made = {body: self._write(body)}
        return self._made[body]

    def _write(self, body: int) -> Path:
        """Another process fills a store and is killed as soon as it has put everything."""
        path = self._folder / f"left-{body}"
        path.mkdir(parents=True)
        how = [str(path), str(body), str(self._sizes.log_bytes), *pairs_of(self.settings())]
        order = [sys.executable, "-m", "bench.recovery", *how]
        with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = writer.stdout.readline().strip()
            os.kill(writer.pid, signal.SIGKILL)
        if said != _DONE:
            raise BenchFailed(f"the writer of the store failed: {said}")
        return path


def fill_log(store: MessageStore, body: int, log_bytes: int) -> None:
    """Puts messages, the same as in the suite `store`, until the log has `log_bytes`. Raises BenchFailed."""
    import pyarrow as pa

    done = 0
    while store.log.max_offset < log_bytes:
        numbers = range(done, done + _BATCH)
        columns = {
            "topic": [TOPIC] * _BATCH,
            "body": [bytes(body)] * _BATCH,
            "keys": [f"{PREFIX}{number}" for number in numbers],
            "tags": [TAG] * _BATCH,
            "queue_id": [number % QUEUES for number in numbers],
        }
        answer = store.put_arrow(pa.RecordBatch.from_pydict(columns))
        if not answer.ok:
            raise BenchFailed(f"a put was refused: {answer.reason}")
        done += _BATCH


def copy_sparse(source: str, target: str) -> str:
    """Copies what a file really holds, and its times; space that was never written stays a hole.

    Nothing is read ahead: pages that were read ahead count as written in the next copy.
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


def write_until_killed(folder: str, body: str, log_bytes: str, *pairs: str) -> None:
    store = MessageStore.open(Path(folder), Settings.load(pairs=list(pairs)))
    fill_log(store, int(body), int(log_bytes))
    store.catch_up()
    print(_DONE, flush=True)
    time.sleep(60)


if __name__ == "__main__":
    write_until_killed(*sys.argv[1:])
