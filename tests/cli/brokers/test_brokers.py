"""`penstock serve --brokers`, as processes: it serves, shares topics, survives deaths, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from client.test_access import ACCOUNTS
from support.loopback import make_authority, make_certificate
from support.supervised import (
    ANYWHERE,
    WAIT_S,
    ServedBrokers,
    fetch,
    is_closed,
    is_running,
    stores_of,
    wait_until,
)

from penstock.client import (
    Admin,
    ClientConfig,
    Credentials,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
)
from penstock.errors import PenstockError
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.store.readonly.store_folder import StoreFolder, find_paths


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await is_so():
            await asyncio.sleep(0.02)


async def topic_at(admin: Admin, broker: str, topic: str) -> TopicConfig | None:
    return (await admin.topics.configs(broker)).get(topic)


def bodies_in(folder: Path) -> list[bytes]:
    """The bodies of all messages of the topic orders in the stores of a folder."""
    found = []
    for path in find_paths([str(folder)]):
        store, _ = StoreFolder.find(path).view()
        with store:
            for queue in store.queues:
                offset = queue.min_offset
                while queue.topic == "orders" and offset < queue.max_offset:
                    page = store.get("orders", queue.queue_id, offset, 1000)
                    found += [record.body for record in page.messages]
                    offset = page.next_begin_offset
    return found


async def consume(namesrv: str, wanted: set[bytes]) -> list[ReceivedMessage]:
    """What a new consumer group gets, until it has had all that is wanted."""
    received: list[ReceivedMessage] = []
    done = asyncio.Event()

    async def take(message: ReceivedMessage) -> None:
        received.append(message)
        if wanted <= {each.body for each in received}:
            done.set()

    options = PushOptions(consume_from="first")
    async with PushConsumer("readers", take, namesrv, subscriptions={"orders": "*"}, options=options):
        async with asyncio.timeout(WAIT_S):
            await done.wait()
    return received


def test_two_brokers_serve_share_topics_and_groups_and_stop_cleanly(tmp_path: Path) -> None:
    async def use(served: ServedBrokers) -> None:
        first, second = served.broker(0), served.broker(1)
        async with Admin(served.namesrv) as admin, Producer("shop", served.namesrv) as producer:
            await admin.topics.create("orders", queues=2, broker=first)
            await until(lambda: _is(admin, second, "orders", 2))
            await admin.topics.create("orders", queues=3, perm=4, broker=second)
            await until(lambda: _is(admin, first, "orders", 3, perm=4))
            await admin.topics.create("orders", queues=3, broker=second)
            await until(lambda: _is(admin, first, "orders", 3))
            await admin.groups.update(SubscriptionGroup(name="readers", retry_max_times=3), broker=second)
            await until(lambda: _has_group(admin, first, "readers", 3))

            sent = [b"%d" % number for number in range(60)]
            results = [await producer.send(Message("orders", body)) for body in sent]
            assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}, "they are spread"
            received = await consume(served.namesrv, set(sent))
            assert sorted(message.body for message in received) == sorted(sent)

            await admin.topics.create("gone", queues=1, broker=first)
            await until(lambda: _is(admin, second, "gone", 1))
            await admin.topics.delete("gone")
            await until(lambda: _has_none(admin, (first, second), "gone"))
            await admin.groups.delete("readers", broker=first)
            await until(lambda: _has_group(admin, second, "readers", None))

    with ServedBrokers(tmp_path / "stores", 2) as served:
        asyncio.run(use(served))
        assert [each["name"] for each in served.addresses["brokers"]] == ["broker-a", "broker-b"]
        status, text = fetch(f"{served.addresses['observe']}/readyz")
        assert (status, json.loads(text)["brokers"]) == (200, {"broker-a": "serving", "broker-b": "serving"})
        assert (
            'penstock_supervised_broker_up{broker="broker-b"} 1\n' in fetch(f"{served.addresses['observe']}/metrics")[1]
        )
        for broker in served.addresses["brokers"]:
            assert fetch(f"{broker['observe']}/healthz")[0] == 200
        assert served.end() == 0, served.said
        assert " ERROR " not in served.said, served.said
        assert "INFO broker-b penstock.broker: registered with name server" in served.said
    assert [path.name for path in stores_of(tmp_path / "stores")] == ["broker-a", "broker-b"]
    assert all(is_closed(path) for path in stores_of(tmp_path / "stores"))
    assert len(bodies_in(tmp_path / "stores")) == 60


async def _is_alone(admin: Admin) -> bool:
    return list(await admin.cluster.masters()) == ["broker-a"]


async def _is(admin: Admin, broker: str, topic: str, queues: int, perm: int = 6) -> bool:
    found = await topic_at(admin, broker, topic)
    return found is not None and (found.write_queue_nums, found.perm) == (queues, perm)


async def _has_none(admin: Admin, brokers: tuple[str, ...], topic: str) -> bool:
    return not any([await topic_at(admin, broker, topic) for broker in brokers])


async def _has_group(admin: Admin, broker: str, group: str, retries: int | None) -> bool:
    found = (await admin.groups.configs(broker=broker)).get(group)
    return (None if found is None else found.retry_max_times) == retries


@pytest.mark.rest
def test_a_broker_killed_under_load_is_restarted_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async def kill_and_change(served: ServedBrokers, admin: Admin) -> None:
        """Kills broker-b, changes topics while it is away, and returns when it is back."""
        os.kill(served.pids()[1], signal.SIGKILL)
        await until(lambda: _is_alone(admin))
        await admin.topics.create("new", queues=1)
        await admin.topics.delete("old")
        await asyncio.to_thread(served.wait_for, "broker-b serves again at")

    async def use(served: ServedBrokers) -> set[bytes]:
        first, second = served.broker(0), served.broker(1)
        acknowledged: set[bytes] = set()
        async with Admin(served.namesrv) as admin, Producer("shop", served.namesrv) as producer:
            for name in ("orders", "old"):
                await admin.topics.create(name, queues=2, broker=first)
                await until(lambda name=name: _is(admin, second, name, 2))  # type: ignore[misc]
            number, killing = 0, None
            while killing is None or not killing.done():
                body = b"%d" % number
                number += 1
                with suppress(PenstockError):
                    await producer.send(Message("orders", body))
                    acknowledged.add(body)
                if len(acknowledged) == 100 and killing is None:
                    killing = asyncio.create_task(kill_and_change(served, admin))
            await killing
            assert len(acknowledged) > 200, "the other broker serves on"
            await until(lambda: _is(admin, second, "new", 1))
            await until(lambda: _has_none(admin, (first, second), "old"))
            await consume(served.namesrv, acknowledged)
        return acknowledged

    with ServedBrokers(tmp_path / "stores", 2) as served:
        acknowledged = asyncio.run(use(served))
        assert "ERROR penstock.serve: broker-b: was ended by SIGKILL; it is started again in 1 s" in served.said
        metrics = fetch(f"{served.addresses['observe']}/metrics")[1]
        assert 'penstock_supervised_broker_restarts_total{broker="broker-b"} 1\n' in metrics
        assert served.end() == 0, served.said
    assert acknowledged <= set(bodies_in(tmp_path / "stores"))


@pytest.mark.rest
def test_topics_are_shared_where_access_is_controlled_and_tls_enforced(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    server = make_certificate(tmp_path, "server", authority)
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    config = tmp_path / "broker.conf"
    config.write_text(
        f"aclEnable=true\naclFile={tmp_path / 'plain_acl.yml'}\ntls.server.mode=enforcing\n"
        f"tls.server.certPath={server.certificate}\ntls.server.keyPath={server.key}\n"
    )

    async def use(served: ServedBrokers) -> None:
        tls = {"tls.enable": "true", "tls.client.trustCertPath": str(authority.certificate)}
        account = ClientConfig(served.namesrv, tls=tls, credentials=Credentials("operator", "operator-secret"))
        async with Admin(account) as admin:
            assert list(await admin.cluster.masters()) == ["broker-a", "broker-b"]
            await admin.topics.create("orders", queues=2, broker=served.broker(0))
            await until(lambda: _is(admin, served.broker(1), "orders", 2))

    with ServedBrokers(tmp_path / "stores", 2, *ANYWHERE, "--config", config) as served:
        asyncio.run(use(served))
        assert served.end() == 0, served.said


@pytest.mark.rest
def test_the_console_shows_the_cluster(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    options = [*ANYWHERE[:-1], "127.0.0.1:0"]
    with ServedBrokers(tmp_path / "stores", 2, *options) as served:
        link, _, token = served.addresses["console"].partition("/?token=")
        headers = {"authorization": f"Bearer {token}"}

        def names() -> list[str]:
            try:
                with urllib.request.urlopen(urllib.request.Request(f"{link}/readyz", headers=headers)) as answer:
                    return sorted(each["name"] for each in json.loads(answer.read())["brokers"])
            except OSError:
                return []

        wait_until(lambda: names() == ["broker-a", "broker-b"], lambda: served.said)
        assert served.end() == 0, served.said


def test_if_the_supervisor_is_killed_its_brokers_close_their_stores(tmp_path: Path) -> None:
    with ServedBrokers(tmp_path / "stores", 2) as served:
        assert served.addresses
        pids = served.pids()
        assert len(pids) == 2
        assert served.end(signal.SIGKILL) == -signal.SIGKILL
        for pid in pids:
            wait_until(lambda pid=pid: not is_running(pid), lambda: served.said)  # type: ignore[misc]
    assert all(is_closed(path) for path in stores_of(tmp_path / "stores"))


@pytest.mark.rest
def test_a_broker_that_cannot_start_is_said_and_tried_again_while_the_other_serves(tmp_path: Path) -> None:
    async def send(namesrv: str) -> None:
        async with Producer("shop", namesrv) as producer:
            await producer.send(Message("orders", b"x"))

    (tmp_path / "stores" / "broker-b" / "config").mkdir(parents=True)
    lock = tmp_path / "stores" / "broker-b" / "commitlog"
    lock.write_text("a file where a folder has to be")
    with ServedBrokers(tmp_path / "stores", 2) as served:
        assert [each["broker"] != "" for each in served.addresses["brokers"]] == [True, False]
        served.wait_for("broker-b: could not start and has ended with status", 2)
        assert "it is started again in 1 s" in served.said
        assert "it is started again in 2 s" in served.said
        asyncio.run(send(served.namesrv))
        status, text = fetch(f"{served.addresses['observe']}/readyz")
        assert status == 503
        assert "could not start" in json.loads(text)["brokers"]["broker-b"]
        lock.unlink()
        served.wait_for("broker-b serves again at")
        assert fetch(f"{served.addresses['observe']}/readyz")[0] == 200
        assert served.end() == 0, served.said


@pytest.mark.rest
def test_a_second_signal_kills_all(tmp_path: Path) -> None:
    with ServedBrokers(tmp_path / "stores", 2) as served:
        assert served.addresses
        pids = served.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # a broker that does not stop
        served.process.send_signal(signal.SIGINT)
        served.wait_for("SIGINT: stopping 2 brokers")
        assert served.end(signal.SIGINT) == 1
        assert "SIGINT again: all brokers are killed" in served.said
        for pid in pids:
            wait_until(lambda pid=pid: not is_running(pid), lambda: served.said)  # type: ignore[misc]


def test_ports_that_are_taken_are_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        base = taken.getsockname()[1] - 10
        arguments = ("--listen", f"127.0.0.1:{base}", "--namesrv", "127.0.0.1:0", "--console", "off")
        with ServedBrokers(tmp_path / "stores", 2, *arguments) as served:
            assert served.wait() == 2
    assert served.said.startswith(f"penstock: broker-b needs its own port: cannot listen at 127.0.0.1:{base + 10}: ")
    assert served.said.count("\n") == 1
    assert not (tmp_path / "stores").exists()


@pytest.mark.rest
def test_the_service_manager_is_told_when_all_serve_and_that_it_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        with ServedBrokers(tmp_path / "stores", 2) as served:
            told: list[str] = []
            while "READY=1\nSTATUS=2 brokers serve" not in told:
                told.append(manager.recv(4096).decode())
            assert told[0] == "STATUS=starting broker-a, broker-b"
            while told[-1] != "WATCHDOG=1":
                told.append(manager.recv(4096).decode())
            assert served.end() == 0, served.said
            while told[-1] != "STOPPING=1\nSTATUS=stopping":
                told.append(manager.recv(4096).decode())
            assert sum(each.startswith("READY=1") for each in told) == 1, "the brokers do not speak for it"


@pytest.mark.rest
def test_more_brokers_may_be_added_and_fewer_only_if_nothing_is_left_out(tmp_path: Path) -> None:
    async def send(namesrv: str, brokers: set[str]) -> None:
        async with Producer("shop", namesrv) as producer:
            while brokers:
                brokers.discard((await producer.send(Message("orders", b"x"))).queue.broker_name)

    async def topics(served: ServedBrokers) -> None:
        async with Admin(served.namesrv) as admin:
            await until(lambda: _has_topic(admin, served.broker(2), "orders"))

    stores = tmp_path / "stores"
    with ServedBrokers(stores, 2) as served:
        asyncio.run(send(served.namesrv, {"broker-a", "broker-b"}))
        assert served.end() == 0, served.said
    with ServedBrokers(stores, 3) as served:
        asyncio.run(topics(served))
        assert served.end() == 0, served.said
    with ServedBrokers(stores, 2) as served:
        assert served.namesrv, "broker-c is empty"
        assert served.end() == 0, served.said
    (stores / "broker-a").rename(stores / "broker-d")
    with ServedBrokers(stores, 3) as served:
        assert served.wait() == 2
    assert f"{stores} has messages in broker-d, which --brokers 3 would not serve" in served.said


async def _has_topic(admin: Admin, broker: str, topic: str) -> bool:
    return await topic_at(admin, broker, topic) is not None
