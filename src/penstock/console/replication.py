"""Masters, slaves, replication lag and elections, as brokers report them (request code 907). RocketMQ 4 brokers do not.

Each elected broker reports its whole set as the consensus engine knows it, and more about itself. `replica_sets` joins
the reports of one set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from penstock.client.admin import Admin
from penstock.console.cluster_figures import BrokerFigures
from penstock.errors import PenstockError
from penstock.observation.metrics import BrokerAvailability
from penstock.protocol.bodies.admin import HaElections, HaRuntimeInfo


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
    """Whether the slave is close enough to the master's end for a SYNC_MASTER to wait for it; in an elected set,
    whether it is in the sync set."""
    replica_id: int = 0
    """The slave's id; 0 if it does not say who it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica of an elected set."""

    id: int
    address: str
    role: str
    """`master`, `slave`, `candidate` or `waiting`; empty if it does not run."""
    epoch: int
    is_in_sync: bool
    log_end: int
    why: str
    """Why it could not become master now, or what is wrong with it; empty if all is well."""
    behind_bytes: int | None = None
    """As its master reports it; None for the master, and for replicas that do not follow it."""
    behind_seconds: float | None = None
    lease_left_seconds: float | None = None
    """As it reports itself; None if it does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMaster:
    """How an epoch began."""

    epoch: int
    master: int
    since_ms: int
    why: str
    is_forced: bool
    """Whether a person chose the master and accepted loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSet:
    """The brokers of one name, which elect their master."""

    broker: str
    cluster: str
    epoch: int
    is_paused: bool
    replicas: list[Replica]
    masters: list[PastMaster]
    """The last ones, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """What one broker of an elected set reports about itself."""

    id: int
    role: str
    epoch: int
    master: int
    """The id of the set's master; 0 if there is none."""
    is_paused: bool
    engine_answers: bool
    problem: str
    lease_left_seconds: float
    replicas: list[Replica]
    masters: list[PastMaster]


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
    election: Election | None = None
    """None if the master is not elected."""

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


def replica_sets(brokers: Iterable[BrokerReplication]) -> list[ReplicaSet]:
    """Returns the sets of elected brokers, each from the reports of all of its brokers that answered."""
    by_name: dict[tuple[str, str], list[BrokerReplication]] = {}
    for each in brokers:
        if each.election is not None:
            by_name.setdefault((each.cluster, each.broker), []).append(each)
    return [_set(reports) for _, reports in sorted(by_name.items())]


def _set(reports: list[BrokerReplication]) -> ReplicaSet:
    by_id = {each.election.id: (each, each.election) for each in reports if each.election is not None}
    best, known = max(
        by_id.values(), key=lambda each: (each[1].epoch, each[1].role == "master", each[1].engine_answers)
    )
    followers = {slave.replica_id: slave for slave in best.slaves} if known.role == "master" else {}
    replicas = []
    for each in known.replicas:
        if each.id in followers:
            slave = followers[each.id]
            each = replace(each, behind_bytes=slave.behind_bytes, behind_seconds=slave.behind_seconds)
        if each.id in by_id:
            of_broker, own = by_id[each.id]
            why = "; ".join(dict.fromkeys(text for text in (own.problem, of_broker.problem, each.why) if text))
            each = replace(
                each, role=own.role, log_end=of_broker.log_end, why=why, lease_left_seconds=own.lease_left_seconds
            )
        replicas.append(each)
    return ReplicaSet(
        broker=best.broker,
        cluster=best.cluster,
        epoch=known.epoch,
        is_paused=known.is_paused,
        replicas=replicas,
        masters=known.masters,
    )


def _election(report: HaElections) -> Election:
    return Election(
        id=report.id,
        role=report.role,
        epoch=report.epoch,
        master=report.master,
        is_paused=report.paused,
        engine_answers=report.engine_answers,
        problem="; ".join(each for each in (report.fenced, report.problem) if each),
        lease_left_seconds=report.left_seconds,
        replicas=[
            Replica(
                id=each.id,
                address=each.address,
                role=each.role,
                epoch=each.epoch,
                is_in_sync=each.in_sync,
                log_end=each.end,
                why=each.why,
            )
            for each in report.replicas
        ],
        masters=[
            PastMaster(epoch=each.epoch, master=each.master, since_ms=each.since, why=each.why, is_forced=each.forced)
            for each in report.masters
        ],
    )


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
                replica_id=each.broker_id,
            )
            for each in info.ha_connection_info
        ],
        follows="" if client is None else client.master_addr,
        is_following=client is not None and client.activated,
        last_received_ms=0 if client is None else client.last_read_timestamp,
        problem="" if client is None else client.problem,
        election=None if info.elections is None else _election(info.elections),
    )
