"""The verbs for brokers that elect their master, against etcd and ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.etcd import running_etcd
from support.zookeeper import running_zookeeper

from penstock.broker.failover.consensus_engine import (
    LEADER,
    REQUEST,
    STATE,
    ChangeKind,
    Leader,
    Mastership,
    Member,
    Session,
    State,
    Transaction,
    history_key,
    member_key,
)
from penstock.broker.failover.failover_settings import engine_of
from penstock.broker.settings import BrokerSettings
from penstock.store import Settings

if TYPE_CHECKING:
    from cli.conftest import Ran, Run

Penstock = Callable[..., "Ran"]
Place = tuple[str, tuple[str, int]]
"""The name of an engine, and its address."""


@pytest.fixture(
    scope="module",
    params=[pytest.param("etcd", marks=pytest.mark.etcd), pytest.param("zookeeper", marks=pytest.mark.zookeeper)],
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("engine")
    with running_etcd(folder) if request.param == "etcd" else running_zookeeper(folder) as (node,):
        yield request.param, node.address


def pairs_of(place: Place, folder: Path) -> list[str]:
    name, (host, port) = place
    return [f"failover={name}", f"dcsAddr={host}:{port}", f"dcsPrefix=/{folder.name}"]


@pytest.fixture
def session(place: Place, tmp_path: Path) -> Iterator[Session]:
    """A set of three replicas: 1 is the master, 2 has everything, 3 is not running."""
    settings = Settings.load(None, pairs_of(place, tmp_path))
    opened = engine_of(settings, BrokerSettings.of(settings))(False)
    state = State(epoch=4, master=1, sync=(1, 2), ids={"a": 1, "b": 2, "c": 3}, next_id=4)
    master = Member(replica="a", incarnation="a", address="127.0.0.1:1", role="leads", epoch=4, end=100)
    other = Member(replica="b", incarnation="b", address="127.0.0.1:2", role="follows", epoch=4, end=100)
    puts = {
        STATE: state.to_bytes(),
        LEADER: Leader(id=1, epoch=4, incarnation="a").to_bytes(),
        member_key(1): master.to_bytes(),
        member_key(2): other.to_bytes(),
        history_key(4): Mastership(epoch=4, master=1, why="the first replica").to_bytes(),
    }
    opened.commit(Transaction(what=ChangeKind.BOOTSTRAP, puts=puts))
    yield opened
    opened.close()


@pytest.fixture
def penstock(run: Run, place: Place, tmp_path: Path) -> Penstock:
    options = [part for pair in pairs_of(place, tmp_path) for part in ("--set", pair)]
    return lambda *arguments: run("cluster", *arguments, *options)


def test_members_lists_the_replicas(penstock: Penstock, session: Session) -> None:
    found = json.loads(penstock("members", "--json").done().out)
    assert (found["epoch"], found["master"], found["sync"], found["paused"]) == (4, 1, [1, 2], False)
    assert [(each["id"], each["in_sync"], each["role"]) for each in found["replicas"]] == [
        (1, True, "leads"),
        (2, True, "follows"),
        (3, False, "is not running"),
    ]
    assert "127.0.0.1:2" in penstock("members").done().out


def test_members_says_why_a_replica_that_runs_cannot_be_elected(penstock: Penstock, session: Session) -> None:
    behind = Member(replica="c", incarnation="c", address="127.0.0.1:3", role="follows", epoch=4, end=10)
    session.commit(Transaction(what=ChangeKind.PUBLISH, puts={member_key(3): behind.to_bytes()}))
    found = json.loads(penstock("members", "--json").done().out)["replicas"]
    assert [each["why"] for each in found[:2]] == ["", ""]
    assert "it is not in the sync set [1, 2]" in found[2]["why"]


def test_history_lists_the_masters(penstock: Penstock, session: Session) -> None:
    (entry,) = json.loads(penstock("history", "--json").done().out)
    assert (entry["epoch"], entry["master"], entry["why"]) == (4, 1, "the first replica")
    assert "the first replica" in penstock("history").done().out


def test_elections_are_paused_and_resumed(penstock: Penstock, session: Session) -> None:
    assert "nothing was changed" in penstock("pause", "--dry-run").done().out
    penstock("pause").done()
    state = session.view().state
    assert state is not None
    assert state.paused
    assert "paused already" in penstock("pause").err
    assert "elections are paused" in penstock("switchover").err
    penstock("resume", "--json").done()
    state = session.view().state
    assert state is not None
    assert not state.paused


def test_a_replica_is_forgotten_only_if_it_is_not_needed(penstock: Penstock, session: Session) -> None:
    assert "in the sync set" in penstock("forget", "2").err
    assert "no replica 9" in penstock("forget", "9").err
    penstock("forget", "3", "--dry-run").done()
    penstock("forget", "3").done()
    state = session.view().state
    assert state is not None
    assert state.ids == {"a": 1, "b": 2}
    assert state.next_id == 4


def test_a_switchover_is_refused_to_a_replica_that_lacks_messages(penstock: Penstock, session: Session) -> None:
    assert "may lack acknowledged messages" in penstock("switchover", "--to", "3").err
    assert "is the master already" in penstock("switchover", "--to", "1").err
    assert "would hand over" in penstock("switchover", "--to", "2", "--dry-run").done().out
    assert session.view().request is None


def test_a_failover_needs_consent_to_the_loss(penstock: Penstock, session: Session) -> None:
    refused = penstock("failover", "--to", "3", "--yes").err
    assert "lacks what only [1, 2] have" in refused
    assert "--accept-loss" in refused
    assert "nothing was changed" in penstock("failover", "--to", "3", "--dry-run").done().out
    penstock("failover", "--to", "3", "--accept-loss", "--yes").done()
    view = session.view()
    assert view.leader is None
    assert view.state is not None
    assert (view.state.epoch, view.state.sync, view.state.forced) == (5, (3,), 5)
    assert session.history(1)[0].forced


def test_a_prefix_without_brokers_is_said(penstock: Penstock) -> None:
    assert "no broker has founded a set" in penstock("members").done().out
    assert "no broker has founded a set" in penstock("pause").err


def test_settings_without_failover_are_refused(run: Run) -> None:
    assert "failover is off in these settings" in run("cluster", "members", "--set", "failover=off").err


def test_a_request_stays_until_it_is_answered(penstock: Penstock, session: Session) -> None:
    session.commit(Transaction(what=ChangeKind.ORDER, puts={REQUEST: b'{"v":1,"id":"x"}'}))
    assert "another switchover is under way" in penstock("switchover").err
