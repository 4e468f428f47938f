"""A name server: the route table, the KV table, their handlers, and the port.

    server = NameServer(NamesrvSettings.load("namesrv.conf"))
    host, port = await server.start("127.0.0.1", 9876)
    server.register_local(RegisteredBroker(name="broker-a", address="127.0.0.1:10911"), topics)
    ...
    await server.stop(grace_s=2)

Use a name server from the thread of one event loop; it may be created before the loop runs. A broker in the same
process registers through `register_local` and never expires. Other brokers register over the network. Routes are not on
disk: after a restart, brokers register again.
"""

from __future__ import annotations

import logging
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
from penstock.remoting.handler_types_and_errors import Before, Handler
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.server import Server
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.namesrv")
_EXPIRE_INTERVAL_S: Final = 5.0


class NameServer:
    """One name server.

    `before` checks every request first. The default is `LocalRule`, by which other machines may only query.
    """

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
        self.tasks = Supervisor(log)
        self._server = Server(
            self.handlers(),
            limits=limits or settings.limits,
            tls=settings.server_tls,
            before=before or LocalRule(settings.register_broker_from),
            tasks=self.tasks,
        )
        self._registration_server: Server | None = None

    @property
    def settings(self) -> NamesrvSettings:
        """The current settings. The settings in CHANGEABLE may change while the server runs."""
        return self._administration.settings

    @property
    def connections(self) -> int:
        """The number of open connections of clients."""
        return len(self._server.connections)

    def handlers(self) -> dict[int, Handler]:
        """Returns the handlers by request code. A broker's port may serve them, too: no code belongs to both."""
        return {**self._queries.handlers(), **self._registration.handlers(), **self._administration.handlers()}

    # -- running ---------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> Address:
        """Starts to listen at `host` and `port`, or on the socket `bound`. Returns the address. Raises Unreachable."""
        address = await self._server.start(host, port, bound)
        self._administration.listens_at(address[1])
        self.tasks.every(_EXPIRE_INTERVAL_S, "expiry of brokers", self.expire)
        return address

    async def start_registration(self) -> Address:
        """Also lets the brokers of this machine register at a port of their own. Returns its address, a loopback one.

        The port is for registration only. Its requests need neither TLS nor an address from which brokers may register,
        so it serves brokers that this process has started, whatever the settings of the port for clients.
        """
        self._registration_server = Server(self._registration.handlers(), before=LocalRule(), tasks=self.tasks)
        return await self._registration_server.start("127.0.0.1", 0)

    async def stop(self, grace_s: float) -> None:
        await self.tasks.stop()
        if self._registration_server is not None:
            await self._registration_server.stop(grace_s)
        await self._server.stop(grace_s)

    def expire(self) -> None:
        """Drops brokers that have not registered for brokerExpireSeconds. A running server calls this periodically."""
        self._registration.expire(self.settings.broker_expire_seconds)

    # -- the broker in this process --------------------------------------------------------------------------

    def register_local(self, broker: RegisteredBroker, topics: TopicConfigs) -> None:
        """Registers a broker of this process with all its topics. Call it again when the topics change."""
        self.routes.register(broker, topics, now=FOREVER, whole=True)

    def unregister_local(self, broker: RegisteredBroker) -> None:
        self.routes.unregister(broker)
