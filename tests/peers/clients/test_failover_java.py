"""RocketMQ 4.9's broker beside brokers that elect their master: as a slave of theirs, and alone on their stores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Served
from support.clusters import Load, Reader, log_on_disk, wait_for
from support.elections import ElectedSet, elected_set
from support.etcd import need_etcd
from support.peers import JAVA, JavaServed, built, until_registered

from penstock.client.message import Message
from penstock.client.sync import Admin, Producer
from penstock.errors import Refused

pytestmark = [pytest.mark.java, pytest.mark.etcd, pytest.mark.timeout(600)]

FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
}
"""Sizes of files, which whoever opens a store must know; those of the profile `dev`."""
OUTSIDE = "it is outside the sync set and cannot become master"
JAVAS_ID = 9
MORE = 150


@pytest.fixture(scope="module")
def jars() -> list[Path]:
    need_etcd()
    return built(JAVA / "broker")


def java_slave(folder: Path, jars: list[Path], namesrv: str) -> JavaServed:
    """It asks name servers for its master every 10 s, which is as often as it can."""
    (folder / "home").mkdir()
    own = {"brokerRole": "SLAVE", "brokerId": JAVAS_ID, "brokerName": "broker-a", "namesrvAddr": namesrv}
    quick = {"haSendHeartbeatInterval": 500, "registerNameServerPeriod": 10_000}
    return JavaServed(folder / "home", folder / "theirs", jars, {**FILES, **own, **quick})


def members(brokers: ElectedSet) -> dict[str, Any]:
    """What `penstock cluster members` shows."""
    host, port = brokers.nodes[0].address
    command = [sys.executable, "-m", "penstock.cli.main", "cluster", "members", "--json"]
    command += ["--set", "failover=etcd", "--set", f"dcsAddr={host}:{port}"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def test_a_java_slave_follows_whoever_is_elected_and_is_never_counted(tmp_path: Path, jars: list[Path]) -> None:
    settings = {**FILES, "minInSyncReplicas": 2}
    with elected_set(tmp_path, count=2, **settings) as brokers:
        first = brokers.wait_for_master()
        with Admin(brokers.namesrv) as admin:
            admin.topics.create("orders", queues=4)
        with java_slave(tmp_path, jars, brokers.namesrv):  # before the first message: it copies the last file only
            wait_for(lambda: OUTSIDE in first.said, brokers.said)
            with Load(brokers.namesrv, "a") as load:
                load.wait_for_more(MORE)
                brokers.switch_over()
                second = brokers.wait_for_master(other_than=first)
                wait_for(lambda: OUTSIDE in second.said, brokers.said)
                load.wait_for_more(MORE)
            wait_for(lambda: log_on_disk(tmp_path / "theirs") == log_on_disk(second.folder), brokers.said)
            assert second.said.count(OUTSIDE) == 1, "the other replica is in the set"
            shown = members(brokers)
            assert (shown["sync"], [each["id"] for each in shown["replicas"]]) == ([1, 2], [1, 2])
            first.kill()
            wait_for(lambda: len(members(brokers)["sync"]) == 1, brokers.said)
            with Producer("PID_alone", brokers.namesrv) as producer, pytest.raises(Refused, match="only 1 replicas"):
                producer.send(Message("orders", b"two are needed, and Java's slave is none of them"))
            first.start()
            brokers.wait_until_whole()
            has_all(brokers.namesrv, load.acknowledged)
        brokers.assert_same_logs()
        assert log_on_disk(tmp_path / "theirs") == log_on_disk(first.folder)


def test_javas_broker_alone_serves_the_store_of_a_master_that_was_replaced(tmp_path: Path, jars: list[Path]) -> None:
    with elected_set(tmp_path, count=2, **FILES) as brokers:
        first = brokers.wait_for_master()
        with Load(brokers.namesrv, "a") as load:
            load.wait_for_more(MORE)
            first.kill()
            brokers.wait_for_master(other_than=first)
            load.wait_for_more(MORE)
            first.start()
            brokers.wait_until_whole()
            load.wait_for_more(MORE)
        brokers.assert_same_logs()
    serve_with_java(first, tmp_path / "home", jars, load.acknowledged)


def serve_with_java(broker: Served, home: Path, jars: list[Path], acknowledged: list[bytes]) -> None:
    """Asserts that Java's broker gives out what was acknowledged, changes nothing of it, and appends behind it."""
    assert (broker.folder / "epochFileCheckpoint").exists()
    assert (broker.folder / "penstock" / "failover.json").exists()
    before = log_on_disk(broker.folder)
    home.mkdir()
    with JavaServed(home, broker.folder, jars, {**FILES, "flushDiskType": "SYNC_FLUSH"}) as java:
        with Admin(java.namesrv) as admin:
            until_registered(admin)
        has_all(java.namesrv, acknowledged)
        with Producer("PID_after", java.namesrv) as producer:
            assert producer.send(Message("orders", b"of Java")).ok
        has_all(java.namesrv, [*acknowledged, b"of Java"])
    after = log_on_disk(broker.folder)
    assert after.startswith(before)
    assert b"of Java" in after[len(before) :]


def has_all(namesrv: str, acknowledged: list[bytes]) -> None:
    """Asserts that consumers get what was acknowledged, and nothing twice."""
    with Reader(namesrv) as reader:
        wait_for(lambda: reader.has(acknowledged), lambda: f"{len(reader.got)} of {len(acknowledged)}")
    assert len(reader.got) == len(set(reader.got))
