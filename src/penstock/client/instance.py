"""What every client is made of: connections, routes, a name of its own, and heartbeats for the groups it speaks for.

A new connection to a broker carries a heartbeat before anything else, so that a broker that was restarted knows this
client before it is asked to serve it. Belongs to the thread of one event loop; started once, closed once.


What all clients have in common: they are started once and closed once, and `async with` does both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, Self

from penstock.client.config import Namesrv, config_of
from penstock.client.connection_pool import ConnectionPool
from penstock.client.routes import OK, NameServers, Routes, accepted
from penstock.errors import PenstockError
from penstock.protocol import fields
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.routes import MASTER
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.fields import Request
from penstock.protocol.headers.groups import UnregisterClient
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler
from penstock.remoting.sockets import parse_address

log = logging.getLogger("penstock.client")
_numbers: Final = itertools.count(1)
_LEAVE_S: Final = 1.0


class ClientInstance:
    """The part that producers, consumers and administrators share; each has its own."""

    def __init__(self, namesrv: Namesrv = None) -> None:
        self.config = config = config_of(namesrv)
        self.client_id = make_client_id(config.name_servers[0])
        self.handlers: dict[int, Handler] = {}
        """What answers the brokers' requests, by code."""
        self.producer_group = ""
        self.consumer: Callable[[], ConsumerData] | None = None
        """What heartbeats say of the consumer group, if there is one."""
        self._pool = ConnectionPool(
            self.handlers, tls=config.tls_context, timeout_s=config.connect_timeout_s, greet=self._greet
        )
        self.on_disconnect = self._pool.on_lost
        """Called with the address of a broker whose connection is gone, unless we closed it."""
        self._name_server_pool = ConnectionPool({}, tls=config.tls_context, timeout_s=config.connect_timeout_s)
        self.name_servers = NameServers(config.name_servers, self._name_server_pool, config.timeout_s, self._sign)
        self.routes = Routes(self.name_servers)
        self._tasks: list[asyncio.Task[None]] = []

    # -- running ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Refreshes routes and sends heartbeats from now on."""
        self.every(self.config.route_refresh_s, self.routes.refresh)
        self.every(self.config.heartbeat_s, self.beat)

    def every(self, seconds: float, act: Callable[[], object]) -> None:
        """Calls (and awaits) `act` now and then until the end; an error in it is logged."""

        async def run() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    result = act()
                    if asyncio.iscoroutine(result):
                        await result
                except PenstockError as error:
                    log.warning("%s", error)
                except Exception:
                    log.exception("a periodic task failed")

        self._tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        """Takes leave of the brokers that are connected, and closes all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.routes.close()
        await self._leave()
        await self._pool.close()
        await self._name_server_pool.close()

    # -- asking ----------------------------------------------------------------------------------------------

    async def ask(
        self,
        address: str,
        code: RequestCode,
        header: Request | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        good: Collection[int] = OK,
    ) -> Command:
        """A broker's answer. Raises Unreachable, NoAnswer, or Refused if it is not a `good` one."""
        connection = await self._pool.get(address)
        command = self._command(code, header, body)
        reply = await connection.request(command, self.config.timeout_s if timeout_s is None else timeout_s)
        return accepted(reply, code, address, good)

    async def tell(self, address: str, code: RequestCode, header: Request | None = None, body: bytes = b"") -> None:
        """A request that is not answered. Waits only while more is sent than the broker reads."""
        connection = await self._pool.get(address)
        await connection.until_writable(self.config.timeout_s)
        connection.request_oneway(self._command(code, header, body))

    def tell_over(self, connection: Connection, code: RequestCode, header: Request) -> None:
        """A request that is not answered, over the connection that something came from."""
        connection.request_oneway(self._command(code, header, b""))

    def _command(self, code: RequestCode, header: Request | None, body: bytes) -> Command:
        command = Command(code, {} if header is None else fields.write(header), body)
        self._sign(command)
        return command

    def _sign(self, command: Command) -> None:
        if self.config.credentials is not None:
            self.config.credentials.sign(command)

    # -- heartbeats ------------------------------------------------------------------------------------------

    @property
    def has_groups(self) -> bool:
        return bool(self.producer_group) or self.consumer is not None

    async def beat(self) -> None:
        """Tells all brokers of the known routes that we are here; those that cannot be reached hear it later."""
        if not self.has_groups:
            return
        addresses = {
            address
            for ids in self.routes.brokers().values()
            for broker_id, address in ids.items()
            if broker_id == MASTER or self.consumer is not None
        }
        await asyncio.gather(*(self._beat(address) for address in sorted(addresses)))

    async def _beat(self, address: str) -> None:
        known = self._pool.find(address)
        try:
            if known is None:
                await self._pool.get(address)  # which begins with a heartbeat
            else:
                await self._greet(address, known)
        except PenstockError as error:
            log.debug("no heartbeat to %s: %s", address, error)

    async def _greet(self, address: str, connection: Connection) -> None:
        if not self.has_groups:
            return
        command = self._command(RequestCode.HEART_BEAT, None, self._heartbeat().to_bytes())
        accepted(await connection.request(command, self.config.timeout_s), RequestCode.HEART_BEAT, address)

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=self.producer_group)] if self.producer_group else [],
            consumer_data_set=[] if self.consumer is None else [self.consumer()],
        )

    async def _leave(self) -> None:
        if not self.has_groups:
            return
        header = UnregisterClient(
            client_id=self.client_id,
            producer_group=self.producer_group or None,
            consumer_group=None if self.consumer is None else self.consumer().group_name,
        )
        with contextlib.suppress(PenstockError):
            leaving = (
                self.ask(address, RequestCode.UNREGISTER_CLIENT, header, timeout_s=_LEAVE_S)
                for address in self._pool.addresses()
            )
            await asyncio.gather(*leaving, return_exceptions=True)


def make_client_id(name_server: str) -> str:
    """A name that no other client has: our address on the way to the cluster, the process, and a number."""
    unique = f"{os.getpid()}#{time.monotonic_ns():x}{next(_numbers)}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(parse_address(name_server, "the name server"))  # sends nothing
        return f"{asking.getsockname()[0]}@{unique}"
    return f"127.0.0.1@{unique}"


class Started:
    """Starts when an `async with` block is entered, and closes when it is left, however that is."""

    async def start(self) -> Self:
        raise NotImplementedError("each client says how it starts")

    async def close(self) -> None:
        raise NotImplementedError("each client says how it ends")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
