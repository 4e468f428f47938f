"""What a broker knows and keeps: its tables, read from the store's `config` folder and written back there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.broker.client_table import ClientTable
from penstock.broker.delay import DelayedMessages
from penstock.broker.group_table import GroupTable
from penstock.broker.hooks import Hooks
from penstock.broker.offset_table import OffsetTable
from penstock.broker.persist import Persister, SavedTable
from penstock.broker.queue_locks import QueueLocks
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.tally import Tally
from penstock.broker.topic_table import TopicTable
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from penstock.store.config_files import ConfigFile, ConfigFiles, Table
from penstock.store.files import Files
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

T = TypeVar("T", bound=Table)


class BrokerState:
    """The store, the settings in force and the tables. Concerns get from here what they need.

    Made within the running loop, to whose thread it belongs. Reading raises BadStore where a file and its backup are
    garbage: a broker that forgot how far its consumers are would be worse than none.
    """

    def __init__(
        self, store: MessageStore, settings: BrokerSettings, clock: Callable[[], int], files: Files | None = None
    ) -> None:
        self.store = store
        self.settings = SettingsInForce(settings)
        self.clock = clock
        self.config_files = found = ConfigFiles(files or Files(), store.layout.config)
        levels = len(store.settings.delay_levels)
        self.topics = TopicTable(_read(found.topics), self.settings, clock, delay_levels=levels)
        self._adopt_topics()
        self.groups = GroupTable(_read(found.subscription_groups), self.settings, clock)
        self.offsets = OffsetTable(_read(found.consumer_offsets))
        self.delayed = DelayedMessages(store, _read(found.delay_offsets), clock)
        self.clients = ClientTable()
        self.locks = QueueLocks()
        self.hooks = Hooks()
        self.tally = Tally()
        self.persister = Persister()

    def _adopt_topics(self) -> None:
        """Makes topics whose messages are in the store: a crash came before topics.json, or nobody had a broker yet.

        How many queues such a topic had cannot be told; with at least as many as new topics get, no client that still
        knows its route is turned away.
        """
        queues: dict[str, int] = {}
        for queue in self.store.queues:
            if queue.max_offset > 0 and queue.topic != DAMAGED_TOPIC:
                queues[queue.topic] = max(queues.get(queue.topic, 0), queue.queue_id + 1)
        for topic in sorted(queues.keys() - self.topics.all().keys()):
            is_one_groups = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            usual = 1 if is_one_groups else self.settings.now.default_topic_queue_nums
            self.topics.create_for_send_back(topic, max(usual, queues[topic]))

    def start_saving(self) -> None:
        """Topics and groups are saved when they change, offsets now and then."""
        found, topics, groups, offsets = self.config_files, self.topics, self.groups, self.offsets
        saved_topics = SavedTable(found.topics, topics.snapshot, lambda: topics.data_version)
        saved_groups = SavedTable(found.subscription_groups, groups.snapshot, lambda: groups.data_version)
        saved_offsets = SavedTable(
            found.consumer_offsets, offsets.snapshot, lambda: offsets.changes, first=self.store.flush
        )
        saved_delays = SavedTable(
            found.delay_offsets, self.delayed.snapshot, self.delayed.version, first=self.store.flush
        )
        self.persister.add(saved_topics)
        self.persister.add(saved_groups)
        self.persister.add(saved_offsets, self.settings.now.flush_consumer_offset_interval / 1000)
        self.persister.add(saved_delays, self.store.settings.flush_delay_offset_interval / 1000)
        topics.on_change.append(lambda: self.persister.due(saved_topics))
        groups.on_change.append(lambda: self.persister.due(saved_groups))
        self.persister.due(saved_topics)
        self.persister.due(saved_groups)


def _read(file: ConfigFile[T]) -> T:
    loaded = file.read()
    if loaded.note:
        log.warning("%s", loaded.note)
    return loaded.table
