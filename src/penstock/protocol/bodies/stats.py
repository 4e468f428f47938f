"""How topics and groups stand: 202, 208, 315, 317."""

from __future__ import annotations

import msgspec

from penstock.format.java_ints import Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.queues import BodyByQueue, MessageQueue


class TopicOffset(Body, kw_only=True):
    """What a queue holds."""

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStatsTable(BodyByQueue, kw_only=True):
    """202."""

    offset_table: dict[MessageQueue, TopicOffset] = {}


class OffsetWrapper(Body, kw_only=True):
    """How far a group has come in a queue. `last_timestamp` is the store time of the last message consumed."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0


class ConsumeStats(BodyByQueue, kw_only=True):
    """208."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, OffsetWrapper] = {}

    def total_diff(self) -> int:
        """How many messages the group has yet to consume."""
        return sum(at.broker_offset - at.consumer_offset for at in self.offset_table.values())


class ConsumeStatsList(BodyByQueue, kw_only=True):
    """317: by group, one ConsumeStats for each topic."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: Int64 = 0


class BrokerStatsItem(Body, kw_only=True):
    """A figure over a time: sum, per second, and average of a call."""

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStatsData(Body, kw_only=True):
    """315."""

    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
