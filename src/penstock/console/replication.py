"""Masters, slaves and replication lag, as brokers report them (request code 907). RocketMQ 4 brokers do not."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.admin import Admin
from penstock.console.cluster_figures import BrokerFigures
from penstock.errors import PenstockError
from penstock.observation.metrics import BrokerAvailability
from penstock.protocol.bodies.admin import HaRuntimeInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Slave:
    """A slave, as reported by its master. Times are epoch milliseconds."""

    address: str
    """The remote address of the slave's connection. Its port changes with each connection."""
    acknowledged: int
    behind_bytes: int
    behind_seconds: float
    last_acknowledged_ms: int
    is_in_sync: bool
    """Whether the slave is close enough to the master's end for a SYNC_MASTER to wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReplication:
    """The state of replication at one broker."""

    broker: str
    cluster: str
    address: str
    broker_id: int
    role: str
    log_end: int
    slaves: list[Slave] = field(default_factory=list)
    """The connected slaves, if this broker is a master."""
    follows: str = ""
    """The address of the master that this broker follows or tries to follow, if it is a slave."""
    is_following: bool = False
    last_received_ms: int = 0
    problem: str = ""

    @property
    def is_slave(self) -> bool:
        return self.broker_id != 0

    @property
    def is_alone(self) -> bool:
        """Whether this is a master without slaves."""
        return not self.is_slave and not self.slaves


async def fetch_replication(admin: Admin, broker: BrokerFigures) -> BrokerReplication | None:
    """Returns one broker's report; None if the broker does not support it or is unreachable."""
    if broker.state is BrokerAvailability.UNREACHABLE:
        return None
    try:
        info = await admin.cluster.replication(broker.address)
    except PenstockError:
        return None
    return _of(broker, info)


def _of(broker: BrokerFigures, info: HaRuntimeInfo) -> BrokerReplication:
    client = info.ha_client_runtime_info
    return BrokerReplication(
        broker=broker.name,
        cluster=broker.cluster,
        address=broker.address,
        broker_id=broker.broker_id,
        role=info.broker_role,
        log_end=info.master_commit_log_max_offset,
        slaves=[
            Slave(
                address=each.addr,
                acknowledged=each.slave_ack_offset,
                behind_bytes=each.diff,
                behind_seconds=each.behind_seconds,
                last_acknowledged_ms=each.last_ack_timestamp,
                is_in_sync=each.in_sync,
            )
            for each in info.ha_connection_info
        ],
        follows="" if client is None else client.master_addr,
        is_following=client is not None and client.activated,
        last_received_ms=0 if client is None else client.last_read_timestamp,
        problem="" if client is None else client.problem,
    )
