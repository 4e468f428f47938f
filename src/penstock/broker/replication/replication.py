"""Replication for a broker's role, created, started and stopped with the broker; and its status.

An ASYNC_MASTER listens for slaves if `haListenPort` or `brokerIP2` is set; a SYNC_MASTER always does. Both listen on
brokerIP2, or on loopback if it is not set. A SLAVE follows its master and copies the master's tables. The status lists
the slaves that follow, and how far behind they are, in bytes and seconds. The seconds come from samples of the log's
end, one a second, kept for at least an hour. A slave that is further behind shows the age of the oldest sample. Use
everything here from the loop's thread only.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from penstock.broker.access import Access
from penstock.broker.operations import Client, Operation, administration, host_text
from penstock.broker.registration import BrokerRegistration
from penstock.broker.replication.config_sync import ConfigCopy, MasterLink
from penstock.broker.replication.follow_tickets import FollowTickets
from penstock.broker.replication.master import SlaveListener
from penstock.broker.replication.slave import MasterFollower
from penstock.broker.saved_tables import BrokerState
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings
from penstock.protocol.bodies.admin import HaClient, HaConnection, HaRuntimeInfo
from penstock.remoting.connection import Address
from penstock.remoting.tls import ServerTls
from penstock.store.message_store import MessageStore
from penstock.store.settings import TABLE, BrokerRole, Settings

SAMPLE_S: Final = 1.0
_MAX_SAMPLES: Final = 3600


class ReplicationStatus:
    """The replication status of a master with its `listener`, or of a slave with its `follower` and `link`."""

    def __init__(
        self,
        store: MessageStore,
        listener: SlaveListener | None = None,
        follower: MasterFollower | None = None,
        link: MasterLink | None = None,
    ) -> None:
        self._store = store
        self._listener = listener
        self._follower = follower
        self._link = link
        self._samples: deque[tuple[int, float]] = deque(maxlen=_MAX_SAMPLES)
        self.sample()

    def operations(self) -> tuple[Operation, ...]:
        return (administration("replication status", lambda client: self.now()),)

    def sample(self) -> None:
        """Records the log's end. Call it every SAMPLE_S seconds."""
        end = self._store.watermarks.visible
        if self._samples and self._samples[-1][0] == end:
            self._samples.pop()  # the log has not grown: keep only the newest sample of this end
        self._samples.append((end, time.monotonic()))

    def now(self) -> HaRuntimeInfo:
        role, end = self._store.role, self._store.watermarks.visible
        slaves = [] if self._listener is None else [each for each in self._listener.slaves if each.follows]
        known = [
            HaConnection(
                addr=f"{slave.peer[0]}:{slave.peer[1]}",
                slave_ack_offset=slave.acknowledged,
                diff=max(end - slave.acknowledged, 0),
                in_sync=end - slave.acknowledged < self._store.settings.ha_slave_fallbehind_max,
                transfer_from_where=slave.sent,
                behind_seconds=self._behind_seconds(slave.acknowledged, end),
                last_ack_timestamp=slave.acknowledged_ms,
            )
            for slave in sorted(slaves, key=lambda each: each.peer)
        ]
        return HaRuntimeInfo(
            master=role.accepts_puts,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=sum(slave.in_sync for slave in known),
            ha_connection_info=known,
            ha_client_runtime_info=self._client(),
            broker_role=str(role),
        )

    def _client(self) -> HaClient | None:
        follower, link = self._follower, self._link
        if follower is None or link is None:
            return None
        return HaClient(
            master_addr=link.log_address,
            max_offset=self._store.watermarks.visible,
            last_read_timestamp=follower.received_ms,
            master_flush_offset=follower.master_end,
            activated=follower.follows,
            problem="" if follower.follows else follower.problem,
        )

    def _behind_seconds(self, offset: int, end: int) -> float:
        if offset >= end:
            return 0.0
        now = time.monotonic()
        since = next((at for end_then, at in self._samples if end_then > offset), now)
        return round(now - since, 3)


_LOOPBACK = "127.0.0.1"


def check_role(settings: Settings, broker: BrokerSettings) -> None:
    """Raises BadSettings if brokerRole and brokerId contradict each other."""
    is_slave = settings.broker_role is BrokerRole.SLAVE
    if is_slave and broker.broker_id <= 0:
        raise BadSettings(f"brokerRole=SLAVE needs a brokerId above 0, not {broker.broker_id}; 0 is the master's")
    if not is_slave and broker.broker_id != 0:
        raise BadSettings(
            f"brokerRole={settings.broker_role} has brokerId 0, not {broker.broker_id}; set brokerRole=SLAVE"
        )


def shown_settings(settings: Settings, broker: BrokerSettings) -> dict[str, str]:
    """Returns the settings of the port for slaves as texts, by name, as they are in force; port 0 if there is none."""
    port = settings.ha_listen_port if listens(settings, broker) else 0
    return {"brokerIP2": broker.broker_ip2 or _LOOPBACK, "haListenPort": str(port)}


def listens(settings: Settings, broker: BrokerSettings) -> bool:
    """Whether this broker accepts slaves, by its role and settings."""
    if settings.broker_role is BrokerRole.ASYNC_MASTER:
        is_set = "ha_listen_port" in settings.given or settings.ha_listen_port != TABLE["ha_listen_port"].default
        return is_set or broker.broker_ip2 is not None
    return settings.broker_role is BrokerRole.SYNC_MASTER


class Replication:
    """The listener of a master; or the follower of a slave, and its copy of the master's tables."""

    def __init__(
        self, state: BrokerState, registration: BrokerRegistration, access: Access | None, tls: ServerTls
    ) -> None:
        """Creates the parts that the broker's role needs. Raises BadSettings."""
        store, broker = state.store, state.settings.now
        self._settings, self._broker = store.settings, broker
        self._listener: SlaveListener | None = None
        self._follower: MasterFollower | None = None
        self._copy: ConfigCopy | None = None
        self.tickets = FollowTickets(access)
        self.listens_at: Address | None = None
        """The address to which slaves connect; None if slaves are not accepted."""
        link: MasterLink | None = None
        if listens(store.settings, broker):
            self._listener = SlaveListener(store, broker.ha_allow_from, access, self.tickets, tls, state.tasks)
        if store.role.takes_replica_bytes:
            link = MasterLink(store.settings, broker)
            registration.on_master = link.set_addresses
            self._follower = MasterFollower(store, link, state.tasks)
            self._copy = ConfigCopy(state, link)
        self.status = ReplicationStatus(store, self._listener, self._follower, link)

    @property
    def is_slave(self) -> bool:
        return self._follower is not None

    @property
    def follows(self) -> bool:
        """Whether this is a slave that receives its master's log."""
        return self._follower is not None and self._follower.follows

    def may_ask(self, client: Client) -> bool:
        """Whether slaves may connect from a client's address, so that it may read the tables that slaves copy."""
        return self._listener is not None and self._listener.allows(client.peer[0])

    async def start_listening(self) -> Address | None:
        """Listens for slaves if the role does. Returns the address, or None. Raises Unreachable."""
        if self._listener is None:
            return None
        where = await self._listener.start(self._broker.broker_ip2 or _LOOPBACK, self._settings.ha_listen_port)
        self.listens_at = where
        self.tickets.ha_address = host_text(*where)
        return where

    def start_following(self) -> None:
        if self._follower is not None and self._copy is not None:
            self._follower.start()
            self._copy.start()

    async def stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
        if self._listener is not None:
            await self._listener.stop()
