"""The core of every producer, consumer and admin client: connections, routes, client id and heartbeats.

Every new broker connection starts with a heartbeat, so a restarted broker knows this client before the next request.
Start an instance once and close it once. It is not thread-safe: use it from its event loop's thread only.
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
from typing import Final, Self, TypeAlias

from penstock.client.config import Namesrv, config_of
from penstock.client.connection_pool import ConnectionPool
from penstock.client.routes import OK, NameServers, Routes, check_reply
from penstock.errors import BadSettings, PenstockError
from penstock.format.constants import RETRY_PREFIX
from penstock.format.topics import is_legal_topic
from penstock.protocol import fields
from penstock.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from penstock.protocol.bodies.routes import MASTER
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.fields import Request
from penstock.protocol.headers.groups import UnregisterClient
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Handler
from penstock.remoting.pending_requests import SILENT_S, Flight
from penstock.remoting.sockets import parse_address

log = logging.getLogger("penstock.client")
_numbers: Final = itertools.count(1)
_UNREGISTER_S: Final = 1.0
Arguments: TypeAlias = Request | dict[str, str] | None
"""The arguments of a request: as a typed header, or as texts by the protocol's names."""


class ClientInstance:
    """The connections, routes, id and heartbeats of one client."""

    def __init__(self, namesrv: Namesrv = None) -> None:
        self.config = config = config_of(namesrv)
        self.client_id = make_client_id(config.name_servers[0])
        self.handlers: dict[int, Handler] = {}
        """Handlers of requests that brokers send to this client, by request code."""
        self.producer_group = ""
        self.consumer: Callable[[], ConsumerData] | None = None
        """A function that returns the consumer group's part of a heartbeat; None if this client is not a consumer."""
        self._pool = ConnectionPool(
            self.handlers, tls=config.tls_context, timeout_s=config.connect_timeout_s, on_connect=self._register
        )
        self.find_connection = self._pool.find
        """Returns the open connection to a broker's address, or None."""
        self.on_disconnect = self._pool.on_lost
        """Callbacks; each is called with a broker's address when its connection is lost, but not when this client
        closes it.
        """
        self._name_server_pool = ConnectionPool({}, tls=config.tls_context, timeout_s=config.connect_timeout_s)
        self._signer = None if config.credentials is None else config.credentials.signer()
        self.name_servers = NameServers(config.name_servers, self._name_server_pool, config.timeout_s, self._sign)
        self.routes = Routes(self.name_servers)
        self._tasks: list[asyncio.Task[None]] = []

    # -- lifecycle -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the periodic route refreshes and heartbeats."""
        self.run_every(self.config.route_refresh_s, self.routes.refresh)
        self.run_every(self.config.heartbeat_s, self.send_heartbeats)

    def run_every(self, seconds: float, job: Callable[[], object]) -> None:
        """Calls `job` every `seconds` seconds until `close`, and awaits a coroutine that it returns. Errors of `job`
        are logged.
        """

        async def run() -> None:
            while True:
                await asyncio.sleep(seconds)
                try:
                    result = job()
                    if asyncio.iscoroutine(result):
                        await result
                except PenstockError as error:
                    log.warning("%s", error)
                except Exception:
                    log.exception("a periodic task failed")

        self._tasks.append(asyncio.create_task(run()))

    async def close(self) -> None:
        """Unregisters from the connected brokers and closes all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.routes.close()
        await self._unregister()
        await self._pool.close()
        await self._name_server_pool.close()

    # -- requests --------------------------------------------------------------------------------------------

    async def request(
        self,
        address: str,
        code: RequestCode,
        header: Arguments = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        good: Collection[int] = OK,
        flight: Flight | None = None,
    ) -> Command:
        """Sends a request and returns the broker's reply. The timeout starts when the frame is written; with a
        `flight`, a congested connection is waited for longer.

        Raises Unreachable or NoAnswer, and Refused if the reply's code is not in `good`.
        """
        connection = await self._pool.get(address)
        command = self.command(code, header, body)
        if flight is not None and connection.congested:
            await connection.until_writable(SILENT_S)
        reply = await connection.request(command, self.config.timeout_s if timeout_s is None else timeout_s, flight)
        return check_reply(reply, code, address, good)

    async def request_oneway(
        self, address: str, code: RequestCode, header: Arguments = None, body: bytes = b""
    ) -> None:
        """Sends a request without waiting for a reply. Waits only while the connection's send buffer is full
        (back-pressure).
        """
        connection = await self._pool.get(address)
        await connection.until_writable(self.config.timeout_s)
        connection.request_oneway(self.command(code, header, body))

    def request_oneway_over(self, connection: Connection, code: RequestCode, header: Request) -> None:
        """Sends a request over `connection` without waiting for a reply."""
        connection.request_oneway(self.command(code, header, b""))

    def command(self, code: RequestCode, header: Arguments, body: bytes) -> Command:
        """Returns a request, signed if this client has credentials. It takes over arguments that are a dict."""
        if header is None:
            header = {}
        command = Command(code, header if isinstance(header, dict) else fields.write(header), body)
        if self._signer is not None:
            self._signer.sign(command)
        return command

    def _sign(self, command: Command) -> None:
        if self._signer is not None:
            self._signer.sign(command)

    # -- heartbeats ------------------------------------------------------------------------------------------

    @property
    def has_groups(self) -> bool:
        return bool(self.producer_group) or self.consumer is not None

    async def send_heartbeats(self) -> None:
        """Sends a heartbeat to each broker of the known routes, to slaves only for a consumer.

        An error is logged; the next heartbeat tries again.
        """
        if not self.has_groups:
            return
        addresses = {
            address
            for ids in self.routes.brokers().values()
            for broker_id, address in ids.items()
            if broker_id == MASTER or self.consumer is not None
        }
        await asyncio.gather(*(self._send_heartbeat(address) for address in sorted(addresses)))

    async def _send_heartbeat(self, address: str) -> None:
        connection = self._pool.find(address)
        try:
            if connection is None:
                await self._pool.get(address)  # calls `_register`
            else:
                await self._register(address, connection)
        except PenstockError as error:
            log.debug("no heartbeat to %s: %s", address, error)

    async def _register(self, address: str, connection: Connection) -> None:
        if not self.has_groups:
            return
        command = self.command(RequestCode.HEART_BEAT, None, self._heartbeat().to_bytes())
        check_reply(await connection.request(command, self.config.timeout_s), RequestCode.HEART_BEAT, address)

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=self.producer_group)] if self.producer_group else [],
            consumer_data_set=[] if self.consumer is None else [self.consumer()],
        )

    async def _unregister(self) -> None:
        if not self.has_groups:
            return
        header = UnregisterClient(
            client_id=self.client_id,
            producer_group=self.producer_group or None,
            consumer_group=None if self.consumer is None else self.consumer().group_name,
        )
        with contextlib.suppress(PenstockError):
            requests = (
                self.request(address, RequestCode.UNREGISTER_CLIENT, header, timeout_s=_UNREGISTER_S)
                for address in self._pool.addresses()
            )
            await asyncio.gather(*requests, return_exceptions=True)


def check_group(group: str) -> None:
    """Raises BadSettings for a group that brokers refuse. The name of its retry topic must be legal, too."""
    if not isinstance(group, str) or not group:
        raise BadSettings(f"a group must be a name, such as 'warehouse', not {group!r}")
    if not is_legal_topic(f"{RETRY_PREFIX}{group}"):
        raise BadSettings(
            f"not a valid group name: {group[:40]!r}; it must have letters, digits, '%', '|', '_' and '-' only, "
            "at most 120"
        )


def make_client_id(name_server: str) -> str:
    """Returns a unique client id, made of the local address, the process id, the time and a counter."""
    unique = f"{os.getpid()}#{time.monotonic_ns():x}{next(_numbers)}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(parse_address(name_server, "the name server"))  # sends nothing
        return f"{probe.getsockname()[0]}@{unique}"
    return f"127.0.0.1@{unique}"


class ClientLifecycle:
    """Base of the clients: `async with` starts the client on entry and closes it on exit."""

    async def start(self) -> Self:
        raise NotImplementedError("start")

    async def close(self) -> None:
        raise NotImplementedError("close")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
