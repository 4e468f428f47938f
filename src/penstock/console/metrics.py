"""Replication in /metrics. RocketMQ 5 has no names for it, so these are Penstock's own.

/metrics: RocketMQ 5's names and labels, for Prometheus; and /healthz and /readyz, for whoever restarts things.

What brokers of 4.9 tell an administrator is less than what those of 5 count, so some of RocketMQ 5's metrics are not
here, and some are derived: messages in are the sum of a topic's next queue offsets, messages out the sum of a group's
offsets. See docs/reference/console.md.
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
from penstock.console.console import Console
from penstock.console.figures import BrokerAvailability, BrokerFigures, QueueRow, TopicKind
from penstock.console.health import Health, look
from penstock.console.replication import BrokerReplication
from penstock.errors import PenstockError
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX

NODE: Final = ("cluster", "node_type", "node_id")


def node_labels(cluster: str, name: str, broker_id: int) -> list[str]:
    """RocketMQ's labels of a node; a slave's id tells its number."""
    return [cluster, "broker", f"{name}-{broker_id}" if broker_id else name]


def of_replication(found: list[BrokerReplication]) -> Iterator[Metric]:
    """Of masters: each slave. Of slaves: whether they follow."""
    slaves = _gauge("slaves", "Slaves that follow a master.")
    in_sync = _gauge("in_sync", "1 for a slave that is near enough to be waited for.", "slave")
    behind = _gauge("behind_bytes", "Bytes that a slave has yet to acknowledge.", "slave")
    late = _gauge("behind_seconds", "How old what a slave has yet to acknowledge is.", "slave")
    heard = _gauge("acknowledged_timestamp_seconds", "When a slave last acknowledged anything.", "slave")
    follows = _gauge("follows", "1 for a slave that follows its master.", "master")
    received = _gauge("received_timestamp_seconds", "When a slave last received anything.", "master")
    for each in found:
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
            late.add_metric(labels, slave.behind_seconds)
            heard.add_metric(labels, slave.last_acknowledged_ms / 1000)
    yield from (slaves, in_sync, behind, late, heard, follows, received)


def _gauge(name: str, about: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_replication_{name}", about, labels=[*NODE, *labels])


_KEPT_S = 10.0
_STATES = tuple(BrokerAvailability)


def add_metrics(app: FastAPI, console: Console) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        text = await console.view.cache.get("metrics", lambda: collect(console), _KEPT_S)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """The console itself is alive."""
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        """Whether messages can be sent and received: 200 or 503, and why."""
        found = await look(console.view, console.parent)
        return JSONResponse(asdict(found), status_code=200 if found.ready else 503)


async def collect(console: Console) -> bytes:
    """All metrics, as text."""
    view = console.view
    health = await look(view, console.parent)
    brokers: list[BrokerFigures] = []
    topics: dict[str, list[QueueRow]] = {}
    groups: dict[str, GroupProgress] = {}
    following: list[BrokerReplication] = []
    try:
        brokers = await view.brokers()
        following = await view.replication()
        rows = [row for row in await view.topics() if row.kind is not TopicKind.SYSTEM]
        topics = await view.queues(row.name for row in rows)
        groups = await view.progress()
    except PenstockError:
        pass  # what is up and what is not is told all the same
    registry = CollectorRegistry()
    told = (_of_brokers(health, brokers), _of_topics(brokers, topics), _of_groups(brokers, groups))
    registry.register(_Told([*itertools.chain(*told), *of_replication(following)]))
    return generate_latest(registry)


class _Told(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[Metric]:
        yield from self._found


def _of_brokers(health: Health, brokers: list[BrokerFigures]) -> Iterator[Metric]:
    state = GaugeMetricFamily("penstock_broker_state", "1 for the state that a broker is in.", labels=[*NODE, "state"])
    for broker in brokers:
        for each in _STATES:
            state.add_metric([*_node(broker), each.value], float(broker.state is each))
    yield state
    yield GaugeMetricFamily("penstock_ready", "1 if all brokers take and give messages.", value=float(health.ready))
    masters = [each for each in brokers if each.state is not BrokerAvailability.UNREACHABLE]
    now = time.time_ns() // 1_000_000
    gauges: dict[str, tuple[str, Callable[[BrokerFigures], float]]] = {
        "rocketmq_storage_size": ("Bytes of the commit log.", lambda b: b.log_max_offset - b.log_min_offset),
        "rocketmq_storage_flush_behind_bytes": ("Bytes not flushed yet.", lambda b: b.flush_behind_bytes),
        "rocketmq_storage_dispatch_behind_bytes": ("Bytes not in queues yet.", lambda b: b.dispatch_behind_bytes),
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
        "rocketmq_throughput_in_total", "Bytes that came in since the broker's start.", labels=NODE
    )
    latency = HistogramMetricFamily("penstock_put_latency_milliseconds", "How long puts took.", labels=NODE)
    disk = GaugeMetricFamily("penstock_disk_used_ratio", "How full the commit log's disk is.", labels=NODE)
    for broker in masters:
        throughput.add_metric(_node(broker), broker.put_bytes)
        if broker.put_latency:
            latency.add_metric(_node(broker), _buckets(broker.put_latency), sum_value=None)
        if broker.disk_used_ratio is not None:
            disk.add_metric(_node(broker), broker.disk_used_ratio)
    yield throughput
    yield latency
    yield disk


def _of_topics(brokers: list[BrokerFigures], topics: dict[str, list[QueueRow]]) -> Iterator[Metric]:
    by_name = {broker.name: broker for broker in brokers if broker.broker_id == 0}
    came = CounterMetricFamily(
        "rocketmq_messages_in_total", "Messages that came into a topic.", labels=[*NODE, "topic", "is_system"]
    )
    dead = CounterMetricFamily(
        "rocketmq_send_to_dlq_messages_total", "Messages that became dead letters.", labels=[*NODE, "consumer_group"]
    )
    for topic, queues in topics.items():
        totals: dict[str, int] = {}
        for queue in queues:
            totals[queue.broker] = totals.get(queue.broker, 0) + queue.max_offset
        for name, total in totals.items():
            if name not in by_name:
                continue
            came.add_metric([*_node(by_name[name]), topic, "false"], total)
            if topic.startswith(DLQ_PREFIX):
                dead.add_metric([*_node(by_name[name]), topic.removeprefix(DLQ_PREFIX)], total)
    yield came
    yield dead
    yield GaugeMetricFamily("rocketmq_topic_number", "Topics, without those of the brokers.", value=len(topics))


def _of_groups(brokers: list[BrokerFigures], groups: dict[str, GroupProgress]) -> Iterator[Metric]:
    by_name = {broker.name: broker for broker in brokers if broker.broker_id == 0}
    labels = [*NODE, "topic", "consumer_group", "is_retry"]
    lag = GaugeMetricFamily(
        "rocketmq_consumer_lag_messages", "Messages that a group has yet to consume.", labels=labels
    )
    late = GaugeMetricFamily(
        "rocketmq_consumer_lag_latency", "Milliseconds since what was consumed last had been stored.", labels=labels
    )
    went = CounterMetricFamily("rocketmq_messages_out_total", "Messages that a group has consumed.", labels=labels)
    now = time.time_ns() // 1_000_000
    for group, progress in groups.items():
        sums: dict[tuple[str, str], list[int]] = {}
        for each in progress.queues:
            total = sums.setdefault((each.queue.broker_name, each.queue.topic), [0, 0, 0])
            total[0] += each.lag
            total[1] += each.consumer_offset
            if each.lag and each.last_timestamp > 0:
                total[2] = max(total[2], now - each.last_timestamp)
        for (name, topic), (behind, consumed, latency) in sums.items():
            if name in by_name:
                is_retry = "true" if topic.startswith(RETRY_PREFIX) else "false"
                values = [*_node(by_name[name]), topic, group, is_retry]
                lag.add_metric(values, behind)
                late.add_metric(values, latency)
                went.add_metric(values, consumed)
    yield from (lag, late, went)
    yield GaugeMetricFamily("rocketmq_consumer_group_number", "Consumer groups.", value=len(groups))


def _node(broker: BrokerFigures) -> list[str]:
    return node_labels(broker.cluster, broker.name, broker.broker_id)


def _buckets(latency: dict[int, int]) -> list[tuple[str, float]]:
    seen, found = 0, []
    for bound, count in sorted(latency.items()):
        seen += count
        found.append((str(float(bound)), float(seen)))
    return [*found, ("+Inf", float(seen))]
