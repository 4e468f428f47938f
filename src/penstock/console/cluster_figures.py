"""The values that the pages and the API show, and the parser of brokers' runtime info.

Brokers report figures as text under RocketMQ's names. Java and Penstock brokers omit different figures and write
latencies in different formats. A missing or unreadable figure becomes None or 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.observation.metrics import BrokerAvailability, availability, is_internal_topic
from penstock.protocol.bodies.stats import PUT_LATENCIES_KEY

_BUCKET: Final = re.compile(r"\[([^\]]*)\]:(\d+)")
_BOUND: Final = re.compile(r"(\d+)(ms|s)$")


class TopicKind(StrEnum):
    """The purpose of a topic."""

    NORMAL = "normal"
    RETRY = "retry"
    DEAD_LETTERS = "dead letters"
    SYSTEM = "system"

    @classmethod
    def of(cls, topic: str, clusters: frozenset[str] = frozenset()) -> TopicKind:
        """Returns the kind of a topic. `clusters` are the names of clusters and brokers, which are also names of system
        topics.
        """
        if topic.startswith(RETRY_PREFIX):
            return cls.RETRY
        if topic.startswith(DLQ_PREFIX):
            return cls.DEAD_LETTERS
        return cls.SYSTEM if is_internal_topic(topic, clusters) else cls.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """One broker's runtime figures. Times are epoch milliseconds, sizes bytes, rates per second, totals since its
    start.
    """

    name: str
    cluster: str
    address: str
    broker_id: int = 0
    state: BrokerAvailability = BrokerAvailability.SERVING
    why: str = ""
    """A sentence that explains the state, or what fails although the broker serves; empty if all is well."""
    is_healthy: bool = True
    """Whether all threads and tasks of the broker work. Java's brokers do not report this."""
    version: str = ""
    put_total: int = 0
    got_total: int = 0
    put_bytes: int = 0
    got_bytes: int = 0
    put_per_second: float = 0.0
    got_per_second: float = 0.0
    flush_behind_bytes: int = 0
    dispatch_behind_bytes: int = 0
    dispatch_behind_ms: int = 0
    """The age of the oldest message that external dispatch has not made visible."""
    log_min_offset: int = 0
    log_max_offset: int = 0
    disk_used_ratio: float | None = None
    disk_capacity: str = ""
    earliest_ms: int = 0
    started_ms: int = 0
    consumers: int = 0
    put_latency: dict[int, int] = field(default_factory=dict)
    """The number of puts in each latency bucket, by the bucket's upper bound in milliseconds."""
    put_latency_above: int = 0
    """The number of puts above the last bound."""
    put_seconds: float | None = None
    """The sum of the latencies of all puts; None if the broker does not report it."""
    get_latency: dict[int, int] = field(default_factory=dict)
    get_latency_above: int = 0
    get_seconds: float | None = None

    @classmethod
    def of(cls, name: str, cluster: str, address: str, broker_id: int, info: Mapping[str, str]) -> BrokerFigures:
        """Creates the figures from a broker's runtime info."""
        ratio = _number(info.get("commitLogDiskRatio"))
        refused = info.get("putsRefused", "")
        health = info.get("brokerHealth", "ok")
        put_latencies = info.get(PUT_LATENCIES_KEY) or info.get("putMessageDistributeTime", "")
        put_latency, put_above = read_latency(put_latencies)
        get_latency, get_above = read_latency(info.get("getMessageDistributeTime", ""))
        return cls(
            name=name,
            cluster=cluster,
            address=address,
            broker_id=broker_id,
            state=availability(refused, ratio),
            why=refused or ("" if health == "ok" else health),
            is_healthy=health == "ok",
            version=info.get("brokerVersionDesc", ""),
            put_total=_whole(info.get("msgPutTotalTodayNow")),
            got_total=_whole(info.get("msgGetTotalTodayNow")),
            put_bytes=_whole(info.get("putMessageSizeTotal")),
            got_bytes=_whole(info.get("getMessageSizeTotal")),
            put_per_second=_number(info.get("putTps")) or 0.0,
            got_per_second=_number(info.get("getTransferedTps")) or 0.0,
            flush_behind_bytes=_whole(info.get("remainHowManyDataToFlush")),
            dispatch_behind_bytes=_whole(info.get("dispatchBehindBytes")),
            dispatch_behind_ms=_whole(info.get("dispatchBehindMillis")),
            log_min_offset=max(0, _whole(info.get("commitLogMinOffset"))),
            log_max_offset=_whole(info.get("commitLogMaxOffset")),
            disk_used_ratio=ratio,
            disk_capacity=info.get("commitLogDirCapacity", ""),
            earliest_ms=_whole(info.get("earliestMessageTimeStamp")),
            started_ms=_whole(info.get("bootTimestamp")),
            consumers=_whole(info.get("consumerNum")),
            put_latency=put_latency,
            put_latency_above=put_above,
            put_seconds=_number(info.get("putMessageSeconds")),
            get_latency=get_latency,
            get_latency_above=get_above,
            get_seconds=_number(info.get("getMessageSeconds")),
        )


