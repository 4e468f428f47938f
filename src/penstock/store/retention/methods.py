"""What MessageStore offers of retention: having things deleted, and being told what would be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from threading import Lock

from penstock.errors import StoreFailed
from penstock.store.commit_log import CommitLog
from penstock.store.config_files import ConfigFiles
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.deleted_topics import DeletedTopics
from penstock.store.dispatch import Dispatcher
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.records import Records
from penstock.store.retention.explain import Explainer, Outlook
from penstock.store.retention.gauge import DiskGauge
from penstock.store.retention.policy import Limits
from penstock.store.retention.retention import Retention
from penstock.store.retention.topics import ALWAYS_KEPT, TopicCleaner
from penstock.store.retention.unread import GroupOffsets, with_delivery
from penstock.store.settings import BrokerRole, Settings


class RetentionMethods:
    """The part of MessageStore that deletes."""

    settings: Settings
    layout: Layout
    log: CommitLog
    queues: ConsumeQueues
    dispatcher: Dispatcher
    records: Records
    _io: Files
    _clock: Callable[[], int]
    _deleted_topics: DeletedTopics
    retention: Retention | None
    """Of a store that was not opened read-only."""

    def catch_up(self) -> None:
        raise NotImplementedError("the store says how far it is")

    def delete_expired(self) -> None:
        """Has files deleted that are older than fileReservedTime, at any hour; returns at once, a thread does it."""
        self._open_retention().cleaner.request()

    def delete_topic(self, topic: str) -> bool:
        """Deletes a topic's queues for good; False if there is no such topic. Its messages stay in the log's files.

        They are no longer got, but still found by key, until those files go. What is put under the name from now on
        begins at queue offset 0. Raises StoreFailed: then nothing was deleted, or the next start completes it.
        """
        return bool(self._open_retention().topics.delete(lambda known: known & {topic}))

    def deleted_topics(self) -> Mapping[str, int]:
        """Topics that were deleted, and the physical offset before which their records do not count."""
        return self._deleted_topics.ends

    def delete_as_master(self, ends: Mapping[str, int]) -> list[str]:
        """Deletes what a master's `deleted_topics` names, as `delete_topic` does; returns what was new."""
        return self._open_retention().topics.delete_before(ends)

    def clean_unused_topics(self, known_topics: Collection[str]) -> list[str]:
        """Deletes, as `delete_topic` does, every topic that is not among these; returns their names.

        RocketMQ's own topics for delayed messages and ended transactions are always kept.
        """
        kept = ALWAYS_KEPT | set(known_topics)
        return self._open_retention().topics.delete(lambda known: known - kept)

    def clean_expired_queues(self) -> list[tuple[str, int]]:
        """Deletes queues none of whose messages is in the log any more; returns their topics and ids.

        The next message of such a queue gets offset 0: consumers that remember an old offset miss what is below it.
        """
        return self._open_retention().topics.delete_expired_queues()

    def explain_retention(self, offsets: GroupOffsets | None = None) -> Outlook:
        """What deletion would do now and at the next hour of deleteWhen, why, and which groups have not read it.

        `offsets` are the groups' next offsets by (topic, group) and queue; unless given, those of the config files.
        Changes nothing. Raises BadStore if a config file cannot be read.
        """
        self.catch_up()
        if offsets is None:
            config = ConfigFiles(self._io, self.layout.config)
            read, delivered = config.consumer_offsets.read().table, config.delay_offsets.read().table
            offsets = with_delivery(read.offsets, delivered.offsets)
        explainer = Explainer(self._io, self.log, self.queues, self.records, Limits.of(self.settings))
        return explainer.explain(self._clock(), DiskGauge(self._io, self.layout).measure(), offsets)

    def _load_deletions(self, *, external: bool) -> None:
        """Tells dispatch what was deleted, before the queues are loaded; a slave also finds out for itself."""
        dispatcher, deleted = self.dispatcher, self._deleted_topics
        dispatcher.set_deleted(deleted.load(None if external else self.layout), deleted.restarts)
        if self.settings.broker_role is BrokerRole.SLAVE and not external:
            alone = TopicCleaner(self._io, self.layout, self.log, self.queues, dispatcher, deleted, Lock())
            dispatcher.on_restart(alone.begin_anew)

    def _open_retention(self) -> Retention:
        self.catch_up()
        if self.retention is None:
            raise StoreFailed("the store was opened read-only; open it without `read_only`", path=self.layout.root)
        return self.retention
