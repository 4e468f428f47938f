"""Retention of an open store: the thread that deletes old files, and the thread that refuses puts on a full disk.

`DiskWatcher` measures the disk once a second, independently of the cleaner, and accepts puts again as soon as there is
room. A disk that cannot be measured counts as roomy: nothing is refused or deleted on a guess.

`Cleaner` checks every `cleanResourceInterval` ms whether a pass is due: by the hour, by disk usage, or on request. A
pass deletes at most ten log files, oldest first, with a pause after each, and stops at the first file that must stay.
After it has deleted a file that is not old, it cleans queues and index and measures the disk again before the next
file, so that it deletes no more than necessary. Each pass ends by cleaning queues and index, including files that an
earlier pass had to leave.

Passes run one at a time, on the cleaner's thread or on that of a caller of `run`. A disk error ends a pass with a
warning; the next pass retries.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.errors import StoreFailed, disk_refused
from penstock.store.config_files import ConfigFiles
from penstock.store.engine_parts import Engine
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file import MappedFile
from penstock.store.put_and_get_statistics import RetentionFigures
from penstock.store.retention.derived import DerivedCleaner, Dropper
from penstock.store.retention.explain import Explainer, Outlook, disk_figures
from penstock.store.retention.policy import (
    MAX_FILES_A_PASS,
    Cause,
    DiskUsage,
    GroupOffsets,
    Level,
    LogFile,
    RetentionLimits,
    with_delivery,
)
from penstock.store.retention.topic_deletion import TopicCleaner
from penstock.store.running_flags import RunningFlags, StoreFault
from penstock.store.settings import Settings
from penstock.store.single_record_reader import RecordReader
from penstock.store.worker_thread import Worker

log = logging.getLogger("penstock.store")
MEASURE_SECONDS = 1.0


class DiskGauge:
    """Measures the log's partition, and the queues' partition if it is another one. Safe from any thread."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._io = files
        self._folders = (layout.commit_log, layout.consume_queue)
        self._last_warning: str | None = None

    def measure(self) -> list[DiskUsage]:
        """Returns the usage of each partition, the log's first; without partitions that cannot be measured."""
        usages: dict[int, DiskUsage] = {}
        try:
            for folder in map(self._nearest, self._folders):
                partition = self._io.partition(folder)
                if partition not in usages:
                    usages[partition] = DiskUsage(folder, *self._io.disk_usage(folder))
            self._last_warning = None
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            if why != self._last_warning:
                log.warning(
                    "the disk cannot be measured (%s); no puts are refused and no files deleted because of it", why
                )
            self._last_warning = why
        return list(usages.values())

    def _nearest(self, folder: Path) -> Path:
        """Returns the folder or its nearest existing parent: the first message creates the log's folder."""
        while not self._io.exists(folder) and folder != folder.parent:
            folder = folder.parent
        return folder


class DiskWatcher(Worker):
    """Sets and clears the running flag DISK_FULL. Calls `on_pressure` when files that are not old must be deleted."""

    def __init__(
        self, gauge: DiskGauge, limits: RetentionLimits, flags: RunningFlags, on_pressure: Callable[[], object]
    ) -> None:
        super().__init__("penstock-disk", MEASURE_SECONDS)
        self._gauge = gauge
        self._limits = limits
        self._flags = flags
        self._on_pressure = on_pressure
        self.level = Level.ROOMY

    def set_limits(self, limits: RetentionLimits) -> None:
        self._limits = limits

    def work(self) -> None:
        level, usage = self._limits.worst(self._gauge.measure())
        if usage is not None and level is Level.FULL:
            reason = self._limits.refusal(usage)
            if self.level is not Level.FULL:
                log.error("puts are refused: %s", reason)
            self._flags.raise_fault(StoreFault.DISK_FULL, reason)
        elif self.level is Level.FULL:
            self._flags.clear(StoreFault.DISK_FULL)
            log.warning("the disk has room again: puts are accepted")
        risen, self.level = level > self.level, level
        if risen and level >= Level.YOUNG_FILES_GO:
            self._on_pressure()

    def finish(self) -> None:
        """Nothing is left to do at the end."""


FIRST_PASS_SECONDS = 60.0
PASSES_ON_REQUEST = 20


class DeletedFile(msgspec.Struct, frozen=True):
    """A log file that was deleted."""

    name: str
    size: int
    cause: Cause


