"""Flushing the commit log: the threads that bring appended records to disk.

`GroupCommit` (SYNC_FLUSH) acks all waiting puts after one sync. `TimedFlush` (ASYNC_FLUSH) syncs the log every 500 ms
if it has grown by at least four pages, and every ten seconds however little it has grown; these are the defaults. Both
sync through one `LogSyncer`. `TimedCommit` copies the transient pool's buffers into the files, which are synced later.

A failed sync is final: the kernel may have dropped the dirty pages, so a retry could succeed without having written
them. Waiting puts get an error, and the store refuses puts until a restart. `derived_flush.py` flushes queues and
index.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.settings import Settings
from penstock.store.worker import Worker

log = logging.getLogger("penstock.store")

SLOW_SYNC_SECONDS = 0.5


class FlushFailed(Exception):
    """The log could not be synced."""


class LogSyncer:
    """The only way to sync the log. One thread at a time syncs. After a failure every later sync fails, too."""

    def __init__(self, queue: MappedFileQueue, flushed: Callable[[int], None], failed: Callable[[str], None]) -> None:
        self._queue = queue
        self._flushed = flushed
        self._failed = failed
        self.failure: str | None = None
        self._gate = threading.Lock()

    def sync(self, least_pages: int, *, all_files: bool) -> None:
        """Syncs the log if it has grown by `least_pages`, then calls `flushed`. Raises FlushFailed.

        `flushed` gets the store time in ms up to which the log is on disk. With `all_files` every file up to the
        current end of the log is synced, not only the first dirty file. Records appended during the sync are left to
        the next one: otherwise steady puts would keep this sync running, and no waiting put would be acked.
        """
        with self._gate:
            if self.failure is not None:
                raise FlushFailed(self.failure)
            started = time.monotonic()
            try:
                end = self._queue.max_offset
                moved = self._queue.flush(least_pages)
                while moved and all_files and self._queue.flushed_where < end:
                    moved = self._queue.flush(least_pages)
            except OSError as error:
                self.failure = f"the log could not be synced ({error.strerror}): puts are refused until a restart"
                log.error("%s: %s", self._queue.folder, self.failure)
                self._failed(self.failure)
                raise FlushFailed(self.failure) from error
            took = time.monotonic() - started
        if took > SLOW_SYNC_SECONDS:
            log.warning("%s: slow flush, %.0f ms", self._queue.folder, took * 1000)
        self._flushed(self._queue.store_timestamp)


class GroupCommit(Worker):
    """The flush thread of SYNC_FLUSH: one sync acks all puts that wait for the disk."""

    def __init__(self, queue: MappedFileQueue, syncer: LogSyncer) -> None:
        super().__init__("penstock-group-commit", None)
        self._queue = queue
        self._syncer = syncer
        self._waiting: list[tuple[int, Future[None]]] = []
        self._finished = False
        self._gate = threading.Lock()

    def submit(self, end_offset: int) -> Future[None]:
        """Returns a future that completes once the log is on disk up to `end_offset`, or fails with FlushFailed."""
        future: Future[None] = Future()
        with self._gate:
            finished = self._finished
            if not finished:
                self._waiting.append((end_offset, future))
        if finished:
            self._complete([(end_offset, future)], None)
        else:
            self.wake()
        return future

    def work(self) -> None:
        with self._gate:
            waiting, self._waiting = self._waiting, []
        failure: FlushFailed | None = None
        try:
            self._syncer.sync(0, all_files=True)
        except FlushFailed as error:
            failure = error
        self._complete(waiting, failure)

    def finish(self) -> None:
        """Syncs everything appended so far. Futures of later submits complete or fail at once."""
        self.work()
        with self._gate:
            self._finished = True
            waiting, self._waiting = self._waiting, []
        self._complete(waiting, None)

    def _complete(self, waiting: list[tuple[int, Future[None]]], failure: FlushFailed | None) -> None:
        for end_offset, future in waiting:
            if self._queue.flushed_where >= end_offset:
                future.set_result(None)
            else:
                future.set_exception(failure or FlushFailed(f"the log is not on disk up to {end_offset}"))


class TimedFlush(Worker):
    """The flush thread of ASYNC_FLUSH: syncs at intervals. At longer intervals it syncs however few pages are dirty."""

    def __init__(self, settings: Settings, syncer: LogSyncer) -> None:
        timed = settings.flush_commit_log_timed
        super().__init__("penstock-flush", settings.flush_interval_commit_log / 1000, wakeable=not timed)
        self._syncer = syncer
        self._pages = settings.flush_commit_log_least_pages
        self._thorough = settings.flush_commit_log_thorough_interval / 1000
        self._last_thorough = time.monotonic()

    def work(self) -> None:
        pages = self._pages
        if time.monotonic() - self._last_thorough >= self._thorough:
            self._last_thorough, pages = time.monotonic(), 0
        self._sync(pages)

    def finish(self) -> None:
        self._sync(0)

    def _sync(self, pages: int) -> None:
        with contextlib.suppress(FlushFailed):  # logged and remembered by the syncer
            self._syncer.sync(pages, all_files=True)


class TimedCommit(Worker):
    """The commit thread of the transient pool: copies its buffers into the files at intervals."""

    def __init__(self, settings: Settings, queue: MappedFileQueue, committed: Callable[[], None]) -> None:
        super().__init__("penstock-commit", settings.commit_interval_commit_log / 1000)
        self._queue = queue
        self._pages = settings.commit_commit_log_least_pages
        self._thorough = settings.commit_commit_log_thorough_interval / 1000
        self._last = time.monotonic()
        self._committed = committed

    def work(self) -> None:
        pages = self._pages
        if time.monotonic() - self._last >= self._thorough:
            pages = 0
        moved = self._queue.commit(pages)
        while moved:
            self._last = time.monotonic()
            self._committed()
            moved = self._queue.commit(pages)

    def finish(self) -> None:
        self._queue.commit_all()
        self._committed()
