"""Who follows whom, as the console reads it from a live pair of brokers and tells it in its metrics."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from support.clusters import member, name_server
from support.loopback import free_port

from penstock.client.admin import Admin
from penstock.console.cached_cluster import ClusterView
from penstock.console.metrics import replication_figures
from penstock.console.replication import BrokerReplication, Election, PastMaster, Replica, Slave, replica_sets
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


def elected(
    own_id: int, role: str, *, epoch: int = 5, problem: str = "", slaves: list[Slave] | None = None
) -> BrokerReplication:
    """The report of one broker of three: 1 is master, 2 follows, 3 does not run."""
    replicas = [
        Replica(id=1, address="h:1", role="master", epoch=epoch, is_in_sync=True, log_end=90, why=""),
        Replica(id=2, address="h:2", role="slave", epoch=epoch, is_in_sync=True, log_end=80, why=""),
        Replica(id=3, address="", role="", epoch=0, is_in_sync=False, log_end=0, why="it is not running"),
    ]
    return BrokerReplication(
        broker="broker-a",
        cluster="c",
        address=f"h:{own_id}",
        broker_id=0 if role == "master" else own_id,
        role=role,
        log_end=100,
        slaves=slaves or [],
        election=Election(
            id=own_id,
            role=role,
            epoch=epoch,
            master=1,
            is_paused=False,
            engine_answers=not problem,
            problem=problem,
            lease_left_seconds=own_id + 0.5,
            replicas=replicas,
            masters=[PastMaster(epoch=epoch, master=1, since_ms=1, why="elected", is_forced=False)],
        ),
    )


def test_the_reports_of_a_set_are_joined() -> None:
    lags = Slave(
        address="h:999",
        acknowledged=70,
        behind_bytes=30,
        behind_seconds=2.0,
        last_acknowledged_ms=1,
        is_in_sync=True,
        replica_id=2,
    )
    stale = elected(2, "slave", epoch=4, problem="the engine does not answer")
    [found] = replica_sets([stale, elected(1, "master", slaves=[lags])])
    assert (found.broker, found.epoch, [each.epoch for each in found.masters]) == ("broker-a", 5, [5])
    master, slave, gone = found.replicas
    assert (master.behind_bytes, master.lease_left_seconds, master.log_end) == (None, 1.5, 100)
    assert (slave.behind_bytes, slave.behind_seconds, slave.lease_left_seconds) == (30, 2.0, 2.5)
    assert slave.why == "the engine does not answer", "what it says of itself is newer than what others know"
    assert (gone.why, gone.lease_left_seconds, gone.behind_bytes) == ("it is not running", None, None)


def test_brokers_that_are_not_elected_are_in_no_set() -> None:
    plain = BrokerReplication(broker="b", cluster="c", address="h:1", broker_id=0, role="ASYNC_MASTER", log_end=0)
    assert replica_sets([plain]) == []
