"""Apache RocketMQ's broker and ours as master and slave of each other: their logs are equal to the byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clients.java_served import JavaServed
from clients.served import Served, free_port

from penstock.client.sync import Admin, Message, Producer

pytestmark = pytest.mark.java

FILE = 1 << 20
QUICK = {"mappedFileSizeCommitLog": FILE, "haSendHeartbeatInterval": 500}
_SOON_S = 40.0


def send(namesrv: str, count: int, start: int = 0) -> None:
    with Producer("PID_replication", namesrv) as producer:
        for number in range(start, start + count):
            producer.send(Message("orders", b"%d " % number * 300, keys=f"k{number}"))


def written(folder: Path) -> bytes:
    """The log on disk, up to the last byte that is not zero."""
    files = sorted((folder / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for(condition: Callable[[], bool], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + _SOON_S
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


def equal(one: Path, other: Path, said: Callable[[], str]) -> None:
    wait_for(lambda: written(one) == written(other) != b"", said)


def settings(changes: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in {**QUICK, **changes}.items()]


def test_a_java_slave_follows_our_master(tmp_path: Path, java_broker_jars: list[Path]) -> None:
    ours = Served(tmp_path / "ours", *settings({"haListenPort": free_port()}))
    (tmp_path / "home").mkdir()
    with ours:
        with Admin(ours.namesrv) as admin:
            admin.topics.create("orders", queues=4)
        theirs = JavaServed(
            tmp_path / "home",
            tmp_path / "theirs",
            java_broker_jars,
            {**QUICK, "brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": ours.namesrv, "brokerName": "broker-a"},
        )
        with theirs:  # a Java slave that has nothing begins with its master's last file, so nothing is sent before
            wait_for(lambda: "follows from 0 on" in ours.said, lambda: ours.said)
            send(ours.namesrv, 800)
            equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
        send(ours.namesrv, 800, 800)
        theirs = JavaServed(tmp_path / "home", tmp_path / "theirs", java_broker_jars, theirs._settings)
        with theirs:
            equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
            ours.kill()
            ours.start()
            send(ours.namesrv, 300, 1600)
            equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
            topics = tmp_path / "theirs" / "config" / "topics.json"
            wait_for(lambda: topics.exists() and "orders" in topics.read_text(), lambda: ours.said)


def test_our_slave_follows_a_java_master(tmp_path: Path, java_broker_jars: list[Path]) -> None:
    (tmp_path / "home").mkdir()
    theirs = JavaServed(
        tmp_path / "home",
        tmp_path / "theirs",
        java_broker_jars,
        {**QUICK, "brokerIP2": "127.0.0.1", "haListenPort": free_port(), "brokerRole": "SYNC_MASTER"},
    )
    ours = Served(tmp_path / "ours", *settings({"brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": theirs.namesrv}))
    with theirs, ours:
        wait_for(lambda: "follows the master" in ours.said, lambda: ours.said)
        with Admin(theirs.namesrv) as admin:
            admin.topics.create("orders", queues=4)
        send(theirs.namesrv, 800)
        equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
        ours.kill()
        send(theirs.namesrv, 500, 800)
        ours.start()
        equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
        send(theirs.namesrv, 300, 1300)
        equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
        with Admin(theirs.namesrv) as admin:
            assert admin.cluster.info().broker_addr_table["broker-a"].broker_addrs[1] == ours.address
    assert "orders" in (ours.folder / "config" / "topics.json").read_text()
