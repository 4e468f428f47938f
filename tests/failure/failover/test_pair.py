"""A master and a slave without failover, under load and kills: the harness finds nothing that is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.effort import chosen_seed
from support.failover.cluster import Cluster
from support.failover.fire import judge, run
from support.failover.network import network
from support.failover.plan import Blow, Kind, Side, StrikePlan

KILLS = [
    Blow(0.2, (StrikePlan(Kind.KILL, Side.SLAVE, 0.2),)),
    Blow(0.2, (StrikePlan(Kind.PAUSE, Side.SLAVE, 0.8),)),
    Blow(0.2, (StrikePlan(Kind.KILL, Side.MASTER, 0.1),)),
]


@pytest.mark.slow
def test_a_pair_that_is_killed_keeps_all_rules(tmp_path: Path) -> None:
    with Cluster(tmp_path / "pair", brokers=2, engines=0) as cluster:
        history = run(cluster, KILLS, chosen_seed())
    assert judge(history, {}, tmp_path) == []
    assert [strike.kind for strike in history.strikes] == ["kill", "pause", "kill"]
    assert {each.group for each in history.consumptions} == {"CID_pull", "CID_push"}


@pytest.mark.slow
def test_a_pair_whose_link_is_cut_keeps_all_rules(tmp_path: Path) -> None:
    cuts = [Blow(0.2, (StrikePlan(Kind.CUT, Side.MASTER, 1.5, Side.SLAVE, way),)) for way in (0, 1, 2)]
    with network() as machines, Cluster(tmp_path / "pair", brokers=2, engines=0, machines=machines) as cluster:
        history = run(cluster, [*cuts, Blow(0.2, (StrikePlan(Kind.SLOW, Side.SLAVE, 1.0),))], chosen_seed())
    assert judge(history, {}, tmp_path) == []
