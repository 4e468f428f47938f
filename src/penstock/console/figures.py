"""What the console tells of a cluster, as plain values; and how a broker's own figures are read.

Brokers tell how they run as texts, by names that RocketMQ gave them; Java's and Penstock's differ in what they leave
out, and in how a latency is written. Whatever is not told, or cannot be read, is None or 0 here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX

_BUCKET: Final = re.compile(r"\[([^\]]*)\]:(\d+)")
_BOUND: Final = re.compile(r"(\d+)(ms|s)$")
_SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)  # fmt: skip

_SYSTEM_GROUPS: Final = frozenset({"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})


class BrokerAvailability(StrEnum):
    """How a broker is, as far as its clients can notice."""

    SERVING = "serving"
    READ_ONLY = "read-only"
    FULL = "full"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"


class TopicKind(StrEnum):
    """What a topic is for."""

    NORMAL = "normal"
    RETRY = "retry"
    DEAD_LETTERS = "dead letters"
    SYSTEM = "system"

    @classmethod
    def of(cls, topic: str, clusters: frozenset[str] = frozenset()) -> TopicKind:
        """`clusters` are names of clusters and brokers, which have topics of their own."""
        if topic.startswith(RETRY_PREFIX):
            return cls.RETRY
        if topic.startswith(DLQ_PREFIX):
            return cls.DEAD_LETTERS
        own = topic in _SYSTEM_TOPICS or topic in clusters or topic.startswith(("rmq_sys_", "PENSTOCK_"))
        return cls.SYSTEM if own or topic.endswith("_REPLY_TOPIC") else cls.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFigures:
    """How one broker runs. Times are epoch milliseconds, sizes bytes, rates a second; totals count since its start."""

    name: str
    cluster: str
    address: str
    broker_id: int = 0
    state: BrokerAvailability = BrokerAvailability.SERVING
    why: str = ""
    """The sentence that explains a state other than serving."""
    version: str = ""
    put_total: int = 0
    got_total: int = 0
    put_bytes: int = 0
    put_per_second: float = 0.0
    got_per_second: float = 0.0
    flush_behind_bytes: int = 0
    dispatch_behind_bytes: int = 0
    log_min_offset: int = 0
    log_max_offset: int = 0
    disk_used_ratio: float | None = None
    disk_capacity: str = ""
    earliest_ms: int = 0
    started_ms: int = 0
    consumers: int = 0
    put_latency: dict[int, int] = field(default_factory=dict)
    """How many puts stayed below so many milliseconds, and above the bound before."""

    @classmethod
    def of(cls, name: str, cluster: str, address: str, broker_id: int, told: Mapping[str, str]) -> BrokerFigures:
        """As the broker told it."""
        ratio = _number(told.get("commitLogDiskRatio"))
        state, why = _state(told, ratio)
        return cls(
            name=name,
            cluster=cluster,
            address=address,
            broker_id=broker_id,
            state=state,
            why=why,
            version=told.get("brokerVersionDesc", ""),
            put_total=_whole(told.get("msgPutTotalTodayNow")),
            got_total=_whole(told.get("msgGetTotalTodayNow")),
            put_bytes=_whole(told.get("putMessageSizeTotal")),
            put_per_second=_number(told.get("putTps")) or 0.0,
            got_per_second=_number(told.get("getTransferedTps")) or 0.0,
            flush_behind_bytes=_whole(told.get("remainHowManyDataToFlush")),
            dispatch_behind_bytes=_whole(told.get("dispatchBehindBytes")),
            log_min_offset=max(0, _whole(told.get("commitLogMinOffset"))),
            log_max_offset=_whole(told.get("commitLogMaxOffset")),
            disk_used_ratio=ratio,
            disk_capacity=told.get("commitLogDirCapacity", ""),
            earliest_ms=_whole(told.get("earliestMessageTimeStamp")),
            started_ms=_whole(told.get("bootTimestamp")),
            consumers=_whole(told.get("consumerNum")),
            put_latency=read_latency(told.get("putMessageDistributeTime", "")),
        )


def read_latency(text: str) -> dict[int, int]:
    """`[<=1ms]:5 [<=2ms]:0` and Java's `[0~10ms]:5 [3~4s]:0 [10s~]:0`, by upper bound in milliseconds."""
    found: dict[int, int] = {}
    for bounds, count in _BUCKET.findall(text):
        bound = _BOUND.search(bounds)
        if bound is not None:
            found[int(bound[1]) * (1000 if bound[2] == "s" else 1)] = int(count)
    return found


def percentile(latency: Mapping[int, int], share: float) -> int | None:
    """The bound, in milliseconds, below which this share of the puts stayed; None if there were none."""
    total, seen = sum(latency.values()), 0
    for bound, count in sorted(latency.items()):
        seen += count
        if total and seen >= total * share:
            return bound
    return None


def _state(told: Mapping[str, str], ratio: float | None) -> tuple[BrokerAvailability, str]:
    refused = told.get("putsRefused", "")
    if not refused:
        return BrokerAvailability.SERVING, ""
    full = "full" in refused or (ratio or 0.0) >= 0.9
    return (BrokerAvailability.FULL if full else BrokerAvailability.READ_ONLY), refused


def _number(text: str | None) -> float | None:
    """The first number of a text: `12.5 10.0 9.1`, `17 B`."""
    try:
        return float((text or "").replace(",", "").split()[0])
    except (IndexError, ValueError):
        return None


def _whole(text: str | None) -> int:
    found = _number(text)
    return 0 if found is None or found != found or abs(found) >= 2**63 else int(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic as it is set, over all brokers that have it."""

    name: str
    kind: TopicKind
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    brokers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """What a queue holds."""

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
    """How a topic stands."""

    name: str
    queues: list[QueueRow]
    messages: int
    last_update_ms: int
    in_per_second: float
    average_size: float | None
    """Of a message that came in lately, in bytes; None if none did since the broker's start."""

    @property
    def bytes_about(self) -> int | None:
        """What its messages take on disk, estimated from the average."""
        return None if self.average_size is None else int(self.messages * self.average_size)


def is_system_group(group: str) -> bool:
    """Whether a group belongs to brokers or tools, not to people."""
    return group in _SYSTEM_GROUPS or group.startswith(("CID_ONS", "CID_RMQ_SYS_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A consumer group over all brokers."""

    name: str
    topics: list[str]
    lag: int
    consume_per_second: float
    last_consumed_ms: int
    behind_ms: int
    """How long ago what was consumed last had been stored, where something is left; 0 where nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueue:
    """How far a group is in a queue."""

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
    """One group in full."""

    name: str
    lag: int
    consume_per_second: float
    queues: list[GroupQueue]
    clients: list[ClientRow]
    subscriptions: dict[str, str]
    """The expression by topic; known while a consumer is connected."""
    model: str = ""
