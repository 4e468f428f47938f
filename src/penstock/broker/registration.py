"""Registers this broker and its topics with name servers.

The embedded name server is called directly. Each remote name server gets a request every 30 seconds
(registerNameServerPeriod) and soon after a change. If one does not answer, the Supervisor retries with growing pauses,
and the broker works meanwhile. At the end the broker unregisters, so that clients stop connecting to it. Use it
from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.topics import BrokerTopics
from penstock.errors import PenstockError
from penstock.format.config_tables import TopicConfigs
from penstock.namesrv.name_server import NameServer
from penstock.namesrv.route_table import RegisteredBroker
from penstock.protocol import fields
from penstock.protocol.bodies.routes import RegisterBrokerBody
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.namesrv import BrokerIdentity, RegisterBroker, RegisterBrokerReply
from penstock.remoting.connection import Connection, connect
from penstock.remoting.sockets import parse_address
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.broker")

_UNREGISTER_S: Final = 1.0
_SOON_S: Final = 0.02
"""Seconds. Changes within this time are sent together."""


class BrokerRegistration:
    """Registration with all name servers."""

    def __init__(
        self,
        broker: RegisteredBroker,
        topics: BrokerTopics,
        settings: SettingsInForce,
        tasks: Supervisor,
        embedded: NameServer | None = None,
        epoch: int = 0,
    ) -> None:
        """`epoch` is that of an elected master: name servers refuse a master of an older one."""
        self._broker = broker
        self._epoch = epoch
        self._topics = topics
        self._settings = settings
        self._embedded = embedded
        self._remote = [_Remote(address, self, tasks) for address in settings.now.name_servers]
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self.may_register: Callable[[], bool] = lambda: True
        """Whether this broker is certain of its role now. If it is not, it registers at a later time."""
        self.on_master: Callable[[str, str], object] = _ignore
        """Called on a slave with the master's log address and client address, when a name server reports them."""
        topics.on_change.append(self.changed)
        self._permission = settings.now.broker_permission
        settings.on_change.append(self._settings_changed)

    def start(self, ha_address: str = "") -> None:
        """Registers with all name servers. `ha_address` is the address to which slaves connect; empty if none may."""
        self._broker = dataclasses.replace(self._broker, ha_address=ha_address)
        self._register_embedded()
        for remote in self._remote:
            remote.start()

    def _settings_changed(self, settings: BrokerSettings) -> None:
        if settings.broker_permission != self._permission:
            self._permission = settings.broker_permission
            self._topics.mark_changed()  # name servers ignore a table whose version is not new

    def changed(self) -> None:
        """Registers again soon, because topics or permissions have changed."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._register_all)

    def _register_all(self) -> None:
        self._scheduled = False
        self._register_embedded()
        for remote in self._remote:
            remote.changed.set()

    def _register_embedded(self) -> None:
        if self._embedded is not None and self.may_register():
            try:
                self._embedded.register_local(self._broker, self.topics())
            except Refusal as refusal:  # another master was elected, and this one is about to learn it
                log.warning("the name server in this process refuses this broker: %s", refusal)
                return
            master = self._embedded.routes.master_of(self._broker.name)
            if master is not None and not self._broker.is_master:
                self.on_master(master.ha_address, master.address)

    async def stop(self, *, unregister: bool = True) -> None:
        """Registers no more. Unregisters from all name servers that answer in time, if that is wanted.

        RocketMQ's name servers remove whatever is registered with the id of a master: after an election they would
        remove the successor.
        """
        if self._embedded is not None and unregister:
            self._embedded.unregister_local(self._broker)
        await asyncio.gather(*(remote.stop(unregister=unregister) for remote in self._remote))

    # -- requests --------------------------------------------------------------------------------------------

    def topics(self) -> TopicConfigs:
        """Returns the topics to register. brokerPermission limits their permissions."""
        known, allowed = self._topics.snapshot(), self._settings.now.broker_permission
        if self._epoch:
            known = TopicConfigs(topics=known.topics, version=known.version.in_epoch(self._epoch))
        if self._settings.now.is_readable and self._settings.now.is_writable:
            return known
        limited = {
            name: msgspec.structs.replace(topic, perm=topic.perm & allowed) for name, topic in known.topics.items()
        }
        return TopicConfigs(topics=limited, version=known.version)

    def register_request(self) -> Command:
        compressed, broker = self._settings.now.compressed_register, self._broker
        body = RegisterBrokerBody(topics=self.topics()).to_bytes(compressed)
        header = RegisterBroker(
            broker_name=broker.name,
            broker_addr=broker.address,
            cluster_name=broker.cluster,
            broker_id=broker.broker_id,
            ha_server_addr=broker.ha_address,
            compressed=compressed,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return Command(RequestCode.REGISTER_BROKER, fields.write(header), body)

    def unregister_request(self) -> Command:
        broker = self._broker
        header = BrokerIdentity(
            broker_name=broker.name,
            broker_addr=broker.address,
            cluster_name=broker.cluster,
            broker_id=broker.broker_id,
        )
        return Command(RequestCode.UNREGISTER_BROKER, fields.write(header))

    @property
    def is_master(self) -> bool:
        return self._broker.is_master

    @property
    def period_s(self) -> float:
        return self._settings.now.register_name_server_period / 1000

    @property
    def timeout_s(self) -> float:
        return self._settings.now.register_broker_timeout_mills / 1000


def _ignore(log_address: str, client_address: str) -> None:
    return


class _Remote:
    """One remote name server."""

    def __init__(self, address: str, registration: BrokerRegistration, tasks: Supervisor) -> None:
        self._address = address
        self._registration = registration
        self._supervisor = tasks
        self._name = f"registration with name server {address}"
        self._connection: Connection | None = None
        self._is_registered = False
        self.changed = asyncio.Event()

    def start(self) -> None:
        self._supervisor.run(self._name, self._run)

    async def _run(self) -> None:
        self._is_registered = False
        while True:
            self.changed.clear()
            if self._registration.may_register():
                await self._register()
            self._supervisor.recovered(self._name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    self._registration.period_s
                ):  # Python 3.11's wait_for can swallow the cancellation by `stop`
                    await self.changed.wait()
                await asyncio.sleep(_SOON_S)

    async def _register(self) -> None:
        if self._connection is None or self._connection.closed:
            host, port = parse_address(self._address, "namesrvAddr")
            self._connection = await connect((host, port), timeout_s=self._registration.timeout_s)
        reply = await self._connection.request(self._registration.register_request(), self._registration.timeout_s)
        if reply.code != ResponseCode.SUCCESS:
            raise PenstockError(f"it answered {reply.code}: {reply.remark or 'no reason given'}")
        master = reply.read(RegisterBrokerReply)
        if master.master_addr and not self._registration.is_master:
            self._registration.on_master(master.ha_server_addr or "", master.master_addr)
        if not self._is_registered:
            log.info("registered with name server %s", self._address)
        self._is_registered = True

    async def stop(self, *, unregister: bool) -> None:
        await self._supervisor.end(self._name)
        if self._connection is not None and not self._connection.closed:
            with contextlib.suppress(PenstockError):
                if self._is_registered and unregister:
                    await self._connection.request(self._registration.unregister_request(), _UNREGISTER_S)
            self._connection.close()