class Cleaner(Worker):
    """Deletes expired files, and counts them."""

    def __init__(
        self,
        engine: Engine,
        gauge: DiskGauge,
        gate: threading.Lock,
        derived_type: type[DerivedCleaner],
    ) -> None:
        """`gate` is held during a pass, and while `TopicCleaner` removes queues."""
        settings, clock = engine.settings, engine.clock
        super().__init__("penstock-clean", settings.clean_resource_interval / 1000, first=FIRST_PASS_SECONDS)
        self._io = engine.io
        self._clock = clock
        self._log = engine.log
        self._gauge = gauge
        self._gate = gate
        self._dropper = Dropper(clock, settings.destroy_mapped_file_interval_forcibly)
        self.derived = derived_type(engine, self._dropper, self._pause_in_queues)
        self._limits = RetentionLimits.of(settings)
        self._log_pause = settings.delete_commit_log_files_interval / 1000
        self._queue_pause = settings.delete_consume_queue_files_interval / 1000
        self._hung_interval_ms = settings.redelete_hanged_file_interval
        self._hung_tried_ms = clock()
        self._requested = 0
        self.files_deleted = self.bytes_freed = self.passes = 0
        self.problem = ""
        """Why the last pass failed; empty if it did not."""

    def set_limits(self, limits: RetentionLimits) -> None:
        """Applies to each file that is looked at from now on, also in a pass that runs."""
        self._limits = limits

    def request(self) -> None:
        """Makes the next twenty passes due at any hour, and starts the first one now."""
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
                log.warning("old files could not be deleted, will retry: %s", problem)
        self.problem = problem

    def finish(self) -> None:
        """Nothing is left to do at the end."""

    def _pause_in_queues(self) -> bool:
        return self._stopping.wait(self._queue_pause)

    def run(self, *, on_request: bool = False) -> list[DeletedFile]:
        """Runs a pass if it is due or `on_request`. Returns the deleted log files. Raises OSError or StoreFailed."""
        with self._gate:
            gone: list[DeletedFile] = []
            try:
                if self._is_due() or on_request:
                    self.passes += 1
                    self._delete_log_files(gone)
                self._try_hung_file(gone)
            finally:
                self.derived.clean()
            return gone

    def _is_due(self) -> bool:
        on_request, self._requested = self._requested > 0, max(self._requested - 1, 0)
        return on_request or self._limits.is_hour(self._clock()) or self._level() > Level.ROOMY

    def _level(self) -> Level:
        return self._limits.worst(self._gauge.measure())[0]

    # -- the log ---------------------------------------------------------------------------------------------

    def _delete_log_files(self, gone: list[DeletedFile]) -> None:
        queue = self._log.queue
        safe = min(queue.flushed_where, self.derived.dispatched())  # what comes later, `sync_queues` has not synced
        while len(gone) < MAX_FILES_A_PASS and len(queue.files) > 1:
            if gone and gone[-1].cause is Cause.DISK:
                self.derived.clean()
            first = queue.files[0]
            cause = self._limits.cause(LogFile.of(self._io, first, safe_offset=safe), self._clock(), self._level())
            if cause is None:
                return
            if not gone:
                self.derived.sync_queues()
            if not self._dropper.drop_first(queue):
                return
            gone.append(self._count(first, cause))
            if self._stopping.wait(self._log_pause):
                return

    def _try_hung_file(self, gone: list[DeletedFile]) -> None:
        """Retries the deletion of a file that readers held, whether or not a pass is due."""
        queue = self._log.queue
        first = queue.first
        if first is None or first.available or self._clock() - self._hung_tried_ms < self._hung_interval_ms:
            return
        self._hung_tried_ms = self._clock()
        if self._dropper.drop_first(queue):
            gone.append(self._count(first, Cause.AGE))

    def _count(self, file: MappedFile, cause: Cause) -> DeletedFile:
        self.files_deleted += 1
        self.bytes_freed += file.size
        log.info("deleted %s (%s)", file.path, cause.value)
        return DeletedFile(file.path.name, file.size, cause)


class Retention:
    """The cleaner, the disk watcher and the deletion of topics."""

    def __init__(
        self, engine: Engine, topics: TopicCleaner, derived_type: type[DerivedCleaner] = DerivedCleaner
    ) -> None:
        """`derived_type`: the class that cleans queues and index."""
        self._io = engine.io
        self._log = engine.log
        self.limits = RetentionLimits.of(engine.settings)
        self.gauge = DiskGauge(engine.io, engine.layout)
        self.topics = topics
        self.cleaner = Cleaner(engine, self.gauge, topics.gate, derived_type)
        self.derived = self.cleaner.derived
        self.watcher = DiskWatcher(self.gauge, self.limits, engine.flags, self.cleaner.wake)

    def change_settings(self, settings: Settings) -> None:
        """Applies changed ages, hours and ratios from now on. Any thread may call this."""
        self.limits = limits = RetentionLimits.of(settings)
        self.cleaner.set_limits(limits)
        self.watcher.set_limits(limits)

    def threads(self) -> list[Worker]:
        """Returns the threads to start. Measures the disk once, so that a full disk refuses even the first put."""
        self.watcher.work()
        return [self.watcher, self.cleaner]

    def figures(self) -> RetentionFigures:
        files = self._log.queue.files
        return RetentionFigures(
            disk=[disk_figures(usage, self.limits) for usage in self.gauge.measure()],
            next_expiry_ms=self.limits.expires_ms(LogFile.of(self._io, files[0], safe_offset=0)) if files[1:] else -1,
            log_files_deleted=self.cleaner.files_deleted,
            derived_files_deleted=self.derived.files_deleted,
            bytes_freed=self.cleaner.bytes_freed + self.derived.bytes_freed,
            problem=self.cleaner.problem,
        )


def explain_retention(
    engine: Engine, settings: Settings, records: RecordReader, offsets: GroupOffsets | None
) -> Outlook:
    """See `MessageStore.explain_retention`. `settings` are those in force. Raises BadStore if a config file is bad."""
    if offsets is None:
        config = ConfigFiles(engine.io, engine.layout.config)
        read, delivered = config.consumer_offsets.read().table, config.delay_offsets.read().table
        offsets = with_delivery(read.offsets, delivered.offsets)
    usages = DiskGauge(engine.io, engine.layout).measure()
    return Explainer(engine, records, RetentionLimits.of(settings)).explain(engine.clock(), usages, offsets)
