"""Brokers that elect their master in an engine, under load, and all kinds of accidents: what is acknowledged stays.

The checkers of `support.failover.checkers` judge each run. `PENSTOCK_SEED` repeats a plan of accidents, and
`PENSTOCK_ROUNDS` and `PENSTOCK_FAILOVERS` make it longer. A run that breaks a rule leaves its history, in the folder
that `PENSTOCK_EVIDENCE` names.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.effort import chosen_seed, tell_progress
from support.failover.cluster import Cluster
from support.failover.fire import judge, run
from support.failover.network import network
from support.failover.plan import Blow, Kind, Shape, Side, StrikePlan, make_plan
from support.peers import JAVA, PeerError, build

pytestmark = pytest.mark.timeout(1800)

TTL_S = 3
LIMITS_S = {kind.value: 45.0 for kind in Kind}
"""A busy machine takes seconds to start a broker; the benchmark has the real figures."""
EACH_KIND = [
    Blow(0.5, (StrikePlan(Kind.KILL, Side.MASTER, 0.5),)),
    Blow(0.5, (StrikePlan(Kind.PAUSE, Side.MASTER, 2.0 * TTL_S),)),
    Blow(0.5, (StrikePlan(Kind.SWITCHOVER, Side.MASTER),)),
    Blow(0.5, (StrikePlan(Kind.LOSE_DISK, Side.MASTER, 0.2),)),
    Blow(0.5, (StrikePlan(Kind.KILL, Side.SLAVE, 0.2),)),
    Blow(0.5, (StrikePlan(Kind.KILL, Side.BROKERS, 0.2),)),
    Blow(0.5, (StrikePlan(Kind.STOP, Side.MASTER, 0.2),)),
]


@pytest.mark.etcd
def test_each_kind_of_accident_alone_loses_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path / "set", ttl_s=TTL_S) as cluster:
        history = run(cluster, EACH_KIND, chosen_seed())
    assert judge(history, LIMITS_S, tmp_path) == []
    assert len({leader.epoch for leader in history.leaders}) > 3, "masters were replaced"


@pytest.mark.etcd
def test_switchovers_deliver_nothing_twice(tmp_path: Path) -> None:
    with Cluster(tmp_path / "set", ttl_s=TTL_S) as cluster:
        history = run(cluster, [Blow(1.0, (StrikePlan(Kind.SWITCHOVER, Side.MASTER),))] * 3, chosen_seed())
    assert judge(history, LIMITS_S, tmp_path) == []
    assert len({leader.epoch for leader in history.leaders}) > 1


@pytest.mark.zookeeper
def test_a_kill_a_pause_and_a_switchover_with_zookeeper_lose_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path / "set", engine="zookeeper", ttl_s=TTL_S) as cluster:
        history = run(cluster, [*EACH_KIND[:3], EACH_KIND[-1]], chosen_seed())
    assert judge(history, LIMITS_S, tmp_path) == []
    assert len({leader.epoch for leader in history.leaders}) > 3, "masters were replaced"


@pytest.mark.etcd
def test_accidents_by_chance_lose_nothing(tmp_path: Path) -> None:
    seed, shape = chosen_seed(), Shape(engines=3, ttl_s=TTL_S, has_clocks=True)
    with Cluster(tmp_path / "set", engines=3, ttl_s=TTL_S, has_clocks=True) as cluster:
        history = run(cluster, make_plan(seed, int(os.environ.get("PENSTOCK_ROUNDS", "8")), shape), seed)
    assert judge(history, LIMITS_S, tmp_path) == []


@pytest.mark.etcd
def test_partitions_lose_nothing(tmp_path: Path) -> None:
    seed, shape = chosen_seed(), Shape(engines=3, ttl_s=TTL_S, has_network=True)
    plan = make_plan(seed, int(os.environ.get("PENSTOCK_ROUNDS", "8")), shape, only={Kind.CUT, Kind.SLOW})
    with network() as machines, Cluster(tmp_path / "set", engines=3, ttl_s=TTL_S, machines=machines) as cluster:
        history = run(cluster, plan, seed)
    assert judge(history, LIMITS_S, tmp_path) == []


@pytest.mark.etcd
@pytest.mark.torture
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("brokers", [2, 3])
def test_whatever_happens_nothing_that_was_acknowledged_is_lost(tmp_path: Path, brokers: int, flush: str) -> None:
    """Until PENSTOCK_FAILOVERS / 4 masters were elected after the first, in clusters of 25 blows each.

    Logs stay small that way. Java's clients take part where they can be had.
    """
    wanted, seed = int(os.environ.get("PENSTOCK_FAILOVERS", "1000")) // 4, chosen_seed()
    shape = Shape(brokers=brokers, engines=3, ttl_s=TTL_S, has_network=True, has_clocks=True)
    blows = acknowledged = failovers = 0
    try:
        java = build(JAVA / "client")
    except PeerError as reason:
        java = []
        print(f"without Java's clients: {reason}")
    while failovers < wanted:
        assert blows <= 10 * wanted, f"{failovers} failovers after {blows} blows"
        plan, folder = make_plan(seed + blows, 25, shape, on_master=0.8), tmp_path / str(blows)
        settings = {"flushDiskType": flush}
        with (
            network() as machines,
            Cluster(
                folder,
                brokers=brokers,
                engines=3,
                ttl_s=TTL_S,
                machines=machines,
                has_clocks=True,
                settings=settings,
            ) as cluster,
        ):
            history = run(cluster, plan, seed + blows, java=java)
        assert judge(history, LIMITS_S, tmp_path) == [], f"seed {seed + blows}"
        shutil.rmtree(folder)
        acknowledged += sum(1 for _ in history.acknowledged)
        failovers += len({leader.epoch for leader in history.leaders}) - 1
        blows += len(plan)
        done = f"{brokers} brokers, {flush}: {blows} blows, {acknowledged:,} SEND_OK, failovers"
        tell_progress(done, failovers, wanted, 1)
