"""A name server: the tables, the handlers over them, and the port.

    server = NameServer(NamesrvSettings.load("namesrv.conf"))
    host, port = await server.start("127.0.0.1", 9876)
    server.register_local(Broker(name="broker-a", address="127.0.0.1:10911"), topics)
    ...
    await server.stop(grace_s=2)

Made before or within the event loop that it runs on, and belongs to its thread. A broker in the same process registers
through `register_local` and never expires; others register over the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Final

from penstock.format.config_tables import TopicConfigs
from penstock.namesrv.access import LocalRule
from penstock.namesrv.handlers import KvTable, NameServerAdmin, RegistrationRequests, RouteQueries
from penstock.namesrv.route_table import FOREVER, RegisteredBroker, RouteTable
from penstock.namesrv.settings import NamesrvSettings
from penstock.remoting.connection import Address
from penstock.remoting.handlers import Before, Handler
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.server import Server

_LOOK_EVERY_S: Final = 5.0


class NameServer:
    """`before` sees every request first; without one, strangers may only ask (see `access`)."""

    def __init__(
        self,
        settings: NamesrvSettings | None = None,
        *,
        before: Before | None = None,
        limits: ConnectionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or NamesrvSettings()
        self.routes = RouteTable()
        self.kv = KvTable(settings.kv_config_path)
        self._administration = NameServerAdmin(self.routes, self.kv, settings)
        self._registration = RegistrationRequests(self.routes, self.kv, clock)
        self._queries = RouteQueries(self.routes, self.kv, lambda: self.settings)
        self._server = Server(
            self.handlers(),
            limits=limits or settings.limits,
            tls=settings.server_tls,
            before=before or LocalRule(settings.register_broker_from),
        )
        self._expiring: asyncio.Task[None] | None = None

    @property
    def settings(self) -> NamesrvSettings:
        """Those in force; some can be changed while it runs."""
        return self._administration.settings

    def handlers(self) -> dict[int, Handler]:
        """By request code. A broker may serve them on its own port, too: no code means two things."""
        return {**self._queries.handlers(), **self._registration.handlers(), **self._administration.handlers()}

    # -- running ---------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> Address:
        """Listens from now on, at a socket that is `bound` if one is given; returns where. Raises Unreachable."""
        where = await self._server.start(host, port, bound)
        self._expiring = asyncio.create_task(self._expire_now_and_then())
        return where

    async def stop(self, grace_s: float) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._expiring
            self._expiring = None
        await self._server.stop(grace_s)

    async def _expire_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.expire()

    def expire(self) -> None:
        """Forgets the brokers that have been silent for too long; done by itself while it runs."""
        self._registration.expire(self.settings.broker_expire_seconds)

    # -- the broker of this process --------------------------------------------------------------------------

    def register_local(self, broker: RegisteredBroker, topics: TopicConfigs) -> None:
        """A broker of this process is here, and these are all its topics; call it again when they change."""
        self.routes.register(broker, topics, now=FOREVER, whole=True)

    def unregister_local(self, broker: RegisteredBroker) -> None:
        self.routes.unregister(broker)
