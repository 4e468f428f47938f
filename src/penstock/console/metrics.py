"""/metrics for Prometheus, with RocketMQ 5's names and labels; /healthz and /readyz for supervisors.

Counters are those of the brokers, and never fall while a broker runs: what is deleted or reset lowers none. RocketMQ
4.9 brokers report less to administrators than RocketMQ 5 counts. So some of RocketMQ 5's metrics are missing, and a
Java broker has no counters by topic and group. Replication metrics have Penstock's own names. See
docs/reference/console.md.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Final

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.client.admin.groups import GroupProgress
from penstock.console.cluster_summary import BrokerAvailability, BrokerFigures, TopicKind, TopicRow
from penstock.console.console import Console
from penstock.console.health import Health, check_health
from penstock.console.replication import BrokerReplication
from penstock.errors import PenstockError
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol.bodies.stats import BrokerCounters

NODE: Final = ("cluster", "node_type", "node_id")


_KEPT_S = 10.0
_STATES = tuple(BrokerAvailability)


def add_metrics(app: FastAPI, console: Console) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        text = await console.view.cache.get("metrics", lambda: collect(console), _KEPT_S)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """The console itself runs."""
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        """200 if all brokers serve, else 503, with the reason."""
        health = await check_health(console.view, console.parent)
        return JSONResponse(asdict(health), status_code=200 if health.ready else 503)


async def collect(console: Console) -> bytes:
    """Returns all metrics in Prometheus' text format."""
    view = console.view
    health = await check_health(view, console.parent)
    brokers: list[BrokerFigures] = []
    rows: list[TopicRow] = []
    groups: dict[str, GroupProgress] = {}
    counters: list[tuple[BrokerFigures, BrokerCounters]] = []
    replication: list[BrokerReplication] = []
    try:
        brokers = await view.brokers()
        counters = await view.counters()
        replication = await view.replication()
        rows = await view.topics()
        groups = await view.progress()
    except PenstockError:
        pass  # the metrics of the cluster's state are still reported
    registry = CollectorRegistry()
    families = (
        broker_metrics(health, brokers),
        counter_metrics(counters),
        _group_metrics(brokers, groups),
        replication_metrics(replication),
    )
    topics = [row for row in rows if row.kind is not TopicKind.SYSTEM]
    number = GaugeMetricFamily("rocketmq_topic_number", "Topics, without system topics.", value=len(topics))
    registry.register(_FixedCollector([*itertools.chain(*families), number]))
    return generate_latest(registry)


