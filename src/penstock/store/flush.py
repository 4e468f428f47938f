"""Flushing the commit log: who brings appended records to disk, and when.

`GroupCommit` (SYNC_FLUSH) syncs once for all puts that wait, on the thread of one of them. `TimedFlush` (ASYNC_FLUSH)
syncs the log every 500 ms if it has grown by at least four pages, and every ten seconds however little it has grown;
these are the defaults. Both sync through one `LogSyncer`. `TimedCommit` copies the transient pool's buffers into the
files, which are synced later.

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

from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.settings import Settings
from penstock.store.watermarks import Watermarks
from penstock.store.worker_thread import Worker

log = logging.getLogger("penstock.store")

SLOW_SYNC_SECONDS = 0.5


class FlushFailed(Exception):
    """The log could not be synced."""


class LogSyncer:
    """The only way to sync the log. One thread at a time syncs. After a failure every later sync fails, too."""

    def __init__(
        self,
        queue: MappedFileQueue,
        watermarks: Watermarks,
        flushed: Callable[[int], object],
        failed: Callable[[str], object],
    ) -> None:
        self._queue = queue
        self._watermarks = watermarks
        self._flushed = flushed
        self._failed = failed
        self._gate = threading.Lock()
        self._is_stopped = False

    def stop(self) -> None:
        """Ends all syncing, because the files are about to be closed. Returns when no sync is running."""
        with self._gate:
            self._is_stopped = True

    def sync(self, least_pages: int, *, all_files: bool) -> None:
        """Syncs the log if it has grown by `least_pages`, then advances the watermarks. Raises FlushFailed.

        Before that it calls `flushed` with the store time in ms up to which the log is on disk; or `failed` with the
        reason if the sync failed. With `all_files` every file up to the current end of the log is synced, not only the
        first dirty file. Records appended during the sync are left to the next one: otherwise steady puts would keep
        this sync running, and no waiting put would be acked. After `stop` nothing happens.
        """
        with self._gate:
            if self._watermarks.failure is not None:
                raise FlushFailed(self._watermarks.failure)
            if self._is_stopped:
                return
            started = time.monotonic()
            self._watermarks.sync_began(started)
            try:
                end = self._queue.max_offset
                moved = self._queue.flush(least_pages)
                while moved and all_files and self._queue.flushed_where < end:
                    moved = self._queue.flush(least_pages)
            except Exception as error:  # whatever it is: that the bytes are on disk is not known, and never will be
                why = error.strerror if isinstance(error, OSError) else repr(error)
                failure = f"the log could not be synced ({why}): puts are refused until a restart"
                log.error("%s: %s", self._queue.folder, failure)
                self._failed(failure)
                self._watermarks.fail(failure)
                raise FlushFailed(failure) from error
            finally:
                self._watermarks.sync_began(None)
            took = time.monotonic() - started
        if took > SLOW_SYNC_SECONDS:
            log.warning("%s: slow flush, %.0f ms", self._queue.folder, took * 1000)
        self._flushed(self._queue.store_timestamp)
        self._watermarks.advance()


class GroupCommit(Worker):
    """SYNC_FLUSH: one sync for all puts that wait for the disk. The watermarks choose the thread that leads it.

    A put that blocks leads on its own thread (`lead`). This worker's thread leads for callers that do not block: event
    loops, `put_async`, replicas, and messages that ask not to wait.
    """

    def __init__(self, syncer: LogSyncer, watermarks: Watermarks) -> None:
        super().__init__("penstock-group-commit", None)
        self._syncer = syncer
        self._watermarks = watermarks
        watermarks.on_lead(self.lead, self.wake)

    def lead(self) -> None:
        """Syncs the log on the thread of a put. A listener that fails stops writes, as if it had ended this worker.

        What interrupts the thread from outside, such as KeyboardInterrupt, leaves; then the flush thread syncs again.
        """
        try:
            self._sync()
        except Exception as error:
            if self._died is None:
                raise
            self._died(self._thread.name, error)

    def work(self) -> None:
        self._sync()
        self._watermarks.pass_lead()

    def finish(self) -> None:
        self._sync()

    def _sync(self) -> None:
        try:
            self._syncer.sync(0, all_files=True)
        except FlushFailed:  # logged by the syncer, and the waiting puts have the reason
            return


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
        with contextlib.suppress(FlushFailed):  # logged by the syncer, and remembered by the watermarks
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
