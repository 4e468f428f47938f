"""Shared by the tests of the name server: a running one, and brokers that register with it."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator
from typing import Any

from support.loopback import SOON_S

from penstock.format.config_tables import DataVersion, TopicConfig, TopicConfigs
from penstock.namesrv import NameServer, NamesrvSettings
from penstock.protocol.bodies.routes import RegisterBrokerBody, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Address, Connection, connect


class Clock:
    """A clock that only a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def topics(*names: str, counter: int = 1, **fields: Any) -> TopicConfigs:
    """A broker's table of topics; `counter` is its version."""
    table = {name: TopicConfig(name=name, **{"read_queue_nums": 4, "write_queue_nums": 4, **fields}) for name in names}
    return TopicConfigs(topics=table, version=DataVersion(counter=counter, timestamp=1))


TEMPLATE = TopicConfig(name="TBW102", read_queue_nums=8, write_queue_nums=8, perm=7)


class Peer:
    """A client of a name server; can register as a broker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.connection.request(Command(code, ext or {}, body), SOON_S)

    async def ok(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        reply = await self.ask(code, ext, body)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        return reply

    async def route(self, topic: str) -> TopicRouteData | None:
        reply = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            assert reply.remark == f"No topic route info in name server for the topic: {topic}"
            return None
        assert reply.code == ResponseCode.SUCCESS
        return TopicRouteData.from_bytes(reply.body)

    async def brokers_of(self, topic: str) -> list[str]:
        route = await self.route(topic)
        return [] if route is None else [broker.broker_name for broker in route.broker_datas]

    async def register(
        self,
        name: str,
        table: TopicConfigs,
        *,
        compressed: bool = False,
        servers: list[str] | None = None,
        **fields: str,
    ) -> Command:
        body = RegisterBrokerBody(topics=table, filter_servers=servers or []).to_bytes(compressed)
        ext = identity(name, **{"compressed": str(compressed).lower(), "bodyCrc32": crc(body), **fields})
        return await self.ok(RequestCode.REGISTER_BROKER, ext, body)


def identity(name: str, **fields: str) -> dict[str, str]:
    port = 10_000 + zlib.crc32(name.encode()) % 10_000
    base = {
        "brokerName": name,
        "brokerAddr": f"127.0.0.1:{port}",
        "clusterName": "DefaultCluster",
        "haServerAddr": f"127.0.0.1:{port + 1}",
        "brokerId": "0",
    }
    return base | fields


def crc(body: bytes) -> str:
    """As Java computes it: without the top bit."""
    return str(zlib.crc32(body) & 0x7FFFFFFF)


@contextlib.asynccontextmanager
async def name_server(clock: Clock | None = None, **settings: Any) -> AsyncIterator[tuple[NameServer, Address]]:
    server = NameServer(NamesrvSettings(**settings), clock=clock or Clock())
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, address
    finally:
        await server.stop(1)


@contextlib.asynccontextmanager
async def peer(address: Address) -> AsyncIterator[Peer]:
    connection = await connect(address)
    try:
        yield Peer(connection)
    finally:
        connection.close()
