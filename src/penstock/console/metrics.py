"""/metrics for Prometheus; /healthz and /readyz for supervisors.

The metrics are those of `observation.metrics`, filled from what the brokers of the cluster report to an administrator.
RocketMQ 4.9 brokers report less to administrators than RocketMQ 5 counts. So some of RocketMQ 5's metrics are missing,
and a Java broker has no counters by topic and group. See docs/reference/console.md.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import asdict

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from penstock.client.admin.groups import GroupProgress
from penstock.console.cluster_figures import BrokerFigures, TopicKind, TopicRow
from penstock.console.console import Console
from penstock.console.health import check_health
from penstock.console.replication import BrokerReplication
from penstock.errors import PenstockError
from penstock.observation.metrics import (
    CONTENT_TYPE,
    BrokerAvailability,
    CountedNode,
    Latencies,
    NodeFigures,
    ReplicationFigures,
    SlaveFigures,
    TopicLag,
    counter_metrics,
    lag_metrics,
    node_labels,
    node_metrics,
    render,
    replication_metrics,
)
from penstock.protocol.bodies.stats import BrokerCounters

_KEPT_S = 10.0


def add_metrics(app: FastAPI, console: Console) -> None:
    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        text = await console.view.cache.get("metrics", lambda: collect(console), _KEPT_S)
        return Response(text, media_type=CONTENT_TYPE)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """The console itself runs; `why` says which of its tasks fail."""
        return {"status": "ok", "why": "; ".join(console.tasks.problems.values())}

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
    own = frozenset(name for broker in brokers for name in (broker.name, broker.cluster))
    counted = (CountedNode(_labels(broker), counts) for broker, counts in counters)
    topics = sum(row.kind is not TopicKind.SYSTEM for row in rows)
    families = (
        node_metrics(health.ready, [node_figures(broker) for broker in brokers]),
        counter_metrics(counted, lambda topic: TopicKind.of(topic, own) is TopicKind.SYSTEM),
        lag_metrics(_lags(brokers, groups), len(groups), topics),
        replication_metrics(map(replication_figures, replication)),
    )
    return render(itertools.chain(*families))


def node_figures(broker: BrokerFigures) -> NodeFigures:
    """Returns what the metrics show of a broker."""
    now = time.time_ns() // 1_000_000
    return NodeFigures(
        cluster=broker.cluster,
        name=broker.name,
        broker_id=broker.broker_id,
        state=broker.state,
        is_healthy=broker.is_healthy and broker.state is not BrokerAvailability.UNREACHABLE,
        log_bytes=broker.log_max_offset - broker.log_min_offset,
        flush_behind_bytes=broker.flush_behind_bytes,
        dispatch_behind_bytes=broker.dispatch_behind_bytes,
        dispatch_behind_seconds=broker.dispatch_behind_ms / 1000,
        oldest_ms=max(0, now - broker.earliest_ms) if broker.earliest_ms > 0 else 0,
        bytes_in=broker.put_bytes,
        bytes_out=broker.got_bytes,
        put_latency=Latencies(broker.put_latency, broker.put_latency_above, broker.put_seconds),
        get_latency=Latencies(broker.get_latency, broker.get_latency_above, broker.get_seconds),
        disk_used_ratio=broker.disk_used_ratio,
    )


def replication_figures(broker: BrokerReplication) -> ReplicationFigures:
    """Returns what the metrics show of replication at a broker."""
    slaves = [
        SlaveFigures(each.address, each.is_in_sync, each.behind_bytes, each.behind_seconds, each.last_acknowledged_ms)
        for each in broker.slaves
    ]
    labels = node_labels(broker.cluster, broker.broker, broker.broker_id)
    return ReplicationFigures(
        labels, broker.is_slave, slaves, broker.follows, broker.is_following, broker.last_received_ms
    )


def _labels(broker: BrokerFigures) -> list[str]:
    return node_labels(broker.cluster, broker.name, broker.broker_id)


def _lags(brokers: list[BrokerFigures], groups: dict[str, GroupProgress]) -> Iterator[TopicLag]:
    by_name = {broker.name: broker for broker in brokers if broker.broker_id == 0}
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
                yield TopicLag(_labels(by_name[name]), topic, group, behind, latency)
