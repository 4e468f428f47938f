"""Who follows whom, and how far behind, as brokers that replicate tell it (907).

Brokers of RocketMQ 4 do not tell; they, and those that cannot be reached, are left out. Asked while somebody looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.client.admin import Admin
from penstock.console.figures import BrokerAvailability, BrokerFigures
from penstock.errors import PenstockError
from penstock.protocol.bodies.brokers import HaRuntimeInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Slave:
    """A slave, as its master sees it. Times are epoch milliseconds."""

    address: str
    """Where its connection comes from: another port with each connection."""
    acknowledged: int
    behind_bytes: int
    behind_seconds: float
    last_acknowledged_ms: int
    is_in_sync: bool
    """Whether it is near enough for a SYNC_MASTER to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReplication:
    """How replication stands at one broker."""

    broker: str
    cluster: str
    address: str
    broker_id: int
    role: str
    log_end: int
    slaves: list[Slave] = field(default_factory=list)
    """Of a master."""
    follows: str = ""
    """The master that a slave follows, or tries to."""
    is_following: bool = False
    last_received_ms: int = 0
    problem: str = ""

    @property
    def is_slave(self) -> bool:
        return self.broker_id != 0

    @property
    def is_alone(self) -> bool:
        """Whether it neither follows nor is followed."""
        return not self.is_slave and not self.slaves


async def ask(admin: Admin, broker: BrokerFigures) -> BrokerReplication | None:
    """What one broker tells; None if it does not."""
    if broker.state is BrokerAvailability.UNREACHABLE:
        return None
    try:
        told = await admin.cluster.replication(broker.address)
    except PenstockError:
        return None
    return _of(broker, told)


def _of(broker: BrokerFigures, told: HaRuntimeInfo) -> BrokerReplication:
    client = told.ha_client_runtime_info
    return BrokerReplication(
        broker=broker.name,
        cluster=broker.cluster,
        address=broker.address,
        broker_id=broker.broker_id,
        role=told.broker_role,
        log_end=told.master_commit_log_max_offset,
        slaves=[
            Slave(
                address=each.addr,
                acknowledged=each.slave_ack_offset,
                behind_bytes=each.diff,
                behind_seconds=each.behind_seconds,
                last_acknowledged_ms=each.last_ack_timestamp,
                is_in_sync=each.in_sync,
            )
            for each in told.ha_connection_info
        ],
        follows="" if client is None else client.master_addr,
        is_following=client is not None and client.activated,
        last_received_ms=0 if client is None else client.last_read_timestamp,
        problem="" if client is None else client.problem,
    )
