"""How full the disk is, and the thread that refuses puts while it is full.

The watcher looks once a second, whatever the cleaner is doing, and takes puts again by itself as soon as there is room,
whoever made it. A disk that cannot be measured is taken for a roomy one: nothing is refused or deleted on a guess.


The thread that deletes old files, a few at a time.

Every `cleanResourceInterval` it asks whether a pass is due: by the hour, by the disk, or because somebody asked. A pass
takes at most ten files of the log, oldest first, with a pause after each, and stops at the first that must stay. Before
a file goes that is not old, queues and index have followed and the disk is measured again, so that no more goes than
must. After a pass, or if a start or a reader left something to do, queues and index follow the log.

Passes are made one at a time, by this thread or by whoever calls `run`. What the disk refuses ends a pass with a
warning, and the next one tries again.


Retention of one open store: its parts, put together, and what it would do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.errors import StoreFailed, disk_refused
from penstock.store.config_files import ConfigFiles
from penstock.store.engine import Engine
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.mapped_file import MappedFile
from penstock.store.records import RecordReader
from penstock.store.retention.derived import DerivedCleaner, Dropper
from penstock.store.retention.explain import Explainer, Outlook, disk_figures
from penstock.store.retention.policy import (
    MAX_FILES_A_PASS,
    Cause,
    DiskUsage,
    GroupOffsets,
    Level,
    RetentionLimits,
    facts_of,
    with_delivery,
)
from penstock.store.retention.topics import TopicCleaner
from penstock.store.running_flags import RunningFlags, StoreFault
from penstock.store.statistics import RetentionFigures
from penstock.store.worker import Worker

log = logging.getLogger("penstock.store")
LOOK_SECONDS = 1.0


class DiskGauge:
    """Measures the log's partition, and that of the queues if it is another. Safe from any thread."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._io = files
        self._folders = (layout.commit_log, layout.consume_queue)
        self._said: str | None = None

    def measure(self) -> list[DiskUsage]:
        """The log's partition first; without those that cannot be measured."""
        found: dict[int, DiskUsage] = {}
        try:
            for folder in map(self._nearest, self._folders):
                partition = self._io.partition(folder)
                if partition not in found:
                    found[partition] = DiskUsage(folder, *self._io.disk_usage(folder))
            self._said = None
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            if why != self._said:
                log.warning("the disk cannot be measured (%s); it is taken for a roomy one", why)
            self._said = why
        return list(found.values())

    def _nearest(self, folder: Path) -> Path:
        """The folder, or the one above it that exists: before the first message there is no log."""
        while not self._io.exists(folder) and folder != folder.parent:
            folder = folder.parent
        return folder


class DiskWatcher(Worker):
    """Keeps the running flag DISK_FULL true, and tells when files should go."""

    def __init__(
        self, gauge: DiskGauge, limits: RetentionLimits, flags: RunningFlags, pressed: Callable[[], object]
    ) -> None:
        super().__init__("penstock-disk", LOOK_SECONDS)
        self._gauge = gauge
        self._limits = limits
        self._flags = flags
        self._pressed = pressed
        self.level = Level.ROOMY

    def work(self) -> None:
        level, usage = self._limits.worst(self._gauge.measure())
        if usage is not None and level is Level.FULL:
            reason = self._limits.refusal(usage)
            if self.level is not Level.FULL:
                log.error("puts are refused: %s", reason)
            self._flags.raise_fault(StoreFault.DISK_FULL, reason)
        elif self.level is Level.FULL:
            self._flags.clear(StoreFault.DISK_FULL)
            log.warning("the disk has room again: puts are taken")
        risen, self.level = level > self.level, level
        if risen and level >= Level.YOUNG_FILES_GO:
            self._pressed()

    def finish(self) -> None:
        """Nothing is left to do at the end."""


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
        follower_type: type[DerivedCleaner],
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
        self._limits = RetentionLimits.of(settings)
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
        while len(gone) < MAX_FILES_A_PASS and len(queue.files) > 1:
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


class Retention:
    """The cleaner, the disk's watcher and the deletion of topics."""

    def __init__(
        self, engine: Engine, topics: TopicCleaner, follower_type: type[DerivedCleaner] = DerivedCleaner
    ) -> None:
        """`follower_type` brings queues and index in line with the log's beginning."""
        self._io = engine.io
        self._log = engine.log
        self.limits = RetentionLimits.of(engine.settings)
        self.gauge = DiskGauge(engine.io, engine.layout)
        self.topics = topics
        self.cleaner = Cleaner(engine, self.gauge, topics.gate, follower_type)
        self.follower = self.cleaner.follower
        self.watcher = DiskWatcher(self.gauge, self.limits, engine.flags, self.cleaner.wake)

    def threads(self) -> list[Worker]:
        """What is to be started; the disk has been looked at once, so a full one refuses puts from the first on."""
        self.watcher.work()
        return [self.watcher, self.cleaner]

    def figures(self) -> RetentionFigures:
        files = self._log.queue.files
        return RetentionFigures(
            disk=[disk_figures(usage, self.limits) for usage in self.gauge.measure()],
            next_expiry_ms=self.limits.expires_ms(facts_of(self._io, files[0], safe_offset=0)) if files[1:] else -1,
            log_files_deleted=self.cleaner.files_deleted,
            derived_files_deleted=self.follower.files_deleted,
            bytes_freed=self.cleaner.bytes_freed + self.follower.bytes_freed,
            problem=self.cleaner.problem,
        )


def explain_retention(engine: Engine, records: RecordReader, offsets: GroupOffsets | None) -> Outlook:
    """See `MessageStore.explain_retention`. Raises BadStore if a config file cannot be read."""
    if offsets is None:
        config = ConfigFiles(engine.io, engine.layout.config)
        read, delivered = config.consumer_offsets.read().table, config.delay_offsets.read().table
        offsets = with_delivery(read.offsets, delivered.offsets)
    usages = DiskGauge(engine.io, engine.layout).measure()
    return Explainer(engine, records).explain(engine.clock(), usages, offsets)
