"""What operators see of three brokers and etcd: metrics, health, the console's view, and commands for roles."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.brokers import Served
from support.clusters import TOPIC, log_on_disk, wait_for
from support.elections import TTL_S, ElectedSet, elected_set

from penstock.client.admin import Admin
from penstock.client.message import Message, SendStatus
from penstock.client.producer import ProducerOptions
from penstock.client.sync import Producer
from penstock.console.cached_cluster import ClusterView
from penstock.console.replication import ReplicaSet, replica_sets
from penstock.errors import PenstockError

pytestmark = pytest.mark.etcd


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[ElectedSet]:
    """Brokers that answer metrics, and note each change of their role in a file beside their store."""
    script = tmp_path / "changed"
    script.write_text(
        f'#!/bin/sh\necho "$PENSTOCK_ROLE $PENSTOCK_EPOCH" >> {tmp_path}/roles-$PENSTOCK_BROKER_ID\n'
        f"while [ -e {tmp_path}/held ]; do sleep 0.02; done\n"
    )
    script.chmod(0o755)
    with elected_set(tmp_path, observePort=0, onMaster=script, onSlave=script) as started:
        yield started


def get(broker: Served, path: str) -> str:
    where = re.findall(r"metrics and health (http://\S+)", broker.said)[-1]
    with urllib.request.urlopen(f"{where}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def failover_metrics(broker: Served) -> dict[str, float]:
    """The metrics of failover by name, and the role with its label."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(get(broker, "/metrics")):
        for each in family.samples:
            if each.name.startswith("penstock_failover_"):
                name = each.name.removeprefix("penstock_failover_")
                found[f"role {each.labels['role']}" if name == "role" else name] = each.value
    return found


def shown(brokers: ElectedSet) -> ReplicaSet | None:
    """The set as the console shows it."""

    async def ask() -> list[ReplicaSet]:
        async with Admin(brokers.namesrv) as admin:
            return replica_sets(await ClusterView(admin).replication())

    return next(iter(asyncio.run(ask())), None)


def roles(folder: Path, replica_id: int) -> list[str]:
    path = folder / f"roles-{replica_id}"
    return path.read_text().splitlines() if path.exists() else []


def test_metrics_and_the_console_show_who_is_master_and_commands_follow_the_role(
    brokers: ElectedSet, tmp_path: Path
) -> None:
    master = brokers.wait_for_master()
    slaves = [each for each in brokers.brokers if each is not master]
    wait_for(lambda: failover_metrics(master)["sync_set_size"] == 3, brokers.said)
    leads = failover_metrics(master)
    assert (leads["role master"], leads["role slave"], leads["has_master"], leads["engine_answers"]) == (1, 0, 1, 1)
    assert (leads["epoch"], leads["required_replicas"], leads["elections_won_total"]) == (brokers.epoch, 3, 1)
    assert 0 < leads["lease_left_seconds"] <= TTL_S
    assert 0 <= leads["lease_renewed_seconds"] < TTL_S
    for slave in slaves:
        wait_for(lambda each=slave: failover_metrics(each)["role slave"] == 1, brokers.said)  # type: ignore[misc]
        follows = failover_metrics(slave)
        assert (follows["required_replicas"], follows["elections_won_total"], follows["fenced"]) == (0, 0, 0)
    wait_for(lambda: _is_whole(shown(brokers)), lambda: f"{shown(brokers)}\n{brokers.said()}")
    found = shown(brokers)
    assert found is not None
    assert {each.address for each in found.replicas} == {each.address for each in brokers.brokers}
    assert [each.role for each in found.replicas if each.address == master.address] == ["master"]
    assert all(each.is_in_sync and each.why == "" for each in found.replicas), found
    assert all(each.lease_left_seconds for each in found.replicas), found
    assert [each.epoch for each in found.masters] == list(range(brokers.epoch, 0, -1))
    state = brokers.view().state
    assert state is not None
    before = state.master
    wait_for(lambda: roles(tmp_path, before)[-1:] == [f"master {state.epoch}"], brokers.said)
    (tmp_path / "held").touch()  # from now on commands hang, and the role changes all the same
    brokers.switch_over()
    successor = brokers.wait_for_master(other_than=master)
    brokers.wait_until_whole()
    wait_for(lambda: failover_metrics(master)["role slave"] == 1, brokers.said)
    now = brokers.view().state
    assert now is not None
    wait_for(lambda: roles(tmp_path, now.master)[-1:] == [f"master {now.epoch}"], brokers.said)
    wait_for(lambda: roles(tmp_path, before)[-1:] == [f"slave {state.epoch}"], brokers.said)
    assert failover_metrics(master)["role_changes_total"] == leads["role_changes_total"] + 1
    wait_for(lambda: failover_metrics(successor)["elections_won_total"] == 1, brokers.said)  # metrics are kept for 2 s
    (tmp_path / "held").unlink()
    assert successor.stop() == 0, successor.said
    assert roles(tmp_path, now.master)[-1:] == [f"slave {now.epoch}"], "a master that stops is none any more"


def _is_whole(found: ReplicaSet | None) -> bool:
    if found is None or not found.masters:
        return False
    followers = [each for each in found.replicas if each.behind_bytes == 0 and each.behind_seconds == 0]
    return len(found.replicas) == 3 and len(followers) == 2 and all(each.is_in_sync for each in found.replicas)


def test_a_replica_whose_engine_is_away_says_so(brokers: ElectedSet) -> None:
    master = brokers.wait_for_master()
    for node in brokers.nodes:
        node.signal(signal.SIGSTOP)
    wait_for(lambda: failover_metrics(master)["engine_answers"] == 0, lambda: master.said)
    wait_for(lambda: failover_metrics(master)["failed_renewals_total"] > 0, lambda: master.said)
    health = json.loads(get(master, "/healthz"))
    assert health["status"] == "ok", "a restart would not help"
    assert "the engine does not answer" in health["why"]
    found = shown(brokers)
    assert found is not None
    assert all(
        "the engine does not answer" in each.why for each in found.replicas if each.lease_left_seconds is not None
    )
    for node in brokers.nodes:
        node.signal(signal.SIGCONT)
    wait_for(lambda: failover_metrics(master)["engine_answers"] == 1, lambda: master.said)
    wait_for(lambda: json.loads(get(master, "/healthz"))["why"] == "", lambda: master.said)


def test_a_tail_that_is_cut_is_counted(brokers: ElectedSet) -> None:
    options = ProducerOptions(timeout_s=1.0, retries=0)
    with Producer("PID", brokers.namesrv, options=options) as producer:
        producer.send(Message(TOPIC, b"first"))
        master = brokers.wait_for_master()
        before = len(log_on_disk(master.folder))
        slaves = [each for each in brokers.brokers if each is not master]
        for slave in slaves:
            os.kill(slave.pid, signal.SIGSTOP)
        wait_for(lambda: all(") T " in Path(f"/proc/{each.pid}/stat").read_text() for each in slaves))
        with contextlib.suppress(PenstockError):
            sent = producer.send(Message(TOPIC, b"only at the master" * 100))
            assert sent.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert len(log_on_disk(master.folder)) > before + 1800
        master.kill()
        for slave in slaves:  # which takes what is still in its socket's buffer with it
            slave.kill()
            slave.start()
        brokers.wait_for_master(other_than=master)
        master.start()
        brokers.wait_until_whole()
    wait_for(lambda: failover_metrics(master)["tails_cut_total"] == 1, lambda: master.said)
    assert failover_metrics(master)["tail_bytes_cut_total"] > 1800
