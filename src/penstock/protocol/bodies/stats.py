"""Statistics of topics, groups and the broker (202, 208, 315, 317), and group offsets (220 to 223, 303, 308)."""

from __future__ import annotations

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.queues import BodyByQueue, MessageQueue


class TopicOffset(Body, kw_only=True):
    """The offsets of a queue."""

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStatsTable(BodyByQueue, kw_only=True):
    """202."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetWrapper(Body, kw_only=True):
    """A group's progress in a queue. `last_timestamp` is the store time of the last consumed message."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(BodyByQueue, kw_only=True):
    """208."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}

    def total_diff(self) -> int:
        """The group's lag in messages."""
        return sum(at.broker_offset - at.consumer_offset for at in self.offset_table.values())


class ConsumeStatsList(BodyByQueue, kw_only=True):
    """317: by group, one ConsumeStats for each topic."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: Int64 = 0


class BrokerStatsItem(Body, kw_only=True):
    """A counter over a period: sum, rate per second, and average per call."""

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """315."""

    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)


class ResetOffsetBody(BodyByQueue, kw_only=True):
    """220, 222: the new offset of each queue."""

    offset_table: dict[MessageQueue, Int64] = {}

    def for_cpp(self) -> ResetOffsetBodyForC:
        """The form that C++ clients read."""
        return ResetOffsetBodyForC(
            offset_table=[
                QueueOffset(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic, offset=offset)
                for queue, offset in self.offset_table.items()
            ]
        )


class QueueOffset(Body, kw_only=True):
    """A queue and its new offset."""

    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


class ResetOffsetBodyForC(Body, kw_only=True):
    """220 to a C++ client: a list, because it cannot read objects as keys."""

    offset_table: list[QueueOffset] = []


class GetConsumerStatusBody(BodyByQueue, kw_only=True):
    """221: a client's offsets; 223: every client's offsets by client id."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}
    message_queue_table: dict[MessageQueue, Int64] = {}


class QueueTimeSpan(Body, kw_only=True):
    """The store times of a queue's oldest, newest and last consumed message, and the consumer's delay."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """308: offsets by queue id."""

    correction_offsets: dict[Int32, Int64] = {}
