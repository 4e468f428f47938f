"""The topics of this broker: topics.json in memory, the system topics and groups, and reserved names.

The table decides which topics exist; the store would accept any legal name. Every change increments the data version,
which tells name servers and slaves which table is newer. It also calls `on_change`: the file is written and the broker
registers again, both in the background. A crash before the write leaves the previous file. The next start then creates
every topic that has messages in the store. Use it from the loop's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.format.config_tables import DataVersion, SubscriptionGroup, TopicConfig, TopicConfigs
from penstock.format.constants import (
    DAMAGED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from penstock.format.topics import is_legal_topic
from penstock.namesrv.route_table import TEMPLATE_TOPIC
from penstock.protocol.bodies.routes import PERM_INHERIT, PERM_READ, PERM_WRITE
from penstock.protocol.table_memory_limits import Budget, Closing, entry_bytes
from penstock.rate_limited_log import RateLimitedLog

log = logging.getLogger("penstock.broker")

READ_WRITE: Final = PERM_READ | PERM_WRITE
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Holds half messages whose transaction was never ended."""
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_BENCHMARK_TOPIC = "BenchmarkTest"
_SCHEDULE_QUEUES = 18
_SYSTEM_PREFIX = "rmq_sys_"
NOT_FOR_SENDING: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        DAMAGED_TOPIC,
    }
)
"""Topics that only the broker itself writes to."""
_SYSTEM_TOPICS = NOT_FOR_SENDING | {TEMPLATE_TOPIC, _BENCHMARK_TOPIC, "RMQ_SYS_TRACE_TOPIC"}
_GROUPS_FOR_TOOLS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP")
_GROUPS_OF_OTHERS = ("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER")


def is_system_topic(topic: str) -> bool:
    """Whether this is a system topic, which administrators may neither change nor delete."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX)


def is_topic_of_broker(topic: str, settings: BrokerSettings) -> bool:
    """Whether this is a system topic of a broker with these settings, also one with its or its cluster's name."""
    cluster = settings.broker_cluster_name
    return is_system_topic(topic) or topic in (cluster, settings.broker_name, cluster + REPLY_TOPIC_SUFFIX)


def is_system_group(group: str) -> bool:
    """Whether this is a group of the broker itself. Clients may not commit its offsets."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def system_topics(settings: BrokerSettings, delay_levels: int) -> list[TopicConfig]:
    """Returns the topics that every new broker has."""
    of_cluster = PERM_INHERIT | (READ_WRITE if settings.cluster_topic_enable else 0)
    of_broker = PERM_INHERIT | (READ_WRITE if settings.broker_topic_enable else 0)
    topics = [
        _topic(SELF_TEST_TOPIC, 1),
        _topic(_BENCHMARK_TOPIC, 1024),
        _topic(settings.broker_cluster_name, 16, of_cluster),
        _topic(settings.broker_name, 1, of_broker),
        _topic(OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, max(_SCHEDULE_QUEUES, delay_levels)),
        _topic(settings.broker_cluster_name + REPLY_TOPIC_SUFFIX, 1),
        _topic(HALF_TOPIC, 1),
        _topic(OP_HALF_TOPIC, 1),
    ]
    if settings.auto_create_topic_enable:
        topics.append(_template(settings.default_topic_queue_nums))
    if settings.trace_topic_enable:
        topics.append(_topic(settings.msg_trace_topic_name, 1))
    return topics


def system_groups() -> list[SubscriptionGroup]:
    return [SubscriptionGroup(name=name) for name in _GROUPS_FOR_TOOLS + _GROUPS_OF_OTHERS]


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def _template(queues: int) -> TopicConfig:
    return _topic(TEMPLATE_TOPIC, queues, READ_WRITE | PERM_INHERIT)


MAX_CREATED_BYTES: Final = 256 << 20
MAX_CREATED_BYTES_OF_CLIENT: Final = 16 << 20
"""About 20,000 topics."""
UNIT: int = 1
UNIT_SUBSCRIPTION: int = 2
"""UNIT and UNIT_SUBSCRIPTION are bits of a topic's `sys_flag`."""


