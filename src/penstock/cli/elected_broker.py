"""The brokers of `penstock serve` with failover: slave or master by election, one after the other in one process.

Imported only where `failover` is on.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from penstock.broker.access import Access
from penstock.broker.broker import Broker
from penstock.broker.failover.failover_settings import engine_of
from penstock.broker.failover.failover_threads import Failover
from penstock.broker.failover.role_change_commands import RoleCommands, commands_of
from penstock.broker.failover.role_switch import BrokerNode, Host
from penstock.broker.settings import BrokerSettings
from penstock.cli.broker_process import ListeningPort
from penstock.namesrv.name_server import NameServer
from penstock.protocol.bodies.admin import HaElections
from penstock.remoting.connection import Address
from penstock.store.message_store import MessageStore


class ElectedBroker:
    """A replica of a broker name: `ServedBroker` has the contract."""

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings,
        name_server: NameServer | None,
        access: Access | None,
        stop: asyncio.Event,
    ) -> None:
        self._store = store
        self._settings = settings
        self._make = partial(Broker, name_server=name_server, access=access, elections=self.elections)
        self._stop = stop
        self._serving: Callable[[Broker], object] | None = None
        self._node: BrokerNode | None = None
        self._failover: Failover | None = None
        self._commands = RoleCommands(commands_of(settings))
        self._bound: socket.socket | None = None
        self.has_left = False

    async def start(self, port: ListeningPort) -> Address:
        """Starts to take part in elections. Returns at once; the broker serves when the engine has been reached."""
        store = self._store
        # A socket of its own: the process closes the port when it stops, and a role may be changing just then.
        self._bound = port.bound.dup()
        host = Host(
            settings=self._settings,
            open_store=partial(MessageStore.open, store.layout.root, store.settings, in_sync_set=True),
            make_broker=self._make,
            bound=self._bound,
            on_serving=self._on_serving,
            on_role=self._commands.became,
        )
        self._node = node = BrokerNode(host, store)
        node.on_lost = self._leave
        ttl_s = self._settings.failover_ttl_millis / 1000
        self._failover = Failover(node, engine_of(store.settings, self._settings), ttl_s)
        self._failover.on_death = self._leave
        self._failover.start()
        address, number = port.bound.getsockname()[:2]
        return address, number

    def elections(self) -> HaElections:
        """Returns how its elections stand. Any thread may call it."""
        return HaElections() if self._failover is None else self._failover.report()

    def watch(self, serving: Callable[[Broker], object]) -> None:
        self._serving = serving
        if self._node is not None and self._node.broker is not None:
            serving(self._node.broker)

    def _on_serving(self, broker: Broker) -> None:
        broker.state.tasks.on_leave.append(partial(self._leave, None))
        if self._serving is not None:
            self._serving(broker)

    def _leave(self, error: BaseException | None) -> None:
        self.has_left = True
        self._stop.set()

    async def stop(self) -> bool:
        assert self._node is not None
        assert self._failover is not None
        assert self._bound is not None
        await self._failover.stop()
        commands = asyncio.create_task(asyncio.to_thread(self._commands.stop))
        try:
            return await self._node.stop()
        finally:
            self._bound.close()
            await commands
