"""The background threads of one open store: which there are, in what order they start and stop, who notices their end.

Dispatch starts first. Then come the flush of the log, the flush of queues and index, and retention; the deadlines of
waiting puts start when a role needs them. They stop in this order, but for dispatch, which stops after the flush of the
log, and the flush of queues and index, which stops last: so its last round covers all that was dispatched.

If an exception ends one of them, the store can no longer keep a promise. Then writes stop, and the reason names the
thread and the exception.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from penstock.store.derived_flush import DerivedFlusher
from penstock.store.engine_parts import Engine
from penstock.store.files.preallocate import Prefaulter
from penstock.store.flush import GroupCommit, LogSyncer, TimedCommit, TimedFlush
from penstock.store.settings import FlushDiskType
from penstock.store.worker_thread import Worker

log = logging.getLogger("penstock.store")


class StoreThreads:
    """The threads of a store. `stop_writes` is called with the reason when one of them has ended by an exception."""

    def __init__(self, engine: Engine, syncer: LogSyncer, stop_writes: Callable[[str], object]) -> None:
        self._engine = engine
        self._syncer = syncer
        self._stop_writes = stop_writes
        self._running = False
        self.workers: list[Worker] = []
        self.dead: dict[str, str] = {}
        """The threads that ended by an exception, each with that exception."""

    def add_flush(self) -> None:
        """Adds the threads that flush the log."""
        settings, commit_log = self._engine.settings, self._engine.log
        if settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self.add(GroupCommit(self._syncer, commit_log.watermarks))
            return
        flush = TimedFlush(settings, self._syncer)
        if settings.transient_pool_active:

            def committed() -> None:
                flush.wake()
                commit_log.watermarks.advance()

            self.add(TimedCommit(settings, commit_log.queue, committed))
        elif not settings.flush_commit_log_timed:
            self._engine.dispatcher.on_advance(flush.wake)
        self.add(flush)
        if Prefaulter.suits(settings.mapped_file_size_commit_log):
            prefaulter = Prefaulter(commit_log.queue)
            commit_log.on_page_need(prefaulter.wake)
            self.add(prefaulter)

    def add(self, *workers: Worker) -> None:
        """Adds threads. They start with `start`, or at once if that was called. Leaves known ones alone."""
        for worker in workers:
            if worker not in self.workers:
                self.workers.append(worker)
                worker.supervise(self.died)
                if self._running:
                    worker.start()

    def start(self) -> None:
        """Starts dispatch, then all threads that were added."""
        self._running = True
        self._engine.dispatcher.supervise(self.died)
        self._engine.dispatcher.start()
        for worker in self.workers:
            worker.start()

    def stop(self) -> bool:
        """Ends all threads after their last round. Returns whether they ran, and none of them has ever failed."""
        last = [worker for worker in self.workers if isinstance(worker, DerivedFlusher)]
        for worker in self.workers:
            if worker not in last:
                worker.stop()
        self._engine.dispatcher.stop()
        for worker in last:
            worker.stop()
        return self._running and not self.dead and all(worker.failure is None for worker in last)

    def died(self, name: str, error: BaseException) -> None:
        """Stops writes: a thread has ended. Called on that thread."""
        dead = {**self.dead, name: repr(error)}
        ended = ", ".join(f"{thread} ended ({why})" for thread, why in dead.items())
        with contextlib.suppress(Exception):  # a listener of the store's flags may be what failed
            self._stop_writes(f"the thread {ended}; restart the store")
        log.critical("the thread %s ended; the store accepts no more messages", name, exc_info=error)
        self.dead[name] = repr(error)  # last: the store refuses messages by the time that others see this
