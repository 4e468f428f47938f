"""Retention of one open store: its parts, put together."""

from __future__ import annotations

from collections.abc import Callable

from penstock.store.commit_log import CommitLog
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.deleted_topics import DeletedTopics
from penstock.store.dispatch import Dispatcher
from penstock.store.files import Files
from penstock.store.index import Index
from penstock.store.layout import Layout
from penstock.store.retention.ages import facts_of
from penstock.store.retention.cleaner import Cleaner
from penstock.store.retention.drop import Dropper
from penstock.store.retention.explain import disk_figures
from penstock.store.retention.figures import RetentionFigures
from penstock.store.retention.follow import Follower, LogOnlyFollower
from penstock.store.retention.gauge import DiskGauge, DiskWatcher
from penstock.store.retention.policy import Limits
from penstock.store.retention.topics import TopicCleaner
from penstock.store.running_flags import RunningFlags
from penstock.store.settings import BrokerRole, Dispatch, Settings
from penstock.store.worker import Worker


class Retention:
    """The cleaner, the disk's watcher and the deletion of topics."""

    def __init__(
        self,
        settings: Settings,
        files: Files,
        layout: Layout,
        clock: Callable[[], int],
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        dispatcher: Dispatcher,
        flags: RunningFlags,
        deleted_topics: DeletedTopics,
    ) -> None:
        self._io = files
        self._log = commit_log
        self.limits = Limits.of(settings)
        self.gauge = DiskGauge(files, layout)
        dropper = Dropper(clock, settings.destroy_mapped_file_interval_forcibly)
        self.cleaner = Cleaner(settings, files, clock, commit_log, dispatcher, self.gauge, dropper)
        external = settings.dispatch is Dispatch.EXTERNAL
        self.follower = self.cleaner.follower = (LogOnlyFollower if external else Follower)(
            files,
            layout,
            commit_log,
            queues,
            index,
            deleted_topics,
            dropper,
            dispatcher.standstill,
            self.cleaner.pause_in_queues,
        )
        self.watcher = DiskWatcher(self.gauge, self.limits, flags, self.cleaner.wake)
        parts = commit_log, queues, dispatcher, deleted_topics, self.cleaner.gate
        self.topics = TopicCleaner(files, layout, *parts, external=external)
        if settings.broker_role is BrokerRole.SLAVE and not external:
            dispatcher.on_restart(self.topics.begin_anew)

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
