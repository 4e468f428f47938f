"""The metrics of brokers: names, labels and meanings, and Prometheus' text format.

Names and labels are RocketMQ 5's where it has such a metric; the others begin with `penstock_`. A broker shows its own
figures (`broker.metrics_and_health`); the console shows the figures that all brokers of a cluster report to it
(`console.metrics`). Both fill the values of this module and get the same families. Counters are those of the brokers,
and never fall while a broker runs. Functions that compute: no state, any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol.bodies.admin import HaElections
from penstock.protocol.bodies.stats import BrokerCounters

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
NODE: Final = ("cluster", "node_type", "node_id")


class BrokerAvailability(StrEnum):
    """A broker's state from the view of its clients."""

    SERVING = "serving"
    READ_ONLY = "read-only"
    FULL = "full"
    RECOVERING = "recovering"
    UNREACHABLE = "unreachable"


def availability(puts_refused: str, disk_used_ratio: float | None) -> BrokerAvailability:
    """Returns the state of a broker that answers. `puts_refused` is why it refuses messages; empty if it accepts
    them.
    """
    if not puts_refused:
        return BrokerAvailability.SERVING
    is_full = "full" in puts_refused or (disk_used_ratio or 0.0) >= 0.9
    return BrokerAvailability.FULL if is_full else BrokerAvailability.READ_ONLY


