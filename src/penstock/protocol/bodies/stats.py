"""Bodies with statistics of topics, groups and the broker, and with the offsets of groups.

A number in a docstring is a request code. Timestamps are in epoch ms.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.queues import BodyByQueue, MessageQueue


class TopicOffset(Body, kw_only=True):
    """The lowest and highest offset of a queue, and when its last message was stored."""

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStatsTable(BodyByQueue, kw_only=True):
    """Reply to 202: the offsets of a topic's queues."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetWrapper(Body, kw_only=True):
    """A group's progress in a queue. `last_timestamp` is the store time of the last consumed message."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(BodyByQueue, kw_only=True):
    """Reply to 208: a group's progress by queue."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}

    def total_diff(self) -> int:
        """Returns the group's lag in messages."""
        return sum(at.broker_offset - at.consumer_offset for at in self.offset_table.values())


class ConsumeStatsList(BodyByQueue, kw_only=True):
    """Reply to 317: for each group, one ConsumeStats per topic."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: Int64 = 0


PUT_LATENCIES_KEY: Final = "penstockPutLatencies"
"""The name, in the table that answers 28, of all puts since the start by fine latency classes: `[<=1ms]:5 [1ms~]:0`.
RocketMQ's `putMessageDistributeTime` has coarser classes, and starts from zero every minute."""
COUNTERS_KEY: Final = "penstockCounters"
"""The name of `BrokerCounters` in the table that answers 28."""


class BrokerCounters(Body, kw_only=True):
    """What a broker has counted since its start, as JSON text in the reply to 28. No counter ever falls.

    A pair is messages and bytes. A group is named with its topic: `topic@group`.
    """

    messages_in: dict[str, tuple[Int64, Int64]] = {}
    """Accepted messages by topic."""
    messages_out: dict[str, tuple[Int64, Int64]] = {}
    """Messages that groups have pulled."""
    sent_back: dict[str, Int64] = {}
    """Messages that consumers of a group sent back."""
    requests_refused: dict[str, Int64] = {}
    """Requests that were refused or failed, by request code; -1 for codes that the broker does not know."""


class BrokerStatsItem(Body, kw_only=True):
    """A counter over a period: its growth, rate per second, and average per call."""

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """Reply to 315: one counter over the last minute, hour and day."""

    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)


class ResetOffsetBody(BodyByQueue, kw_only=True):
    """Request 220 and reply to 222: the new offset of each queue."""

    offset_table: dict[MessageQueue, Int64] = {}

    def for_cpp(self) -> ResetOffsetBodyForC:
        """Returns the form that C++ clients read."""
        return ResetOffsetBodyForC(
            offset_table=[
                QueueOffset(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic, offset=offset)
                for queue, offset in self.offset_table.items()
            ]
        )


class QueueOffset(Body, kw_only=True):
    """A queue and its new offset, in request 220 to a C++ client."""

    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


class ResetOffsetBodyForC(Body, kw_only=True):
    """Request 220 to a C++ client. It is a list, because C++ clients cannot read objects as keys."""

    offset_table: list[QueueOffset] = []


class GetConsumerStatusBody(BodyByQueue, kw_only=True):
    """Reply to 221: one client's offsets. Reply to 223: the offsets of every client, by client id."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}
    message_queue_table: dict[MessageQueue, Int64] = {}


class QueueTimeSpan(Body, kw_only=True):
    """The store times of a queue's oldest, newest and last consumed message.

    `delay_time` is the age in ms of the next message to consume; 0 if there is none.
    """

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class QueryConsumeTimeSpanBody(Body, kw_only=True):
    """Reply to 303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Body, kw_only=True):
    """Reply to 308: offsets by queue id."""

    correction_offsets: dict[Int32, Int64] = {}
