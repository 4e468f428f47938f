"""Flushing the derived files: a thread syncs queues and index, then advances the checkpoint.

By default, the thread syncs every second the queues that have grown by a few pages, and full index files. Every minute
it runs a thorough round: it syncs all queues and the whole index, then writes the dispatch state, then the checkpoint.
The values of both files are taken before the sync, so they never promise more than is on disk.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from penstock.errors import StoreFailed
from penstock.store.checkpoint import CheckpointFile
from penstock.store.dispatch_checkpoint import DispatchNotes
from penstock.store.engine_parts import Engine
from penstock.store.put_and_get_statistics import Statistics
from penstock.store.worker_thread import Worker

log = logging.getLogger("penstock.store")


class DerivedFlusher(Worker):
    """The thread that syncs queues, index and checkpoint. Its last round is thorough. A failure ends all syncing."""

    def __init__(
        self,
        engine: Engine,
        checkpoint: CheckpointFile,
        notes: DispatchNotes,
        statistics: Statistics,
        failed: Callable[[str], None],
    ) -> None:
        settings = engine.settings
        super().__init__("penstock-derived-flush", settings.flush_interval_consume_queue / 1000)
        self._engine = engine
        self._derived = engine.derived
        self._checkpoint = checkpoint
        self._notes = notes
        self._dispatcher = engine.dispatcher
        self._statistics = statistics
        self._pages = settings.flush_consume_queue_least_pages
        self._thorough = settings.flush_consume_queue_thorough_interval / 1000
        self._last_thorough = time.monotonic()
        self._failed = failed
        self.failure: str | None = None

    def work(self) -> None:
        self._statistics.sample()
        thorough = time.monotonic() - self._last_thorough >= self._thorough
        self._round(thorough)

    def finish(self) -> None:
        self._round(True)

    def _round(self, thorough: bool) -> None:
        if self.failure is not None:
            return
        try:
            self._flush(thorough)
            if thorough:
                self._last_thorough = time.monotonic()
        except (OSError, StoreFailed) as error:
            why = error.strerror if isinstance(error, OSError) else error
            self.failure = f"queues, index or checkpoint could not be synced ({why}): puts are refused until a restart"
            log.error("%s", self.failure)
            self._failed(self.failure)

    def _flush(self, thorough: bool) -> None:
        dispatched = self._dispatcher.timestamp
        state = self._notes.snapshot() if thorough else None
        for queue in self._derived.queues:
            queue.flush(0 if thorough else self._pages)
        index = self._derived.index
        indexed = 0 if index is None else index.sync(everything=thorough)
        if state is not None:
            with contextlib.suppress(StoreFailed):  # with an older state the next start only takes longer
                self._notes.write(state)
        if indexed:
            self._checkpoint.set_index(indexed)
        if thorough:
            self._checkpoint.set_queues(dispatched)
        if thorough or indexed:
            if self._engine.epochs.entries:  # else the bytes may be RocketMQ 5's
                self._checkpoint.set_confirmed(self._engine.log.watermarks.confirmed)
            self._checkpoint.write()


class CheckpointFlusher(DerivedFlusher):
    """The flusher for dispatch=external: writes only the checkpoint. Another process syncs queues and index."""

    def _flush(self, thorough: bool) -> None:
        if thorough:
            self._checkpoint.set_queues(self._dispatcher.timestamp)
            self._checkpoint.set_index(self._dispatcher.timestamp)
            self._checkpoint.write()
