"""Name servers hear of the broker: the one in its process at once, others over the network."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import WAIT_S, BrokerHome, ok
from support.loopback import until

from penstock import task_supervision
from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.namesrv import NameServer
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting.connection import connect
from penstock.remoting.sockets import parse_address
from penstock.store import MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, str]]:
    server = NameServer()
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.stop(1)


def queues(server: NameServer, topic: str) -> tuple[int, int] | None:
    """(write queues, perm) that a client is told."""
    route = server.routes.route(topic)
    return None if route is None else (route.queue_datas[0].write_queue_nums, route.queue_datas[0].perm)


def test_the_embedded_name_server_knows_each_topic_at_once(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with name_server() as (server, _):
            broker = Broker(MessageStore.open(home.path, Settings.dev()), BrokerSettings(), name_server=server)
            await broker.start("127.0.0.1", 0)
            assert queues(server, "TBW102") == (8, 7)
            route = server.routes.route("TBW102")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
            assert route.broker_datas[0].cluster == "DefaultCluster"
            broker.state.topics.create_on_send("orders", "TBW102", 4)
            await asyncio.sleep(0)
            assert queues(server, "orders") == (4, 6)
            broker.state.topics.delete("orders")
            await asyncio.sleep(0)
            assert queues(server, "orders") is None
            broker.state.settings.change(broker_permission=4)
            await asyncio.sleep(0)
            assert queues(server, "TBW102") == (8, 4)
            assert await broker.stop(10)
            assert server.routes.brokers == []

    run(check())


@pytest.mark.parametrize(("setting", "expected"), [(2, 2), (4, 4), (16, 4)])
def test_an_unknown_topic_is_routed_as_a_send_would_make_it(
    home: BrokerHome, run: Run, setting: int, expected: int
) -> None:
    """`defaultTopicQueueNums` is the most; clients ask for four, and cannot be told to ask for more."""

    async def check() -> None:
        async with (
            name_server() as (server, address),
            home.running(default_topic_queue_nums=setting, options={"name_server": server}) as broker,
        ):
            asked = await connect(parse_address(address, "the name server"))
            route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
            reply = ok(await asked.request(route, WAIT_S))
            (told,) = json.loads(reply.body)["queueDatas"]
            assert (told["readQueueNums"], told["writeQueueNums"], told["perm"]) == (expected, expected, 6)
            assert queues(server, "orders") is None  # nobody has it yet
            ok(await (await broker.client()).send("orders", queueId=expected - 1))
            await asyncio.sleep(0)
            assert queues(server, "orders") == (expected, 6)
            asked.close()

    run(check())


@pytest.mark.parametrize("compressed", [True, False])
def test_other_name_servers_are_told_and_told_again_when_topics_change(
    home: BrokerHome, run: Run, compressed: bool
) -> None:
    async def check() -> None:
        async with name_server() as (one, first), name_server() as (two, second):
            settings: dict[str, Any] = {"namesrv_addr": f"{first};{second}", "compressed_register": compressed}
            async with home.running(**settings) as broker:
                for server in (one, two):
                    await until(lambda server=server: queues(server, "TBW102") == (8, 7))
                ok(await (await broker.client()).send("orders"))
                for server in (one, two):
                    await until(lambda server=server: queues(server, "orders") == (4, 6))
            assert one.routes.brokers == []
            assert two.routes.brokers == []

    run(check())


def test_a_name_server_that_comes_late_is_told_and_one_that_is_gone_harms_nobody(
    home: BrokerHome, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with name_server() as (_, address):
            port = int(address.rpartition(":")[2])
        async with home.running(namesrv_addr=address) as broker:
            await until(lambda: any("retrying" in record.getMessage() for record in caplog.records))
            ok(await (await broker.client()).send("orders"))
            late = NameServer()
            await late.start("127.0.0.1", port)
            await until(lambda: queues(late, "orders") == (4, 6))
            await late.stop(1)
            ok(await (await broker.client()).send("orders"))

    monkeypatch.setattr(task_supervision, "FIRST_PAUSE_S", 0.01)
    with caplog.at_level(logging.INFO, "penstock.broker"):
        run(check())
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if line.startswith("registered with")]) == 1
