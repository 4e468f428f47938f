"""Prepares the log's next file and next pages before appends need them.

`Allocator` creates log files ahead, so that a put at a file's end need not wait for the disk. A request for a file also
requests the file after it; after a start, the next file is requested once the last one is half full. A thread creates
the files in order of their offsets; a caller waits at most five seconds, or a few milliseconds if it must not block. A
clean close removes files that were not used. After a crash such files are all zero, and recovery removes them. With
growLogFiles a new file has few disk blocks; `CommitLog` gets more as it appends. warmMapedFileEnable makes the
allocator touch and lock a new file's pages. transientStorePoolEnable makes it attach a pool buffer.

`Prefaulter` takes the page faults of a mapped file ahead of the writer, some megabytes at a time. The first store into
a page costs several times as much as a small put. Prefaulted pages count as dirty, so a sync writes them once more than
needed. Therefore the prefaulter does not run under SYNC_FLUSH, where each put waits for a sync.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from penstock.errors import StoreFailed, disk_refused
from penstock.format import kernels
from penstock.store.files.file_io import FileMap, Files, lock_memory
from penstock.store.files.mapped_file import PAGE, MappedFile, TransientPool
from penstock.store.files.mapped_file_queue import STEP, MappedFileQueue, file_name
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.worker_thread import Died, Worker, reporting_death

log = logging.getLogger("penstock.store")
WAIT_SECONDS = 5.0
AT_ONCE_SECONDS = 0.005
"""How long a caller that must not block waits for a file."""
CHECK_SECONDS = 1.0
MIN_PREPARED_SIZE = 64 << 20
"""The next file is requested at half of the last one if files have at least this size; smaller ones take no time."""
AHEAD = 16 << 20
"""Bytes that are prefaulted ahead of the writer. Files smaller than four times this are not prefaulted."""


class FileNotReady(StoreFailed):
    """A new file was not created in time."""


class Allocator:
    """Creates log files ahead and hands them out. Only the holder of the put lock may call `allocate`."""

    def __init__(self, files: Files, settings: Settings, pool: TransientPool | None, died: Died | None = None) -> None:
        """`died` is called, on the allocator's thread, if an exception ends it."""
        self._io = files
        self._died = died
        self._size = settings.mapped_file_size_commit_log
        self._settings = settings
        self._pool = pool
        self._ready: dict[Path, FileMap | StoreFailed] = {}
        self._wanted: list[Path] = []
        self._changed = threading.Condition()
        self._last: MappedFile | None = None
        """The last file of the log; the thread requests the next one in time."""
        self._closed = False
        self._ended = False
        self._warned_unlocked = False
        self._thread: threading.Thread | None = None
        if settings.pre_allocate_files and not files.read_only:
            self._thread = threading.Thread(target=self._run, name="penstock-allocate", daemon=True)
            self._thread.start()

    def follow(self, last: MappedFile) -> None:
        """Names the file that the log ends with after a start."""
        self._last = last

    def allocate(self, path: Path, offset: int, *, at_once: bool = False) -> MappedFile:
        """Returns a new file whose first byte has this offset. With `at_once` it waits only a few milliseconds.

        Raises StoreFailed if the disk has no room, or the transient pool must have a free buffer and has none, and
        FileNotReady if the wait times out. The file will be ready for a later call.
        """
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
            if self._thread is None:
                file_map = self._create(path)
            else:
                file_map = self._wait_for(path, offset, AT_ONCE_SECONDS if at_once else WAIT_SECONDS)
        except BaseException:
            if buffer is not None:
                buffer.release()
            raise
        file = MappedFile(file_map, offset)
        file.buffer = buffer
        self._last = file
        return file

    def _wait_for(self, path: Path, offset: int, seconds: float) -> FileMap:
        with self._changed:
            self._request(path)
            self._request(path.with_name(file_name(offset + self._size)))
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: path in self._ready or self._ended, seconds):
                raise FileNotReady(
                    f"no new file after {seconds:g} seconds: the disk is too slow; "
                    "check what else it does, and try again",
                    path=path,
                )
            result = self._ready.pop(path, None)
        if result is None:
            raise StoreFailed(
                "the thread that creates log files has ended; close the store and open it again", path=path
            )
        if isinstance(result, StoreFailed):
            raise result
        return result

    def _request(self, path: Path) -> None:
        if isinstance(self._ready.get(path), StoreFailed):
            del self._ready[path]  # an earlier attempt failed; the disk may have room now
        if path not in self._ready and path not in self._wanted:
            self._wanted.append(path)

    def _request_next(self) -> None:
        """Requests the file after the last one if that is half full, unless an earlier request failed."""
        last = self._last
        if last is not None and self._size >= MIN_PREPARED_SIZE and last.wrote >= self._size // 2:
            path = last.path.with_name(file_name(last.from_offset + self._size))
            if path not in self._ready:
                self._request(path)

    def _run(self) -> None:
        try:
            with reporting_death("penstock-allocate", self._died):
                self._create_wanted()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _create_wanted(self) -> None:
        while True:
            with self._changed:
                while not self._wanted and not self._closed:
                    self._changed.wait(CHECK_SECONDS)
                    self._request_next()
                if self._closed:
                    return
                path = min(self._wanted)
            result: FileMap | StoreFailed
            try:
                result = self._create(path)
            except StoreFailed as error:
                result = error
            except OSError as error:
                result = disk_refused("cannot prepare the next log file", path, self._size, error)
            except Exception as error:  # one file fails; the next put may succeed
                log.exception("cannot prepare the next log file")
                result = StoreFailed(f"cannot prepare the next log file: {error!r}; see the log", path=path)
            with self._changed:
                self._wanted.remove(path)
                self._ready[path] = result
                self._changed.notify_all()

    def _create(self, path: Path) -> FileMap:
        allocated = STEP if self._settings.log_grows else self._size
        file_map = self._io.create_map(path, self._size, allocated=allocated)
        if self._settings.warm_mapped_file_enable:
            try:
                self._warm_up(file_map)
            except BaseException:  # the file is new and was never handed out
                file_map.close()
                with contextlib.suppress(OSError):
                    self._io.unlink(path)
                raise
        return file_map

    def _warm_up(self, file_map: FileMap) -> None:
        """Stores a zero into every page and locks the pages in memory, so that puts meet no page fault."""
        sync = self._settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        every = self._settings.flush_least_pages_when_warm_mapped_file * PAGE
        for position in range(0, len(file_map), PAGE):
            file_map.view[position] = 0
            if sync and position and position % every == 0:
                file_map.sync()
        if not lock_memory(file_map.memory) and not self._warned_unlocked:
            self._warned_unlocked = True
            log.warning("%s: warmed but not locked in memory (see `ulimit -l`)", file_map.path)
        file_map.will_need()

    def close(self) -> None:
        """Stops the thread. Deletes the files that were created but not handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for path, result in self._ready.items():
            if isinstance(result, FileMap):
                result.close()
                self._io.unlink(path)
        self._ready.clear()


class Prefaulter(Worker):
    """A thread that prefaults pages after the log's end. It is woken when half of the prefaulted pages are used."""

    def __init__(self, queue: MappedFileQueue) -> None:
        super().__init__("penstock-prefault", None)
        self._queue = queue
        self._ready = 0

    @staticmethod
    def suits(file_size: int) -> bool:
        return file_size >= 4 * AHEAD

    def work(self) -> None:
        file = self._queue.last
        if file is None or not file.acquire():
            return
        try:
            start = max(file.wrote, self._ready - file.from_offset)
            stop = min(file.wrote + AHEAD, file.map.reserved)
            if start < stop:
                kernels.prefault(file.target, start, stop)
                self._ready = file.from_offset + stop
        finally:
            file.release()

    def finish(self) -> None:
        """Does nothing: no page is needed any more."""
