"""What a broker's role needs of replication, put together, started and stopped.

An ASYNC_MASTER listens for slaves if `haListenPort` or `brokerIP2` is given, a SYNC_MASTER always: on brokerIP2, or on
this machine alone if there is none. A SLAVE follows and copies. Belongs to the loop's thread.
"""

from __future__ import annotations

from penstock.broker.access import Access
from penstock.broker.registration import Registration
from penstock.broker.replication.copying import ConfigCopy
from penstock.broker.replication.follower import Follower
from penstock.broker.replication.listener import SlaveListener
from penstock.broker.replication.master_link import MasterLink
from penstock.broker.replication.status import ReplicationStatus
from penstock.broker.settings import BrokerSettings
from penstock.broker.state import BrokerState
from penstock.errors import BadSettings
from penstock.remoting.connection import Address, Connection
from penstock.remoting.tls import ServerTls
from penstock.store.settings import TABLE, BrokerRole, Settings

_LOOPBACK = "127.0.0.1"


def check_role(settings: Settings, broker: BrokerSettings) -> None:
    """Raises BadSettings if role and id do not go together."""
    is_slave = settings.broker_role is BrokerRole.SLAVE
    if is_slave and broker.broker_id <= 0:
        raise BadSettings(f"brokerRole=SLAVE needs a brokerId above 0, not {broker.broker_id}; 0 is the master's")
    if not is_slave and broker.broker_id != 0:
        raise BadSettings(
            f"brokerRole={settings.broker_role} has brokerId 0, not {broker.broker_id}; set brokerRole=SLAVE"
        )


def listens(settings: Settings, broker: BrokerSettings) -> bool:
    """Whether slaves are waited for."""
    if settings.broker_role is BrokerRole.ASYNC_MASTER:
        asked = "ha_listen_port" in settings.given or settings.ha_listen_port != TABLE["ha_listen_port"].default
        return asked or broker.broker_ip2 is not None
    return settings.broker_role is BrokerRole.SYNC_MASTER


class Replication:
    """Made with a broker, and started and stopped with it."""

    def __init__(self, state: BrokerState, registration: Registration, access: Access | None, tls: ServerTls) -> None:
        """Raises BadSettings."""
        store, broker = state.store, state.settings.now
        self._settings, self._broker = store.settings, broker
        self._listener: SlaveListener | None = None
        self._follower: Follower | None = None
        self._copy: ConfigCopy | None = None
        self.listens_at: Address | None = None
        """Where slaves find the log; None if nobody waits for them."""
        link: MasterLink | None = None
        if listens(store.settings, broker):
            self._listener = SlaveListener(store, broker.ha_allow_from, access, tls)
        if store.settings.broker_role is BrokerRole.SLAVE:
            link = MasterLink(store.settings, broker)
            registration.on_master = link.told
            self._follower = Follower(store, link)
            self._copy = ConfigCopy(state, link)
        self.status = ReplicationStatus(store, self._listener, self._follower, link)

    @property
    def is_slave(self) -> bool:
        return self._follower is not None

    @property
    def follows(self) -> bool:
        """Whether this is a slave whose master is there."""
        return self._follower is not None and self._follower.follows

    def may_ask(self, connection: Connection) -> bool:
        """Whether a slave may be at the other end, which may then ask for what slaves copy."""
        return self._listener is not None and self._listener.knows(connection.peer[0])

    async def start_listening(self) -> Address | None:
        """Waits for slaves, if the role is to; returns where. Raises Unreachable."""
        if self._listener is None:
            return None
        where = await self._listener.start(self._broker.broker_ip2 or _LOOPBACK, self._settings.ha_listen_port)
        self.listens_at = where
        return where

    def start_following(self) -> None:
        if self._follower is not None and self._copy is not None:
            self._follower.start()
            self._copy.start()

    async def stop(self) -> None:
        if self._copy is not None:
            await self._copy.stop()
        if self._follower is not None:
            await self._follower.stop()
        if self._listener is not None:
            await self._listener.stop()