class _FixedCollector(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def broker_metrics(health: Health, brokers: list[BrokerFigures]) -> Iterator[Metric]:
    """Yields each broker's state, health, store and latencies."""
    state = GaugeMetricFamily("penstock_broker_state", "1 for a broker's current state.", labels=[*NODE, "state"])
    for broker in brokers:
        for each in _STATES:
            state.add_metric([*_node(broker), each.value], float(broker.state is each))
    yield state
    healthy = GaugeMetricFamily(
        "penstock_broker_healthy", "1 if all threads and tasks of a broker work, and it accepts messages.", labels=NODE
    )
    for broker in brokers:
        healthy.add_metric(
            _node(broker), float(broker.is_healthy and broker.state is not BrokerAvailability.UNREACHABLE)
        )
    yield healthy
    yield GaugeMetricFamily("penstock_ready", "1 if all brokers serve.", value=float(health.ready))
    masters = [each for each in brokers if each.state is not BrokerAvailability.UNREACHABLE]
    now = time.time_ns() // 1_000_000
    gauges: dict[str, tuple[str, Callable[[BrokerFigures], float]]] = {
        "rocketmq_storage_size": ("Bytes of the commit log.", lambda b: b.log_max_offset - b.log_min_offset),
        "rocketmq_storage_flush_behind_bytes": ("Bytes not flushed yet.", lambda b: b.flush_behind_bytes),
        "rocketmq_storage_dispatch_behind_bytes": ("Bytes not dispatched yet.", lambda b: b.dispatch_behind_bytes),
        "rocketmq_storage_message_reserve_time": (
            "Age of the oldest message, in milliseconds.",
            lambda b: max(0, now - b.earliest_ms) if b.earliest_ms > 0 else 0,
        ),
    }
    for name, (about, value) in gauges.items():
        gauge = GaugeMetricFamily(name, about, labels=[*NODE, "storage_type", "storage_medium"])
        for broker in masters:
            gauge.add_metric([*_node(broker), "local", "disk"], value(broker))
        yield gauge
    throughput = CounterMetricFamily(
        "rocketmq_throughput_in_total", "Bytes received since the broker's start.", labels=NODE
    )
    sent = CounterMetricFamily("rocketmq_throughput_out_total", "Bytes sent since the broker's start.", labels=NODE)
    put = HistogramMetricFamily("penstock_put_latency_milliseconds", "Latency of puts.", labels=NODE)
    get = HistogramMetricFamily("penstock_get_latency_milliseconds", "Latency of gets from the store.", labels=NODE)
    disk = GaugeMetricFamily("penstock_disk_used_ratio", "Used share of the commit log's disk.", labels=NODE)
    for broker in masters:
        throughput.add_metric(_node(broker), broker.put_bytes)
        sent.add_metric(_node(broker), broker.got_bytes)
        _add_latency(put, broker, broker.put_latency, broker.put_latency_above, broker.put_seconds)
        _add_latency(get, broker, broker.get_latency, broker.get_latency_above, broker.get_seconds)
        if broker.disk_used_ratio is not None:
            disk.add_metric(_node(broker), broker.disk_used_ratio)
    yield from (throughput, sent, put, get, disk)


def counter_metrics(brokers: list[tuple[BrokerFigures, BrokerCounters]]) -> Iterator[Metric]:
    """Yields the brokers' counters by topic and group, without those of system topics."""
    own = frozenset(name for broker, _ in brokers for name in (broker.name, broker.cluster))
    of_group = [*NODE, "topic", "consumer_group", "is_retry"]
    came = CounterMetricFamily(
        "rocketmq_messages_in_total", "Messages stored in a topic.", labels=[*NODE, "topic", "is_system"]
    )
    dead = CounterMetricFamily(
        "rocketmq_send_to_dlq_messages_total", "Messages that became dead letters.", labels=[*NODE, "consumer_group"]
    )
    went = CounterMetricFamily("rocketmq_messages_out_total", "Messages that a group has pulled.", labels=of_group)
    refused = CounterMetricFamily(
        "penstock_requests_refused_total", "Requests that were refused or failed.", labels=[*NODE, "request_code"]
    )
    for broker, counters in brokers:
        node = _node(broker)
        for topic, (messages, _) in counters.messages_in.items():
            if TopicKind.of(topic, own) is not TopicKind.SYSTEM:
                came.add_metric([*node, topic, "false"], messages)
            if topic.startswith(DLQ_PREFIX):
                dead.add_metric([*node, topic.removeprefix(DLQ_PREFIX)], messages)
        for name, (messages, _) in counters.messages_out.items():
            topic, _, group = name.partition("@")
            if TopicKind.of(topic, own) is not TopicKind.SYSTEM:
                went.add_metric([*node, topic, group, str(topic.startswith(RETRY_PREFIX)).lower()], messages)
        for code, count in counters.requests_refused.items():
            refused.add_metric([*node, code], count)
    yield from (came, dead, went, refused)


def _group_metrics(brokers: list[BrokerFigures], groups: dict[str, GroupProgress]) -> Iterator[Metric]:
    by_name = {broker.name: broker for broker in brokers if broker.broker_id == 0}
    labels = [*NODE, "topic", "consumer_group", "is_retry"]
    lag = GaugeMetricFamily(
        "rocketmq_consumer_lag_messages", "Messages that a group has not consumed yet.", labels=labels
    )
    late = GaugeMetricFamily(
        "rocketmq_consumer_lag_latency", "Milliseconds since the last consumed message was stored.", labels=labels
    )
    now = time.time_ns() // 1_000_000
    for group, progress in groups.items():
        sums: dict[tuple[str, str], list[int]] = {}
        for each in progress.queues:
            total = sums.setdefault((each.queue.broker_name, each.queue.topic), [0, 0])
            total[0] += each.lag
            if each.lag and each.last_timestamp > 0:
                total[1] = max(total[1], now - each.last_timestamp)
        for (name, topic), (behind, latency) in sums.items():
            if name in by_name:
                is_retry = "true" if topic.startswith(RETRY_PREFIX) else "false"
                values = [*_node(by_name[name]), topic, group, is_retry]
                lag.add_metric(values, behind)
                late.add_metric(values, latency)
    yield from (lag, late)
    yield GaugeMetricFamily("rocketmq_consumer_group_number", "Consumer groups.", value=len(groups))


def replication_metrics(brokers: list[BrokerReplication]) -> Iterator[Metric]:
    """Yields the metrics of each master's slaves, and whether each slave follows its master. RocketMQ 5 has no such
    metrics.
    """
    slaves = _gauge("slaves", "Slaves that follow a master.")
    in_sync = _gauge("in_sync", "1 for a slave that is close enough for a SYNC_MASTER to wait for.", "slave")
    behind = _gauge("behind_bytes", "Bytes that a slave has not acknowledged yet.", "slave")
    age = _gauge("behind_seconds", "Age of the oldest data that a slave has not acknowledged yet.", "slave")
    acknowledged = _gauge("acknowledged_timestamp_seconds", "Time of a slave's last acknowledgement.", "slave")
    follows = _gauge("follows", "1 for a slave that follows its master.", "master")
    received = _gauge("received_timestamp_seconds", "Time when a slave last received data.", "master")
    for each in brokers:
        node = node_labels(each.cluster, each.broker, each.broker_id)
        if each.is_slave:
            follows.add_metric([*node, each.follows], float(each.is_following))
            received.add_metric([*node, each.follows], each.last_received_ms / 1000)
            continue
        slaves.add_metric(node, len(each.slaves))
        for slave in each.slaves:
            labels = [*node, slave.address]
            in_sync.add_metric(labels, float(slave.is_in_sync))
            behind.add_metric(labels, slave.behind_bytes)
            age.add_metric(labels, slave.behind_seconds)
            acknowledged.add_metric(labels, slave.last_acknowledged_ms / 1000)
    yield from (slaves, in_sync, behind, age, acknowledged, follows, received)


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_replication_{name}", about, labels=[*NODE, *labels])


def node_labels(cluster: str, name: str, broker_id: int) -> list[str]:
    """Returns RocketMQ's labels of a broker. The node id of a slave ends with its broker id."""
    return [cluster, "broker", f"{name}-{broker_id}" if broker_id else name]


def _node(broker: BrokerFigures) -> list[str]:
    return node_labels(broker.cluster, broker.name, broker.broker_id)


def _add_latency(
    metric: HistogramMetricFamily, broker: BrokerFigures, counts: dict[int, int], above: int, seconds: float | None
) -> None:
    """Adds a broker's histogram. Every put is in a bucket: `above` are those above the last bound."""
    if not counts:
        return
    seen, buckets = 0, []
    for bound, count in sorted(counts.items()):
        seen += count
        buckets.append((str(float(bound)), float(seen)))
    buckets.append(("+Inf", float(seen + above)))
    metric.add_metric(_node(broker), buckets, sum_value=None if seconds is None else seconds * 1000)