class BrokerTopics:
    """Finds, creates, changes and deletes topics."""

    def __init__(
        self, loaded: TopicConfigs, settings: SettingsInForce, clock: Callable[[], int], *, delay_levels: int = 18
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._extra = loaded.extra
        self._version = loaded.version
        self.saved_at: Final = loaded.version.timestamp
        """When the table that was read from the file had changed last, in epoch milliseconds; 0 if there was none."""
        self._template_queues = settings.now.default_topic_queue_nums
        system = {topic.name: topic for topic in system_topics(settings.now, delay_levels)}
        self._topics = {**system, **loaded.topics}
        self.on_change: list[Callable[[], object]] = []
        settings.on_change.append(self._on_settings)
        self.created = Budget("new topics", MAX_CREATED_BYTES, MAX_CREATED_BYTES_OF_CLIENT)
        """What the requests of connected clients have created."""
        self._refusals = RateLimitedLog(log)
        if self._topics.keys() != loaded.topics.keys():
            self._version = self._version.next(clock())

    # -- reading ---------------------------------------------------------------------------------------------

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def all(self) -> Mapping[str, TopicConfig]:
        return self._topics

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def snapshot(self) -> TopicConfigs:
        """Returns the current contents of topics.json."""
        return TopicConfigs(topics=dict(self._topics), version=self._version, extra=self._extra)

    # -- changing --------------------------------------------------------------------------------------------

    def create_on_send(
        self, topic: str, template: str, queues: int, sys_flag: int = 0, by: Closing | None = None
    ) -> TopicConfig | None:
        """Returns the topic, created from the topic `template` if it is new; None if it may not be created.

        A new topic gets `queues` queues, at least one and at most as many as the template has. It gets the template's
        permissions without PERM_INHERIT. Raises Refusal if the client `by`, which asks for it, has created too many.
        """
        known = self._topics.get(topic)
        if known is not None:
            return known
        model = self._topics.get(template)
        if model is None or not model.perm & PERM_INHERIT:
            return None
        if template == TEMPLATE_TOPIC and not self._settings.now.auto_create_topic_enable:
            return None
        count = max(1, min(queues, model.write_queue_nums))
        return self._add(
            TopicConfig(
                name=topic,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=model.perm & ~PERM_INHERIT,
                filter_type=model.filter_type,
                sys_flag=sys_flag,
            ),
            by,
        )

    def create_for_send_back(
        self, topic: str, queues: int, perm: int = READ_WRITE, sys_flag: int = 0, by: Closing | None = None
    ) -> TopicConfig | None:
        """Returns the topic, created with these values if it is new; None if it cannot be created.

        For retry topics, dead letter topics and system topics. A topic cannot be created if its name is illegal or if
        there are maxTopics already. Raises Refusal if the client `by`, which asks for it, has created too many.
        """
        known = self._topics.get(topic)
        if known is not None:
            return known
        return self._add(
            TopicConfig(name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, sys_flag=sys_flag), by
        )

    def update(self, topic: TopicConfig) -> None:
        """Creates or replaces a topic. Keeps the old topic's fields that this version of Penstock does not know."""
        known = self._topics.get(topic.name)
        if known is not None and not topic.extra:
            topic = msgspec.structs.replace(topic, extra=known.extra)
        self._topics[topic.name] = topic
        self.mark_changed()

    def delete(self, topic: str) -> bool:
        """Removes a topic from the table. Returns whether it existed. Its messages stay in the log."""
        if self._topics.pop(topic, None) is None:
            return False
        log.info("deleted topic %s", topic)
        self.mark_changed()
        return True

    def replace(self, topics: TopicConfigs) -> None:
        """Replaces the table and its version by the master's table. For slaves."""
        if topics.version != self._version or topics.topics != self._topics:
            self._topics, self._version = dict(topics.topics), topics.version
            self._notify()

    def _add(self, topic: TopicConfig, by: Closing | None) -> TopicConfig | None:
        if not is_legal_topic(topic.name):
            return None
        if len(self._topics) >= self._settings.now.max_topics:
            self._refusals.warn(f"topic {topic.name} not created: there are {len(self._topics)} already (maxTopics)")
            return None
        if by is not None:
            self.created.charge_until_close(entry_bytes(topic.name), by)
        self._topics[topic.name] = topic
        log.info("created topic %s (%d queues)", topic.name, topic.write_queue_nums)
        self.mark_changed()
        return topic

    def _on_settings(self, settings: BrokerSettings) -> None:
        """Applies changed settings to the template TBW102 and the topic for traces. Neither is ever deleted."""
        template, queues = self._topics.get(TEMPLATE_TOPIC), settings.default_topic_queue_nums
        if template is None and settings.auto_create_topic_enable:
            self.update(_template(queues))
        elif template is not None and queues != self._template_queues:
            self.update(msgspec.structs.replace(template, read_queue_nums=queues, write_queue_nums=queues))
        self._template_queues = queues
        if settings.trace_topic_enable:
            self.create_for_send_back(settings.msg_trace_topic_name, 1)

    def mark_changed(self) -> None:
        """Increments the version and calls `on_change`. A change of brokerPermission needs this call, too."""
        self._version = self._version.next(self._clock())
        self._notify()

    def _notify(self) -> None:
        for changed in self.on_change:
            changed()
