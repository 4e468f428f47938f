"""Makes the log's next pages ready before they are written to.

The first store into a page of a mapped file costs a page fault, several times what a small put costs otherwise. A
thread takes these faults ahead of the writer, a few megabytes at a time. The pages count as changed, so a sync
writes them once more than it must: with SYNC_FLUSH, where each put waits for a sync, nothing is done ahead.


Makes the log's next file before it is needed, so that a put at a file's end need not wait for the disk.

Taking the next file also asks for the one after it. A thread makes them in order of their offsets; a taker waits at
most five seconds. Files that nobody took are removed at a clean close; after a crash they are all zero and recovery
removes them. Warm-up touches and locks a file's pages, and the transient pool lends it a buffer, as RocketMQ's
settings say.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.store.io import FileMap, Files, lock_memory
from penstock.store.mapped_file import PAGE, MappedFile, TransientPool
from penstock.store.mapped_file_queue import MappedFileQueue, file_name
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.worker import Worker

AHEAD = 16 << 20
"""How far ahead of the writer pages are made ready; files smaller than four times this are left alone."""


class Prefaulter(Worker):
    """Follows the log's end, woken whenever half of what is ready has been used up."""

    def __init__(self, queue: MappedFileQueue) -> None:
        super().__init__("penstock-prefault", None)
        self._queue = queue
        self._ready = 0

    @staticmethod
    def suits(file_size: int) -> bool:
        return file_size >= 4 * AHEAD

    def work(self) -> None:
        file = self._queue.last
        if file is None or not file.hold():
            return
        try:
            start = max(file.wrote, self._ready - file.from_offset)
            stop = min(file.wrote + AHEAD, file.size)
            if start < stop:
                kernels.prefault(file.target, start, stop)
                self._ready = file.from_offset + stop
        finally:
            file.release()

    def finish(self) -> None:
        """Nothing is left to do at the end."""


log = logging.getLogger("penstock.store")
WAIT_SECONDS = 5.0


class Allocator:
    """Hands out new log files. One taker at a time (the put lock sees to that)."""

    def __init__(self, files: Files, settings: Settings, pool: TransientPool | None) -> None:
        self._io = files
        self._size = settings.mapped_file_size_commit_log
        self._settings = settings
        self._pool = pool
        self._ready: dict[Path, FileMap | StoreFailed] = {}
        self._wanted: list[Path] = []
        self._changed = threading.Condition()
        self._closed = False
        self._said_unlocked = False
        self._thread: threading.Thread | None = None
        if settings.pre_allocate_files and not files.read_only:
            self._thread = threading.Thread(target=self._run, name="penstock-allocate", daemon=True)
            self._thread.start()

    def take(self, path: Path, offset: int) -> MappedFile:
        """The file for `offset`. Raises StoreFailed if the disk has no room or the time is up."""
        buffer = None
        if self._pool is not None:
            buffer = self._pool.borrow()
            if buffer is None and self._settings.fast_fail_if_no_buffer_in_store_pool:
                raise StoreFailed(
                    "the transient pool has no free buffer, and fastFailIfNoBufferInStorePool is on; "
                    "try again, or raise transientStorePoolSize",
                    path=path,
                )
        try:
            file_map = self._take_ready(path, offset) if self._thread else self._make(path)
        except BaseException:
            if buffer is not None:
                buffer.give_back()
            raise
        file = MappedFile(file_map, offset)
        file.buffer = buffer
        return file

    def _take_ready(self, path: Path, offset: int) -> FileMap:
        after = path.with_name(file_name(offset + self._size))
        with self._changed:
            for wanted in (path, after):
                if isinstance(self._ready.get(wanted), StoreFailed):
                    del self._ready[wanted]  # an earlier attempt failed; there may be room now
                if wanted not in self._ready and wanted not in self._wanted:
                    self._wanted.append(wanted)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: path in self._ready, WAIT_SECONDS):
                raise StoreFailed(
                    f"no new file after {WAIT_SECONDS:g} seconds: the disk is too slow; "
                    "check what else it does, and try again",
                    path=path,
                )
            made = self._ready.pop(path)
        if isinstance(made, StoreFailed):
            raise made
        return made

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                path = min(self._wanted)
            made: FileMap | StoreFailed
            try:
                made = self._make(path)
            except StoreFailed as error:
                made = error
            with self._changed:
                self._wanted.remove(path)
                self._ready[path] = made
                self._changed.notify_all()

    def _make(self, path: Path) -> FileMap:
        made = self._io.create_map(path, self._size)
        if self._settings.warm_mapped_file_enable:
            self._warm(made)
        return made

    def _warm(self, made: FileMap) -> None:
        """Stores a zero into every page, so that the first put there meets no page fault."""
        sync = self._settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        every = self._settings.flush_least_pages_when_warm_mapped_file * PAGE
        for position in range(0, len(made), PAGE):
            made.view[position] = 0
            if sync and position and position % every == 0:
                made.sync()
        if not lock_memory(made.memory) and not self._said_unlocked:
            self._said_unlocked = True
            log.warning("%s: warmed but not locked in memory (see `ulimit -l`)", made.path)
        made.will_need()

    def close(self) -> None:
        """Stops the thread and removes files that were made and not taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for path, made in self._ready.items():
            if isinstance(made, FileMap):
                made.close()
                self._io.unlink(path)
        self._ready.clear()
