"""Topics and groups that are there from the start, and names that clients may not use as they like."""

from __future__ import annotations

from typing import Final

from penstock.broker.settings import BrokerSettings
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.format.constants import (
    DAMAGED_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from penstock.namesrv.default_route import TEMPLATE_TOPIC
from penstock.protocol.bodies.route import PERM_INHERIT, PERM_READ, PERM_WRITE

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