_INTERNAL_TOPICS: Final = frozenset(
    {
        "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)  # fmt: skip
_INTERNAL_GROUPS: Final = frozenset({"TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})


def is_internal_topic(topic: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether a topic belongs to brokers or tools. `own` are the names of clusters and brokers, which are also names of
    such topics.
    """
    known = topic in _INTERNAL_TOPICS or topic in own
    return known or topic.startswith(("rmq_sys_", "PENSTOCK_")) or topic.endswith("_REPLY_TOPIC")


def is_internal_group(group: str) -> bool:
    """Whether a group belongs to brokers or tools."""
    return group in _INTERNAL_GROUPS or group.startswith(("CID_ONS", "CID_RMQ_SYS_"))


# -- the text format -----------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """One value. `name` is the family's, or that with the suffix of a histogram's part."""

    name: str
    labels: dict[str, str]
    value: float


class Family:
    """A metric with all of its samples."""

    def __init__(self, name: str, kind: str, about: str, labels: Sequence[str] = ()) -> None:
        """`kind` is `counter`, `gauge` or `histogram`. `labels` are the names of the labels of each sample."""
        self.name = name
        self.kind = kind
        self.about = about
        self._labels = tuple(labels)
        self.samples: list[Sample] = []

    def add(self, values: Sequence[str], value: float) -> None:
        """Adds a sample with these values of the labels."""
        self.samples.append(Sample(self.name, self._labelled(values), value))

    def add_latencies(self, values: Sequence[str], latencies: Latencies) -> None:
        """Adds a histogram in milliseconds. Every latency is in a bucket: the last one has no bound."""
        if not latencies.counts:
            return
        labels, seen = self._labelled(values), 0
        for bound, count in sorted(latencies.counts.items()):
            seen += count
            self._bucket(labels, str(float(bound)), seen)
        total = seen + latencies.above
        self._bucket(labels, "+Inf", total)
        self.samples.append(Sample(f"{self.name}_count", labels, total))
        if latencies.seconds is not None:
            self.samples.append(Sample(f"{self.name}_sum", labels, latencies.seconds * 1000))

    def _bucket(self, labels: dict[str, str], bound: str, count: int) -> None:
        self.samples.append(Sample(f"{self.name}_bucket", {**labels, "le": bound}, count))

    def _labelled(self, values: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._labels, values, strict=True))


def render(families: Iterable[Family]) -> bytes:
    """Returns families in Prometheus' text format, version 0.0.4. A name that a client chose cannot end its label."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.about}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for sample in politely(family.samples):
            labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
            lines.append(f"{sample.name}{{{labels}}} {_number(sample.value)}" if labels else _bare(sample))
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


T = TypeVar("T")
_AT_ONCE: Final = 32


def politely(items: Iterable[T]) -> Iterator[T]:
    """Yields the items, and gives way to other threads every few of them.

    A thread that computes keeps the GIL for five milliseconds at a time, by which each turn of a broker's event loop
    would be late while metrics with thousands of lines are made.
    """
    for number, item in enumerate(items):
        if number % _AT_ONCE == 0:
            time.sleep(0)
        yield item


def _bare(sample: Sample) -> str:
    return f"{sample.name} {_number(sample.value)}"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))


# -- brokers -------------------------------------------------------------------------------------------------


class Latencies(NamedTuple):
    """Counts by upper bound in milliseconds, the count above the last bound, and the sum of all in seconds; None if it
    is unknown.
    """

    counts: Mapping[int, int]
    above: int = 0
    seconds: float | None = None


_NO_LATENCIES: Final = Latencies({})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """What the metrics show of one broker."""

    cluster: str
    name: str
    broker_id: int
    state: BrokerAvailability
    is_healthy: bool
    """Whether it accepts messages and all of its threads and tasks work."""
    log_bytes: int = 0
    flush_behind_bytes: int = 0
    dispatch_behind_bytes: int = 0
    dispatch_behind_seconds: float = 0.0
    """Age of the oldest message that external dispatch has not made visible."""
    oldest_ms: int = 0
    """Age of the oldest message in milliseconds; 0 if there is none."""
    bytes_in: int = 0
    bytes_out: int = 0
    put_latency: Latencies = _NO_LATENCIES
    get_latency: Latencies = _NO_LATENCIES
    disk_used_ratio: float | None = None

    @property
    def labels(self) -> list[str]:
        return node_labels(self.cluster, self.name, self.broker_id)


def node_labels(cluster: str, name: str, broker_id: int) -> list[str]:
    """Returns RocketMQ's labels of a broker. The node id of a slave ends with its broker id."""
    return [cluster, "broker", f"{name}-{broker_id}" if broker_id else name]


_STORAGE: Final[dict[str, tuple[str, Callable[[NodeFigures], float]]]] = {
    "rocketmq_storage_size": ("Bytes of the commit log.", lambda node: node.log_bytes),
    "rocketmq_storage_flush_behind_bytes": ("Bytes not flushed yet.", lambda node: node.flush_behind_bytes),
    "rocketmq_storage_dispatch_behind_bytes": ("Bytes not dispatched yet.", lambda node: node.dispatch_behind_bytes),
    "rocketmq_storage_message_reserve_time": (
        "Age of the oldest message, in milliseconds.",
        lambda node: node.oldest_ms,
    ),
}


def node_metrics(ready: bool, nodes: Sequence[NodeFigures]) -> Iterator[Family]:
    """Yields each broker's state, health, storage and latencies. `ready`: all brokers serve."""
    state = Family("penstock_broker_state", "gauge", "1 for a broker's current state.", [*NODE, "state"])
    about = "1 if all threads and tasks of a broker work, and it accepts messages."
    healthy = Family("penstock_broker_healthy", "gauge", about, NODE)
    for node in nodes:
        healthy.add(node.labels, float(node.is_healthy))
        for each in BrokerAvailability:
            state.add([*node.labels, each.value], float(node.state is each))
    readiness = Family("penstock_ready", "gauge", "1 if all brokers serve.")
    readiness.add((), float(ready))
    yield from (state, healthy, readiness)
    reachable = [node for node in nodes if node.state is not BrokerAvailability.UNREACHABLE]
    for name, (about, value) in _STORAGE.items():
        gauge = Family(name, "gauge", about, [*NODE, "storage_type", "storage_medium"])
        for node in reachable:
            gauge.add([*node.labels, "local", "disk"], value(node))
        yield gauge
    received = Family("rocketmq_throughput_in_total", "counter", "Bytes received since the broker's start.", NODE)
    sent = Family("rocketmq_throughput_out_total", "counter", "Bytes sent since the broker's start.", NODE)
    put = Family("penstock_put_latency_milliseconds", "histogram", "Latency of puts.", NODE)
    get = Family("penstock_get_latency_milliseconds", "histogram", "Latency of gets from the store.", NODE)
    disk = Family("penstock_disk_used_ratio", "gauge", "Used share of the commit log's disk.", NODE)
    about = "Age of the oldest message that external dispatch has not made visible, in seconds."
    late = Family("penstock_dispatch_behind_seconds", "gauge", about, NODE)
    for node in reachable:
        received.add(node.labels, node.bytes_in)
        sent.add(node.labels, node.bytes_out)
        put.add_latencies(node.labels, node.put_latency)
        get.add_latencies(node.labels, node.get_latency)
        late.add(node.labels, node.dispatch_behind_seconds)
        if node.disk_used_ratio is not None:
            disk.add(node.labels, node.disk_used_ratio)
    yield from (received, sent, put, get, disk, late)


class CountedNode(NamedTuple):
    """A broker's labels, and what it has counted since its start."""

    labels: list[str]
    counters: BrokerCounters


def counter_metrics(nodes: Iterable[CountedNode], is_system: Callable[[str], bool]) -> Iterator[Family]:
    """Yields the brokers' counters by topic and group, without those of system topics."""
    of_group = [*NODE, "topic", "consumer_group", "is_retry"]
    came = Family("rocketmq_messages_in_total", "counter", "Messages stored in a topic.", [*NODE, "topic", "is_system"])
    dead = Family(
        "rocketmq_send_to_dlq_messages_total",
        "counter",
        "Messages that became dead letters.",
        [*NODE, "consumer_group"],
    )
    went = Family("rocketmq_messages_out_total", "counter", "Messages that a group has pulled.", of_group)
    about = "Requests that were refused or failed."
    refused = Family("penstock_requests_refused_total", "counter", about, [*NODE, "request_code"])
    for labels, counters in nodes:
        for topic, (messages, _) in politely(counters.messages_in.items()):
            if not is_system(topic):
                came.add([*labels, topic, "false"], messages)
            if topic.startswith(DLQ_PREFIX):
                dead.add([*labels, topic.removeprefix(DLQ_PREFIX)], messages)
        for name, (messages, _) in politely(counters.messages_out.items()):
            topic, _, group = name.partition("@")
            if not is_system(topic):
                went.add([*labels, topic, group, _is_retry(topic)], messages)
        for code, count in counters.requests_refused.items():
            refused.add([*labels, code], count)
    yield from (came, dead, went, refused)


def _is_retry(topic: str) -> str:
    return "true" if topic.startswith(RETRY_PREFIX) else "false"


class TopicLag(NamedTuple):
    """How far a group is behind in one topic of one broker."""

    labels: list[str]
    """The broker's."""
    topic: str
    group: str
    messages: int
    latency_ms: int
    """Milliseconds since the last consumed message was stored; 0 without lag."""


def lag_metrics(lags: Iterable[TopicLag], groups: int, topics: int) -> Iterator[Family]:
    """Yields the lag of groups, and the numbers of groups and topics, both without those of brokers and tools."""
    labels = [*NODE, "topic", "consumer_group", "is_retry"]
    behind = Family("rocketmq_consumer_lag_messages", "gauge", "Messages that a group has not consumed yet.", labels)
    about = "Milliseconds since the last consumed message was stored."
    late = Family("rocketmq_consumer_lag_latency", "gauge", about, labels)
    for each in politely(lags):
        values = [*each.labels, each.topic, each.group, _is_retry(each.topic)]
        behind.add(values, each.messages)
        late.add(values, each.latency_ms)
    group_number = Family("rocketmq_consumer_group_number", "gauge", "Consumer groups.")
    group_number.add((), groups)
    topic_number = Family("rocketmq_topic_number", "gauge", "Topics, without system topics.")
    topic_number.add((), topics)
    yield from (behind, late, group_number, topic_number)


# -- replication ---------------------------------------------------------------------------------------------


class SlaveFigures(NamedTuple):
    """A slave, as its master sees it."""

    address: str
    is_in_sync: bool
    behind_bytes: int
    behind_seconds: float
    acknowledged_ms: int


class ReplicationFigures(NamedTuple):
    """Replication at one broker: the slaves of a master, or the `master` that a slave follows or tries to follow."""

    labels: list[str]
    """The broker's."""
    is_slave: bool
    slaves: Sequence[SlaveFigures] = ()
    master: str = ""
    is_following: bool = False
    received_ms: int = 0


def replication_metrics(brokers: Iterable[ReplicationFigures]) -> Iterator[Family]:
    """Yields the metrics of each master's slaves, and whether each slave follows its master. RocketMQ 5 has no such
    metrics.
    """
    slaves = _replication("slaves", "Slaves that follow a master.")
    in_sync = _replication("in_sync", "1 for a slave that is close enough for a SYNC_MASTER to wait for.", "slave")
    behind = _replication("behind_bytes", "Bytes that a slave has not acknowledged yet.", "slave")
    age = _replication("behind_seconds", "Age of the oldest data that a slave has not acknowledged yet.", "slave")
    acknowledged = _replication("acknowledged_timestamp_seconds", "Time of a slave's last acknowledgement.", "slave")
    follows = _replication("follows", "1 for a slave that follows its master.", "master")
    received = _replication("received_timestamp_seconds", "Time when a slave last received data.", "master")
    for broker in brokers:
        if broker.is_slave:
            follows.add([*broker.labels, broker.master], float(broker.is_following))
            received.add([*broker.labels, broker.master], broker.received_ms / 1000)
            continue
        slaves.add(broker.labels, len(broker.slaves))
        for slave in broker.slaves:
            labels = [*broker.labels, slave.address]
            in_sync.add(labels, float(slave.is_in_sync))
            behind.add(labels, slave.behind_bytes)
            age.add(labels, slave.behind_seconds)
            acknowledged.add(labels, slave.acknowledged_ms / 1000)
    yield from (slaves, in_sync, behind, age, acknowledged, follows, received)


def _replication(name: str, about: str, *labels: str) -> Family:
    return Family(f"penstock_replication_{name}", "gauge", about, [*NODE, *labels])


# -- failover ------------------------------------------------------------------------------------------------


class ElectedNode(NamedTuple):
    """A broker's labels, and what it says about elections."""

    labels: list[str]
    report: HaElections


ELECTION_ROLES: Final = ("master", "slave", "candidate", "waiting")
_ELECTIONS: Final[dict[str, tuple[str, str, Callable[[HaElections], float]]]] = {
    "epoch": ("gauge", "The epoch of the broker's set.", lambda of: of.epoch),
    "has_master": ("gauge", "1 if the set has a master, as far as this broker knows.", lambda of: of.master != 0),
    "sync_set_size": ("gauge", "Replicas that have every acknowledged message.", lambda of: len(of.sync)),
    "required_replicas": (
        "gauge",
        "Replicas, a master among them, that must have a message before it is acknowledged; 0 for a slave.",
        lambda of: of.required,
    ),
    "engine_answers": ("gauge", "1 if the consensus engine answers this broker.", lambda of: of.engine_answers),
    "fenced": (
        "gauge",
        "1 for a master that takes no messages, because its lease may have ended.",
        lambda of: of.fenced != "",
    ),
    "lease_renewed_seconds": (
        "gauge",
        "Seconds since the last renewal of the broker's lease.",
        lambda of: of.renewed_seconds,
    ),
    "lease_left_seconds": ("gauge", "Seconds until the broker's lease may end.", lambda of: of.left_seconds),
    "failed_renewals_total": ("counter", "Renewals that the engine did not answer.", lambda of: of.failed_renewals),
    "elections_won_total": ("counter", "How often this process was elected.", lambda of: of.elections_won),
    "role_changes_total": ("counter", "How often this process became master or slave.", lambda of: of.role_changes),
    "tails_cut_total": (
        "counter",
        "Tails of the log that a master did not have, and were cut.",
        lambda of: of.tails_cut,
    ),
    "tail_bytes_cut_total": ("counter", "Bytes of these tails.", lambda of: of.tail_bytes_cut),
}


def failover_metrics(nodes: Iterable[ElectedNode]) -> Iterator[Family]:
    """Yields the metrics of brokers that are elected; nothing if there are none."""
    nodes = list(nodes)
    if not nodes:
        return
    role = Family("penstock_failover_role", "gauge", "1 for a broker's current role.", [*NODE, "role"])
    for node in nodes:
        for each in ELECTION_ROLES:
            role.add([*node.labels, each], float(node.report.role == each))
    yield role
    for name, (kind, about, value) in _ELECTIONS.items():
        family = Family(f"penstock_failover_{name}", kind, about, NODE)
        for node in nodes:
            family.add(node.labels, float(value(node.report)))
        yield family