def read_latency(text: str) -> tuple[dict[int, int], int]:
    """Parses `[<=1ms]:5 [<=2ms]:0 [2ms~]:0` and Java's `[0~10ms]:5 [3~4s]:0 [10s~]:0`.

    Returns the counts by the bucket's upper bound in milliseconds, and the count of the bucket without one.
    """
    counts: dict[int, int] = {}
    above = 0
    for bounds, count in _BUCKET.findall(text):
        bound = _BOUND.search(bounds)
        if bound is not None:
            counts[int(bound[1]) * (1000 if bound[2] == "s" else 1)] = int(count)
        else:
            above += int(count)
    return counts, above


def percentile(latency: Mapping[int, int], above: int, share: float) -> int | None:
    """Returns the latency, in milliseconds, that the fraction `share` of all puts does not exceed.

    Returns 1 more than the last bound if it lies among the `above` puts beyond that, and None if there are no puts.
    """
    total, seen = sum(latency.values()) + above, 0
    for bound, count in sorted(latency.items()):
        seen += count
        if total and seen >= total * share:
            return bound
    return max(latency, default=0) + 1 if total else None


def _number(text: str | None) -> float | None:
    """Returns the first number in a text such as `12.5 10.0 9.1` or `17 B`."""
    try:
        return float((text or "").replace(",", "").split()[0])
    except (IndexError, ValueError):
        return None


def _whole(text: str | None) -> int:
    number = _number(text)
    return 0 if number is None or number != number or abs(number) >= 2**63 else int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """The settings of one topic, merged over all brokers that have it."""

    name: str
    kind: TopicKind
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    brokers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """One queue of a topic."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int

    @property
    def messages(self) -> int:
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFigures:
    """The queues and the incoming rate of one topic."""

    name: str
    queues: list[QueueRow]
    messages: int
    last_update_ms: int
    in_per_second: float
    average_size: float | None
    """Average message size over the last day, in bytes; None if no message came since the broker's start."""

    @property
    def bytes_about(self) -> int | None:
        """Estimated size on disk in bytes: number of messages times average size."""
        return None if self.average_size is None else int(self.messages * self.average_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One consumer group, summed over all brokers."""

    name: str
    topics: list[str]
    lag: int
    consume_per_second: float
    last_consumed_ms: int
    behind_ms: int
    """Age of the last consumed message in milliseconds; 0 if there is no lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """A group's progress in one queue."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    lag: int
    last_consumed_ms: int
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One consumer."""

    client_id: str
    address: str
    language: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One group in detail."""

    name: str
    lag: int
    consume_per_second: float
    queues: list[GroupQueue]
    clients: list[ClientRow]
    subscriptions: dict[str, str]
    """Filters by topic; empty if no consumer is connected."""
    model: str = ""
