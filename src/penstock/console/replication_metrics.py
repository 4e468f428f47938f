"""Replication in /metrics. RocketMQ 5 has no names for it, so these are Penstock's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from penstock.console.replication import Replication

NODE: Final = ("cluster", "node_type", "node_id")


def node_labels(cluster: str, name: str, broker_id: int) -> list[str]:
    """RocketMQ's labels of a node; a slave's id tells its number."""
    return [cluster, "broker", f"{name}-{broker_id}" if broker_id else name]


def of_replication(found: list[Replication]) -> Iterator[Metric]:
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
