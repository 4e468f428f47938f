"""The thread that deletes old files, a few at a time.

Every `cleanResourceInterval` it asks whether a pass is due: by the hour, by the disk, or because somebody asked. A pass
takes at most ten files of the log, oldest first, with a pause after each, and stops at the first that must stay. Before
a file goes that is not old, queues and index have followed and the disk is measured again, so that no more goes than
must. After a pass, or if a start or a reader left something to do, queues and index follow the log.

Passes are made one at a time, by this thread or by whoever calls `run`. What the disk refuses ends a pass with a
warning, and the next one tries again.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import msgspec

from penstock.errors import StoreFailed
from penstock.store.disk_errors import disk_refused
from penstock.store.engine import Engine
from penstock.store.mapped_file import MappedFile
from penstock.store.retention.ages import facts_of
from penstock.store.retention.drop import Dropper
from penstock.store.retention.follow import Follower
from penstock.store.retention.gauge import DiskGauge
from penstock.store.retention.policy import MOST_FILES_A_PASS, Cause, Level, Limits
from penstock.store.worker import Worker

log = logging.getLogger("penstock.store")

FIRST_PASS_SECONDS = 60.0
PASSES_ON_REQUEST = 20


class Gone(msgspec.Struct, frozen=True):
    """A file of the log that was deleted."""

    name: str
    size: int
    cause: Cause


class Cleaner(Worker):
    """Deletes; knows what it has deleted."""

    def __init__(
        self,
        engine: Engine,
        gauge: DiskGauge,
        gate: threading.Lock,
        follower_type: type[Follower],
    ) -> None:
        """`gate` is held during a pass, and by whoever removes queues."""
        settings, clock = engine.settings, engine.clock
        super().__init__("penstock-clean", settings.clean_resource_interval / 1000, first=FIRST_PASS_SECONDS)
        self._io = engine.io
        self._clock = clock
        self._log = engine.log
        self._dispatcher = engine.dispatcher
        self._gauge = gauge
        self._gate = gate
        self._dropper = Dropper(clock, settings.destroy_mapped_file_interval_forcibly)
        self.follower = follower_type(engine, self._dropper, self._pause_in_queues)
        self._limits = Limits.of(settings)
        self._log_pause = settings.delete_commit_log_files_interval / 1000
        self._queue_pause = settings.delete_consume_queue_files_interval / 1000
        self._hung_interval_ms = settings.redelete_hanged_file_interval
        self._hung_tried_ms = clock()
        self._requested = 0
        self.files_deleted = self.bytes_freed = self.passes = 0
        self.problem = ""
        """Why the last pass could not do all it should; empty if it could."""

    def request(self) -> None:
        """Has old files deleted at any hour: the next twenty passes are due, and the first comes now."""
        self._requested = PASSES_ON_REQUEST
        self.wake()

    def work(self) -> None:
        problem = ""
        try:
            self.run()
        except (OSError, StoreFailed) as error:
            if isinstance(error, OSError):
                error = disk_refused("cannot delete a file", Path(error.filename or self._log.queue.folder), 0, error)
            problem = str(error)
            if problem != self.problem:
                log.warning("old files could not be deleted, it is tried again: %s", problem)
        self.problem = problem

    def finish(self) -> None:
        """Nothing is left to do at the end."""

    def _pause_in_queues(self) -> bool:
        return self._stopping.wait(self._queue_pause)

    def run(self, *, on_request: bool = False) -> list[Gone]:
        """One pass, if one is due; returns the log's files that went. Raises OSError or StoreFailed."""
        with self._gate:
            gone: list[Gone] = []
            try:
                if self._is_due() or on_request:
                    self.passes += 1
                    self._delete_log_files(gone)
                self._try_hung_file(gone)
            finally:
                self.follower.follow()
            return gone

    def _is_due(self) -> bool:
        on_request, self._requested = self._requested > 0, max(self._requested - 1, 0)
        return on_request or self._limits.is_hour(self._clock()) or self._level() > Level.ROOMY

    def _level(self) -> Level:
        return self._limits.worst(self._gauge.measure())[0]

    # -- the log ---------------------------------------------------------------------------------------------

    def _delete_log_files(self, gone: list[Gone]) -> None:
        queue = self._log.queue
        while len(gone) < MOST_FILES_A_PASS and len(queue.files) > 1:
            if gone and gone[-1].cause is Cause.DISK:
                self.follower.follow()
            first = queue.files[0]
            safe = min(queue.flushed_where, self._dispatcher.position)
            cause = self._limits.cause(facts_of(self._io, first, safe_offset=safe), self._clock(), self._level())
            if cause is None or not self._dropper.drop_first(queue):
                return
            gone.append(self._count(first, cause))
            if self._stopping.wait(self._log_pause):
                return

    def _try_hung_file(self, gone: list[Gone]) -> None:
        """A file that was held when its time came goes when it can, whether or not a pass is due."""
        queue = self._log.queue
        first = queue.first
        if first is None or first.available or self._clock() - self._hung_tried_ms < self._hung_interval_ms:
            return
        self._hung_tried_ms = self._clock()
        if self._dropper.drop_first(queue):
            gone.append(self._count(first, Cause.AGE))

    def _count(self, file: MappedFile, cause: Cause) -> Gone:
        self.files_deleted += 1
        self.bytes_freed += file.size
        log.info("%s is deleted (%s)", file.path, cause.value)
        return Gone(file.path.name, file.size, cause)
