"""Apache RocketMQ's broker and ours as master and slave of each other: their logs are equal to the byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.brokers import RawClient, Served, pull_arguments
from support.clusters import Load, Reader, log_on_disk
from support.loopback import free_port
from support.peers import JavaServed

from penstock.client.message import Message
from penstock.client.sync import Admin, Producer
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import connect

pytestmark = pytest.mark.java

FILE = 1 << 20
QUICK = {"mappedFileSizeCommitLog": FILE, "haSendHeartbeatInterval": 500}
_SOON_S = 120.0
_RECORDS = 100_000
"""Bytes of a log that hold several whole records."""


def wait_for(condition: Callable[[], bool], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + _SOON_S
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.2)


def equal(one: Path, other: Path, said: Callable[[], str]) -> None:
    wait_for(lambda: log_on_disk(one) == log_on_disk(other) != b"", said)


def settings(changes: dict[str, object]) -> list[str]:
    return [f"{name}={value}" for name, value in {**QUICK, **changes}.items()]


def has_all(namesrv: str, acknowledged: list[bytes]) -> None:
    """Asserts that consumers get what was acknowledged, and nothing twice."""
    with Reader(namesrv) as reader:
        wait_for(lambda: reader.has(acknowledged), lambda: f"{len(reader.got)} of {len(acknowledged)}")
    assert len(reader.got) == len(set(reader.got))


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
            wait_for(lambda: "follows from offset 0" in ours.said, lambda: ours.said)
            with Load(ours.namesrv, "a") as load:
                load.wait_for_more(300)
                # killed with a piece of a record only, it would recover nothing, and begin with the last file again
                wait_for(lambda: len(log_on_disk(tmp_path / "theirs")) > _RECORDS, lambda: ours.said)
                theirs.kill()
                load.wait_for_more(300)
                theirs.start_again()
                wait_for(lambda: ours.said.count("follows from") == 2, lambda: ours.said)
                ours.kill()
                ours.start()
                load.wait_for_more(300)
            equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
            has_all(ours.namesrv, load.acknowledged)
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
        wait_for(lambda: "following master" in ours.said, lambda: ours.said)  # so name servers know the other one
        with Admin(theirs.namesrv) as admin:
            admin.topics.create("orders", queues=4)
        with Load(theirs.namesrv, "a") as load:
            load.wait_for_more(300)
            ours.kill()
            ours.start()
            load.wait_for_more(300)
            theirs.kill()
            theirs.start_again()
            load.wait_for_more(300)
        equal(ours.folder, tmp_path / "theirs", lambda: ours.said)
        with Admin(theirs.namesrv) as admin:
            assert admin.cluster.info().broker_addr_table["broker-a"].broker_addrs[1] == ours.address
        theirs.kill()
        has_all(theirs.namesrv, load.acknowledged)
    assert "orders" in (ours.folder / "config" / "topics.json").read_text()


def test_what_is_said_of_javas_slaves_is_so(tmp_path: Path, java_broker_jars: list[Path]) -> None:
    """What docs/explanation/differences.md and the tests of our slaves take for RocketMQ's behaviour."""
    for name in ("home", "slave-home"):
        (tmp_path / name).mkdir()
    changes = {**QUICK, "brokerIP2": "127.0.0.1", "haListenPort": free_port()}
    first = JavaServed(tmp_path / "home", tmp_path / "master", java_broker_jars, changes)
    with first:
        wait_for(lambda: not is_alone(first.namesrv), lambda: "the master is not known")
        with Admin(first.namesrv) as admin:
            admin.topics.create("orders", queues=1)
            admin.topics.create("going", queues=1)
        changes = {**QUICK, "brokerRole": "SLAVE", "brokerId": 1, "namesrvAddr": first.namesrv}
        slave = partial(JavaServed, tmp_path / "slave-home", tmp_path / "slave", java_broker_jars)
        with slave(changes) as second:
            with Producer("PID_replication", first.namesrv) as producer:
                for topic in ("orders", "going"):
                    producer.send(Message(topic, b"one"))
            topics = tmp_path / "slave" / "config" / "topics.json"
            wait_for(lambda: topics.exists() and '"going"' in topics.read_text(), topics.read_text)
            equal(tmp_path / "master", tmp_path / "slave", lambda: "")
            assert asyncio.run(pulled(second, 0)) == (ResponseCode.SUCCESS, "1", "0"), "served, but sent back"
            assert asyncio.run(ha_status(second)) == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "907 is RocketMQ 5's"
            with Admin(first.namesrv) as admin:
                admin.topics.delete("going")
            wait_for(lambda: '"going"' not in topics.read_text(), topics.read_text)
            assert (tmp_path / "slave" / "consumequeue" / "going").exists(), "its queues stay"
        with slave({**changes, "slaveReadEnable": "true"}) as second:
            wait_for(lambda: asyncio.run(pulled(second, 0))[0] == ResponseCode.SUCCESS, lambda: "not served")
            code, next_offset, _ = asyncio.run(pulled(second, 7))
            assert (code, next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "7"), "not corrected"
        with slave({**changes, "slaveReadEnable": "true", "offsetCheckInSlave": "true"}) as second:
            wait_for(lambda: asyncio.run(pulled(second, 0))[0] == ResponseCode.SUCCESS, lambda: "not served")
            assert asyncio.run(pulled(second, 7))[:2] == (ResponseCode.PULL_OFFSET_MOVED, "1"), "corrected"


def is_alone(namesrv: str) -> bool:
    """Whether no master is known there."""
    with Admin(namesrv) as admin:
        known = admin.cluster.info().broker_addr_table.get("broker-a")
        return known is None or 0 not in known.broker_addrs


async def pulled(broker: JavaServed, offset: int) -> tuple[int, str, str]:
    """Code, next offset and suggested broker of a pull that does not wait."""
    reply = await asked(broker, RequestCode.PULL_MESSAGE, **pull_arguments("orders", offset))
    return reply.code, reply.ext.get("nextBeginOffset", ""), reply.ext.get("suggestWhichBrokerId", "")


async def ha_status(broker: JavaServed) -> int:
    return (await asked(broker, RequestCode.GET_BROKER_HA_STATUS)).code


async def asked(broker: JavaServed, code: RequestCode, **arguments: object) -> Command:
    host, _, port = broker.address.rpartition(":")
    connection = await connect((host, int(port)))
    try:
        return await RawClient(connection, asyncio.Queue()).ask(code, **arguments)
    finally:
        connection.close()
