"""Retention of one open store: its parts, put together, and what it would do."""

from __future__ import annotations

from penstock.store.config_files import ConfigFiles
from penstock.store.engine import Engine
from penstock.store.records import Records
from penstock.store.retention.ages import facts_of
from penstock.store.retention.cleaner import Cleaner
from penstock.store.retention.explain import Explainer, Outlook, disk_figures
from penstock.store.retention.figures import RetentionFigures
from penstock.store.retention.follow import Follower
from penstock.store.retention.gauge import DiskGauge, DiskWatcher
from penstock.store.retention.policy import Limits
from penstock.store.retention.topics import TopicCleaner
from penstock.store.retention.unread import GroupOffsets, with_delivery
from penstock.store.worker import Worker


class Retention:
    """The cleaner, the disk's watcher and the deletion of topics."""

    def __init__(self, engine: Engine, topics: TopicCleaner, follower_type: type[Follower] = Follower) -> None:
        """`follower_type` brings queues and index in line with the log's beginning."""
        self._io = engine.io
        self._log = engine.log
        self.limits = Limits.of(engine.settings)
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


def explain_retention(engine: Engine, records: Records, offsets: GroupOffsets | None) -> Outlook:
    """See `MessageStore.explain_retention`. Raises BadStore if a config file cannot be read."""
    if offsets is None:
        config = ConfigFiles(engine.io, engine.layout.config)
        read, delivered = config.consumer_offsets.read().table, config.delay_offsets.read().table
        offsets = with_delivery(read.offsets, delivered.offsets)
    usages = DiskGauge(engine.io, engine.layout).measure()
    return Explainer(engine, records).explain(engine.clock(), usages, offsets)
