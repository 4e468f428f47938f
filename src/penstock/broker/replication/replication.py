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
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.access import Access
from penstock.broker.operations_as_plain_calls import Client, Operation, administration, host_text
from penstock.broker.registration import BrokerRegistration
from penstock.broker.replication.config_sync import ConfigCopy, MasterLink
from penstock.broker.replication.master import SlaveListener
from penstock.broker.replication.replication_authentication import FollowTickets
from penstock.broker.replication.slave import MasterFollower
from penstock.broker.replication.slave_connection import MasterNames, SlaveConnection
from penstock.broker.settings import BrokerSettings
from penstock.broker.table_persistence import BrokerState
from penstock.errors import BadSettings
from penstock.protocol.bodies.admin import HaClient, HaConnection, HaElections, HaRuntimeInfo
from penstock.remoting.connection import Address
from penstock.remoting.tls import ServerTls
from penstock.store.message_store import MessageStore
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.settings import TABLE, BrokerRole, Settings

SAMPLE_S: Final = 1.0
_MAX_SAMPLES: Final = 3600
_SHOWN_EPOCHS: Final = 100


class ReplicationStatus:
    """The replication status of a master with its `listener`, or of a slave with its `follower` and `link`."""

    def __init__(
        self,
        store: MessageStore,
        listener: SlaveListener | None = None,
        follower: MasterFollower | None = None,
        link: MasterLink | None = None,
        elections: Callable[[], HaElections] | None = None,
    ) -> None:
        """`elections` says how the elections of this broker stand, if it is elected."""
        self._store = store
        self._elections = elections
        self._listener = listener
        self._follower = follower
        self._link = link
        self._samples: deque[tuple[int, float]] = deque(maxlen=_MAX_SAMPLES)
        self.sample()

    def operations(self) -> tuple[Operation, ...]:
        return (administration("replication status", lambda client: self.now()),)

    def sample(self) -> None:
        """Records the log's end. Call it every SAMPLE_S seconds."""
        end = self._store.watermarks.stored
        if self._samples and self._samples[-1][0] == end:
            self._samples.pop()  # the log has not grown: keep only the newest sample of this end
        self._samples.append((end, time.monotonic()))

    def now(self) -> HaRuntimeInfo:
        role, end = self._store.role, self._store.watermarks.stored
        elections = None if self._elections is None else self._elections()
        slaves = [] if self._listener is None else [each for each in self._listener.slaves if each.follows]
        known = [
            HaConnection(
                addr=f"{slave.peer[0]}:{slave.peer[1]}",
                slave_ack_offset=slave.acknowledged,
                diff=max(end - slave.acknowledged, 0),
                in_sync=self._is_in_sync(slave, end, elections),
                transfer_from_where=slave.sent,
                behind_seconds=self._behind_seconds(slave.acknowledged, end),
                last_ack_timestamp=slave.acknowledged_ms,
                broker_id=slave.replica or 0,
                epoch=slave.epoch,
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
            epoch=role.epoch,
            epochs=[list(entry) for entry in self._store.epochs.entries[-_SHOWN_EPOCHS:]],
            elections=elections,
        )

    def _is_in_sync(self, slave: SlaveConnection, end: int, elections: HaElections | None) -> bool:
        """Whether this slave is in the sync set, or each acknowledgement needs it; otherwise, whether it is close
        enough to give one.
        """
        if elections is not None:
            return slave.counts and slave.replica in elections.sync
        required = self._store.watermarks.required
        if required is not None:
            return slave.counts and slave.replica in required
        return end - slave.acknowledged < self._store.settings.ha_slave_fallbehind_max

    def _client(self) -> HaClient | None:
        follower, link = self._follower, self._link
        if follower is None or link is None:
            return None
        return HaClient(
            master_addr=link.log_address,
            max_offset=self._store.watermarks.stored,
            last_read_timestamp=follower.received_ms,
            master_flush_offset=follower.master_end,
            activated=follower.follows,
            problem="" if follower.follows else follower.problem,
        )

    def behind_seconds(self, offset: int) -> float:
        """Returns for how long the log has had more than a slave that has it up to `offset`."""
        return self._behind_seconds(offset, self._store.watermarks.stored)

    def _behind_seconds(self, offset: int, end: int) -> float:
        if offset >= end:
            return 0.0
        now = time.monotonic()
        since = next((at for end_then, at in self._samples if end_then > offset), now)
        return round(now - since, 3)


LOOPBACK = "127.0.0.1"


def check_role(role: Role, broker: BrokerSettings) -> None:
    """Raises BadSettings if a store's role and brokerId contradict each other."""
    if role.takes_replica_bytes and broker.broker_id <= 0:
        raise BadSettings(f"brokerRole=SLAVE needs a brokerId above 0, not {broker.broker_id}; 0 is the master's")
    if not role.takes_replica_bytes and broker.broker_id != 0:
        raise BadSettings(f"brokerRole={role} has brokerId 0, not {broker.broker_id}; set brokerRole=SLAVE")


def shown_settings(store: MessageStore, broker: BrokerSettings) -> dict[str, str]:
    """Returns the settings of the port for slaves as texts, by name, as they are in force; port 0 if there is none."""
    port = store.settings.ha_listen_port if listens(store.role.name, store.settings, broker) else 0
    return {"brokerIP2": broker.broker_ip2 or LOOPBACK, "haListenPort": str(port)}


def listens(role: BrokerRole, settings: Settings, broker: BrokerSettings) -> bool:
    """Whether a broker accepts slaves, by its role and settings."""
    if role is BrokerRole.ASYNC_MASTER:
        is_set = "ha_listen_port" in settings.given or settings.ha_listen_port != TABLE["ha_listen_port"].default
        return is_set or broker.broker_ip2 is not None or broker.failover != "off"
    return role is BrokerRole.SYNC_MASTER


class ConnectedReplica(NamedTuple):
    """A replica that follows a master."""

    replica_id: int
    behind_s: float
    """For how long it has not had all that the log has."""
    is_learner: bool
    """Whether it counts for nothing: it is a learner, or its log has a gap."""


class Replication:
    """The listener of a master; or the follower of a slave, and its copy of the master's tables."""

    def __init__(
        self, state: BrokerState, registration: BrokerRegistration, access: Access | None, tls: ServerTls
    ) -> None:
        """Creates the parts that the broker's role needs. Raises BadSettings."""
        store, broker = state.store, state.settings.now
        self._settings, self._broker = store.settings, broker
        self._is_directed = broker.failover != "off"
        """Whether `follow` says whom this slave follows, and not the settings or a name server."""
        self._listener: SlaveListener | None = None
        self._follower: MasterFollower | None = None
        self._link: MasterLink | None = None
        self._copy: ConfigCopy | None = None
        self.tickets = FollowTickets(access)
        self.listens_at: Address | None = None
        """The address to which slaves connect; None if slaves are not accepted."""
        link: MasterLink | None = None
        if listens(store.role.name, store.settings, broker):
            names = MasterNames(broker.broker_cluster_name, broker.broker_name)
            self._listener = SlaveListener(store, names, broker.ha_allow_from, access, self.tickets, tls, state.tasks)
        if store.role.takes_replica_bytes:
            self._link = link = MasterLink(store.settings, broker)
            if not self._is_directed:
                registration.on_master = link.set_addresses
            self._follower = follower = MasterFollower(store, link, state.tasks)
            self._copy = ConfigCopy(state, link, lambda: follower.connection)
        self.status = ReplicationStatus(store, self._listener, self._follower, link, state.elections)

    def on_cut(self, cut: Callable[[str], object]) -> None:
        """Calls `cut` with a sentence when a part of a slave's log has to be cut, which the store's next open does.

        Until then the slave serves what it has, and follows no master.
        """
        if self._follower is not None:
            self._follower.on_cut = cut

    @property
    def is_slave(self) -> bool:
        return self._follower is not None

    @property
    def follows(self) -> bool:
        """Whether this is a slave that receives its master's log."""
        return self._follower is not None and self._follower.follows

    @property
    def heard_ms(self) -> int:
        """When a slave last received something from its master, in epoch ms; 0 if it is not connected, or a master."""
        return 0 if self._follower is None else self._follower.received_ms

    def may_ask(self, client: Client) -> bool:
        """Whether slaves may connect from a client's address, so that it may read the tables that slaves copy."""
        return self._listener is not None and self._listener.allows(client.peer[0])

    async def start_listening(self) -> Address | None:
        """Listens for slaves if the role does. Returns the address, or None. Raises Unreachable."""
        if self._listener is None:
            return None
        where = await self._listener.start(self._broker.broker_ip2 or LOOPBACK, self._settings.ha_listen_port)
        self.listens_at = where
        self.tickets.ha_address = host_text(*where)
        return where

    def start_following(self) -> None:
        if self._follower is not None and self._copy is not None:
            if not self._is_directed:
                self._follower.start()
            self._copy.start()

    # -- directed by elections -------------------------------------------------------------------------------

    async def follow(self, log_address: str, client_address: str, epoch: int, *, accepts_loss: bool = False) -> None:
        """Follows the master at these addresses from now on, in this epoch only. Only for a slave.

        `accepts_loss`: an operator made this master although it may lack what was acknowledged here. That is then cut,
        and kept in the quarantine.
        """
        assert self._follower is not None
        assert self._link is not None
        await self._follower.pause()
        self._follower.accept_loss(accepts_loss)
        self._link.direct(log_address, client_address)
        self._link.expect_epoch(epoch)
        self._follower.start()

    async def stop_following(self) -> None:
        """Follows no master. No byte of a master is appended when this has returned."""
        if self._follower is not None:
            await self._follower.pause()

    def on_lost_master(self, lost: Callable[[], object]) -> None:
        """Calls `lost` when a slave's connection to its master has ended, or could not be made."""
        if self._follower is not None:
            self._follower.on_lost = lost

    def count_only(self, is_replica: Callable[[str, int], bool]) -> None:
        """Has a master count only slaves that are replicas of its set: by the name of their store, and their id.

        Others follow, and count for nothing. By default every slave counts.
        """
        if self._listener is not None:
            self._listener.is_replica = is_replica

    def replicas(self) -> list[ConnectedReplica]:
        """Returns the replicas of its set that follow this master in its epoch."""
        slaves = [] if self._listener is None else self._listener.slaves
        return [
            ConnectedReplica(each.hello.id, self.status.behind_seconds(each.acknowledged), not each.counts)
            for each in slaves
            if each.hello is not None and each.follows and each.is_replica
        ]

    async def stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()
        if self._listener is not None:
            await self._listener.stop()
