"""Pairs of `penstock serve` around a name server: a master is lost, its slave is promoted, the old one comes back.

The steps are those of docs/how-to/replicate.md.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import Served
from support.clusters import log_on_disk, member, name_server, wait_for
from support.loopback import free_port

from penstock.client.message import Message, SendStatus
from penstock.client.sync import Admin, Producer, PullConsumer

SAFE = {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH", "defaultTopicQueueNums": 1}
SLAVE = {"brokerRole": "SLAVE", "brokerId": 1, "flushDiskType": "SYNC_FLUSH"}


def send(namesrv: str, numbers: range) -> list[bytes]:
    """The bodies of those that were acknowledged without reservation."""
    with Producer("PID_pair", namesrv) as producer:
        results = [(b"%d" % number, producer.send(Message("orders", b"%d" % number))) for number in numbers]
    return [body for body, result in results if result.status is SendStatus.SEND_OK]


def consume(namesrv: str, wanted: int) -> list[bytes]:
    """All messages of the topic, from whichever broker has them."""
    with PullConsumer("CID_pair", namesrv) as consumer:
        consumer.assign(consumer.queues("orders"))
        got: list[bytes] = []

        def has_all() -> bool:
            got.extend(message.body for message in consumer.poll())
            return len(got) >= wanted

        wait_for(has_all, lambda: f"{len(got)} of {wanted}")
        return got


def shown(namesrv: str, *options: str) -> str:
    """What `penstock cluster replication` says."""
    command = [sys.executable, "-m", "penstock.cli.main", "cluster", "replication", "-n", namesrv, *options]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def replication(namesrv: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(shown(namesrv, "--json"))
    return found


def registered(namesrv: str, broker: Served) -> None:
    def is_there() -> bool:
        with Admin(namesrv) as admin:
            known = admin.cluster.info().broker_addr_table
        return any(broker.address in data.broker_addrs.values() for data in known.values())

    wait_for(is_there, lambda: broker.said)


def ready(master: Served) -> None:
    wait_for(lambda: "follows from" in master.said, lambda: master.said)


@pytest.mark.slow
def test_a_masters_disk_is_lost_and_its_slave_takes_over(tmp_path: Path) -> None:
    with name_server() as namesrv:
        port = free_port()
        first = member(tmp_path / "a", namesrv, haListenPort=port, **SAFE)
        second = member(tmp_path / "b", namesrv, **SLAVE)
        with first, second:
            ready(first)
            acknowledged = send(namesrv, range(100))
            assert len(acknowledged) == 100
            told = {row["broker_id"]: row for row in replication(namesrv)}
            assert told[0]["slaves"][0]["behind_bytes"] == 0  # type: ignore[index]
            assert told[1]["is_following"] is True
            text = shown(namesrv)
            assert "behind bytes" in text
            assert f"broker-a {second.address} (SLAVE), log up to {told[1]['log_end']}: follows" in text
            wait_for(lambda: '"orders"' in (tmp_path / "b" / "config" / "topics.json").read_text())
            first.kill()
            shutil.rmtree(first.folder)
            wait_for(lambda: "the master" in second.said, lambda: second.said)
            assert consume(namesrv, 100) == acknowledged, "consumers go on from the slave"
        promoted = member(tmp_path / "b", namesrv, haListenPort=port, **SAFE)
        with promoted:
            registered(namesrv, promoted)
            with Producer("PID_pair", namesrv) as producer:
                alone = producer.send(Message("orders", b"100"))
                assert alone.status is SendStatus.SLAVE_NOT_AVAILABLE
                assert alone.queue_offset == 100, "nothing is lost, nothing is doubled"
            back = member(tmp_path / "a", namesrv, **SLAVE)
            with back:
                ready(promoted)
                assert len(send(namesrv, range(101, 150))) == 49
                assert consume(namesrv, 150) == [b"%d" % number for number in range(150)]
    assert log_on_disk(tmp_path / "a") == log_on_disk(tmp_path / "b")


@pytest.mark.rest
def test_an_old_master_with_other_messages_than_the_new_one_keeps_them_aside_and_follows(tmp_path: Path) -> None:
    with name_server() as namesrv:
        port = free_port()
        first = member(tmp_path / "a", namesrv, haListenPort=port, defaultTopicQueueNums=1)
        with first:
            with member(tmp_path / "b", namesrv, **SLAVE):
                ready(first)
                send(namesrv, range(10))
                wait_for(lambda: log_on_disk(tmp_path / "a") == log_on_disk(tmp_path / "b") != b"")
            send(namesrv, range(10, 15))  # its slave never sees these
            first.kill()
        before = log_on_disk(tmp_path / "a")
        with member(tmp_path / "b", namesrv, haListenPort=port, defaultTopicQueueNums=1) as promoted:
            registered(namesrv, promoted)
            send(namesrv, range(20, 40))
            with member(tmp_path / "a", namesrv, **SLAVE) as back:
                wait_for(lambda: log_on_disk(tmp_path / "a") == log_on_disk(tmp_path / "b"), lambda: back.said)
                assert "the log was cut at" in back.said
                assert "follows from" in promoted.said
                row = next(row for row in replication(namesrv) if row["broker_id"] == 1)
                assert not row["problem"], "the same process opened its store again"
        (tail,) = (tmp_path / "a" / "penstock" / "quarantine").glob("*/tail-1-*/0*")
        assert before.endswith(tail.read_bytes().rstrip(b"\0"))


@pytest.mark.torture
def test_a_slave_that_is_stopped_for_a_while_makes_sends_late_and_catches_up(tmp_path: Path) -> None:
    with name_server() as namesrv:
        changes = {**SAFE, "slaveTimeout": 500, "haListenPort": free_port()}
        first = member(tmp_path / "a", namesrv, **changes)
        second = member(tmp_path / "b", namesrv, **SLAVE)
        with first, second:
            ready(first)
            assert len(send(namesrv, range(10))) == 10
            os.kill(second.pid, signal.SIGSTOP)
            try:
                with Producer("PID_pair", namesrv) as producer:
                    late = producer.send(Message("orders", b"late"))
            finally:
                os.kill(second.pid, signal.SIGCONT)
            assert late.status in (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE)
            wait_for(lambda: log_on_disk(tmp_path / "a") == log_on_disk(tmp_path / "b"), lambda: second.said)
            assert len(send(namesrv, range(20, 30))) == 10


@pytest.mark.torture
def test_two_slaves_follow_one_master(tmp_path: Path) -> None:
    with name_server() as namesrv:
        first = member(tmp_path / "a", namesrv, haListenPort=free_port(), **SAFE)
        slaves = [member(tmp_path / f"b{each}", namesrv, **{**SLAVE, "brokerId": each}) for each in (1, 2)]
        with first, slaves[0], slaves[1]:
            wait_for(lambda: first.said.count("follows from") == 2, lambda: first.said)
            send(namesrv, range(50))
            slaves[0].kill()
            assert len(send(namesrv, range(50, 100))) == 50, "one of two is enough"
            slaves[0].start()
            for each in slaves:
                wait_for(lambda each=each: log_on_disk(each.folder) == log_on_disk(first.folder), lambda: first.said)
            with Admin(namesrv) as admin:
                assert sorted(admin.cluster.info().broker_addr_table["broker-a"].broker_addrs) == [0, 1, 2]


@pytest.mark.torture
def test_kills_on_both_sides_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    rounds = int(os.environ.get("PENSTOCK_ROUNDS", "10"))
    with name_server() as namesrv:
        first = member(tmp_path / "a", namesrv, haListenPort=free_port(), **SAFE)
        second = member(tmp_path / "b", namesrv, **SLAVE)
        with first, second:
            acknowledged: list[bytes] = []
            for turn in range(rounds):
                wait_for(lambda: replication(namesrv)[0].get("slaves"), lambda: first.said + second.said)
                acknowledged += send(namesrv, range(turn * 200, turn * 200 + 200))
                victim = (first, second)[turn % 2]
                victim.kill()
                victim.start()
            wait_for(lambda: log_on_disk(first.folder) == log_on_disk(second.folder), lambda: second.said)
            held = consume(namesrv, len(acknowledged))
            assert set(acknowledged) <= set(held)
