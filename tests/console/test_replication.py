"""Who follows whom, as the console reads it from a live pair of brokers and tells it in its metrics."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from support.clusters import member, name_server
from support.loopback import free_port

from penstock.client.admin import Admin
from penstock.console.cluster_view import ClusterView
from penstock.console.metrics import replication_figures
from penstock.console.replication import BrokerReplication
from penstock.observation.metrics import Family, replication_metrics
from penstock.testing import broker

SOON_S = 60.0
MASTER = {"brokerRole": "ASYNC_MASTER"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}


def ask(namesrv: str) -> list[BrokerReplication]:
    async def act() -> list[BrokerReplication]:
        async with Admin(namesrv) as admin:
            return await ClusterView(admin).replication()

    return asyncio.run(act())


def until_followed(namesrv: str) -> list[BrokerReplication]:
    """Waits until both report each other and the slave has caught up."""
    deadline = time.monotonic() + SOON_S
    while True:
        found = ask(namesrv)
        slaves = [slave for each in found for slave in each.slaves]
        if len(found) == 2 and found[1].is_following and slaves and not slaves[0].behind_bytes:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def values(families: list[Family]) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {family.name: [(each.labels, each.value) for each in family.samples] for family in families}


def test_a_master_without_slaves_reports_none() -> None:
    with broker({"orders": 1}) as running:
        [alone] = ask(running.namesrv)
    assert (alone.broker, alone.is_alone, alone.slaves) == ("broker-a", True, [])
    metrics = values(list(replication_metrics([replication_figures(alone)])))
    assert [value for _, value in metrics["penstock_replication_slaves"]] == [0.0]
    assert metrics["penstock_replication_behind_bytes"] == []


def test_a_pair_is_told_from_both_sides(tmp_path: Path) -> None:
    with name_server() as namesrv:
        settings = {**MASTER, "haListenPort": free_port()}
        master, slave = member(tmp_path / "m", namesrv, **settings), member(tmp_path / "s", namesrv, **SLAVE)
        with master, slave:
            ahead, behind = until_followed(namesrv)
    [seen] = ahead.slaves
    assert seen.acknowledged == ahead.log_end
    assert abs(seen.last_acknowledged_ms - time.time() * 1000) < SOON_S * 1000
    assert (behind.is_slave, behind.role, behind.problem) == (True, "SLAVE", "")
    metrics = values(list(replication_metrics(map(replication_figures, (ahead, behind)))))
    node = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    assert metrics["penstock_replication_slaves"] == [(node, 1.0)]
    assert metrics["penstock_replication_behind_bytes"] == [({**node, "slave": seen.address}, 0.0)]
    assert metrics["penstock_replication_behind_seconds"] == [({**node, "slave": seen.address}, 0.0)]
    [(labels, acknowledged)] = metrics["penstock_replication_acknowledged_timestamp_seconds"]
    assert (labels["slave"], acknowledged) == (seen.address, seen.last_acknowledged_ms / 1000)
    assert metrics["penstock_replication_follows"] == [
        ({**node, "node_id": "broker-a-1", "master": behind.follows}, 1.0)
    ]
