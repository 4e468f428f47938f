"""Topics and groups that are there from the start, and names that clients may not use as they like.

The topics of this broker: topics.json in memory.

The table decides what exists; the store would take any legal name. Every change moves the data version on, by which
name servers and slaves see which table is newer, and calls `on_change`: the file is written and the broker registers
again, neither of which is waited for. A crash in between leaves the older file: the next start makes topics again
whose messages it finds in the store.
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

READ_WRITE: Final = PERM_READ | PERM_WRITE
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where half messages go that nobody ended."""
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
"""What only the broker writes to."""
_SYSTEM_TOPICS = NOT_FOR_SENDING | {TEMPLATE_TOPIC, _BENCHMARK_TOPIC, "RMQ_SYS_TRACE_TOPIC"}
_GROUPS_FOR_TOOLS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP")
_GROUPS_OF_OTHERS = ("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER")


def is_system_topic(topic: str) -> bool:
    """Whether no administrator may change or delete it."""
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def system_topics(settings: BrokerSettings, delay_levels: int) -> list[TopicConfig]:
    """The topics of a broker that was started for the first time."""
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
        topics.append(_topic(TEMPLATE_TOPIC, settings.default_topic_queue_nums, READ_WRITE | PERM_INHERIT))
    if settings.trace_topic_enable:
        topics.append(_topic(settings.msg_trace_topic_name, 1))
    return topics


def system_groups() -> list[SubscriptionGroup]:
    return [SubscriptionGroup(name=name) for name in _GROUPS_FOR_TOOLS + _GROUPS_OF_OTHERS]


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


log = logging.getLogger("penstock.broker")
UNIT: int = 1
UNIT_SUBSCRIPTION: int = 2
"""Bits of a topic's `sys_flag`."""


class BrokerTopics:
    """Finds, makes, changes and deletes topics."""

    def __init__(
        self, loaded: TopicConfigs, settings: SettingsInForce, clock: Callable[[], int], *, delay_levels: int = 18
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._extra = loaded.extra
        self._version = loaded.version
        made = {topic.name: topic for topic in system_topics(settings.now, delay_levels)}
        self._topics = {**made, **loaded.topics}
        self.on_change: list[Callable[[], object]] = []
        if self._topics.keys() != loaded.topics.keys():
            self._version = self._version.next(clock())

    # -- asking ----------------------------------------------------------------------------------------------

    def find(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def all(self) -> Mapping[str, TopicConfig]:
        return self._topics

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def snapshot(self) -> TopicConfigs:
        """What topics.json should say now."""
        return TopicConfigs(topics=dict(self._topics), version=self._version, extra=self._extra)

    # -- changing --------------------------------------------------------------------------------------------

    def create_on_send(self, topic: str, template: str, queues: int, sys_flag: int = 0) -> TopicConfig | None:
        """The topic, made after `template` if it is new; None if it may not be made.

        It gets as many queues as the client asks for, at least one and at most those of the template, and its
        permission without the right to inherit.
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
            )
        )

    def create_for_send_back(
        self, topic: str, queues: int, perm: int = READ_WRITE, sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic, made as given if it is new: for retries, dead letters and the broker's own topics."""
        known = self._topics.get(topic)
        if known is not None:
            return known
        return self._add(
            TopicConfig(name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, sys_flag=sys_flag)
        )

    def update(self, topic: TopicConfig) -> None:
        """Makes or replaces a topic; fields that this version does not know stay as they were."""
        known = self._topics.get(topic.name)
        if known is not None and not topic.extra:
            topic = msgspec.structs.replace(topic, extra=known.extra)
        self._topics[topic.name] = topic
        self.mark_changed()

    def delete(self, topic: str) -> bool:
        """Forgets a topic; says whether there was one. Its messages stay in the log."""
        if self._topics.pop(topic, None) is None:
            return False
        log.info("topic %s is deleted", topic)
        self.mark_changed()
        return True

    def take_over(self, topics: TopicConfigs) -> None:
        """Becomes what a master's table is, its version included."""
        if topics.version != self._version or topics.topics != self._topics:
            self._topics, self._version = dict(topics.topics), topics.version
            self._tell()

    def _add(self, topic: TopicConfig) -> TopicConfig | None:
        if not is_legal_topic(topic.name):
            return None
        if len(self._topics) >= self._settings.now.max_topics:
            log.warning("topic %s is not made: there are %d already (maxTopics)", topic.name, len(self._topics))
            return None
        self._topics[topic.name] = topic
        log.info("topic %s is made, with %d queues", topic.name, topic.write_queue_nums)
        self.mark_changed()
        return topic

    def mark_changed(self) -> None:
        """Moves the version on and tells everybody; also for who changes what the topics mean."""
        self._version = self._version.next(self._clock())
        self._tell()

    def _tell(self) -> None:
        for changed in self.on_change:
            changed()
