"""The routes: registered brokers, their topics, and the number of queues of each topic.

A broker name stands for one master and its slaves. Each of these has an id and an address. A broker stays registered
until it unregisters, its connection closes, or it stops registering. Only a master's topics count. A registration adds
topics and removes none, because brokers also register single topics. Only `delete_topic`, or a registration with
`whole`, removes topics.

`default_route` answers for a topic that does not exist yet. Some clients send only to a topic that has a route, and
never ask for the template topic's route. They get the route that a send would create: queues at each broker that offers
the template topic, as many as a send creates by default. Reserved names have no such route.

Where a consensus engine elects masters, each registers with the epoch of its mastership (`stateVersion` of the data
version, as RocketMQ 5 does). A master that another one of a later epoch has replaced is refused.

The table has a budget in bytes; a registration beyond it is refused and changes nothing. The broker in this process is
not limited here, but by its own maxTopics.

Pure: no clock, no I/O. Use a table from one thread. Routes are not on disk: after a restart, brokers register again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.format.config_tables import DataVersion, TopicConfig, TopicConfigs
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.format.topics import is_legal_topic
from penstock.protocol.bodies.routes import (
    MASTER,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.table_memory_limits import Budget, entry_bytes

FOREVER: Final = float("inf")
MAX_BYTES: Final = 512 << 20
MAX_BYTES_OF_BROKER: Final = 128 << 20
"""About 160,000 topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBroker:
    """One broker process: a master or a slave."""

    name: str
    address: str
    cluster: str = "DefaultCluster"
    broker_id: int = MASTER
    ha_address: str = ""

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER

    def is_same(self, other: RegisteredBroker) -> bool:
        """Whether `other` has the same name and id. Its address may differ."""
        return (self.name, self.broker_id) == (other.name, other.broker_id)


@dataclass(slots=True)
class _Registration:
    """The latest registration of a broker."""

    broker: RegisteredBroker
    version: DataVersion
    seen_at: float
    """When the broker last registered, in seconds of the caller's clock; FOREVER for a broker in this process."""
    owner: object
    """The connection that registered the broker."""
    filter_servers: tuple[str, ...]
    size: int
    """The bytes that are charged for it, without its topics."""


class RouteTable:
    """The routes of all topics."""

    def __init__(self) -> None:
        self._live: dict[str, _Registration] = {}  # by address
        self._names: dict[str, dict[int, str]] = {}  # addresses by broker name and id
        self._clusters: dict[str, str] = {}  # by broker name
        self._queues: dict[str, dict[str, QueueData]] = {}  # by topic and broker name
        self.budget = Budget("registrations", MAX_BYTES, MAX_BYTES_OF_BROKER, "broker")
        """Charged to broker names. A master and its slaves share a name."""

    # -- registration -----------------------------------------------------------------------------------------

    def register(
        self,
        broker: RegisteredBroker,
        topics: TopicConfigs,
        *,
        now: float,
        owner: object = None,
        whole: bool = False,
        filter_servers: Iterable[str] = (),
    ) -> RegisteredBroker | None:
        """Adds or renews a broker. For a slave, returns its master, if that is registered.

        `now` is the time of the registration. `owner` is its connection. `whole` says that `topics` is the complete
        table, so the broker's other topics are removed. A table whose version is not new is ignored. Raises Refusal if
        the registration takes too much memory, or if another master of this name is registered with a newer epoch.
        """
        if broker.is_master:
            self._check_epoch(broker, topics.version.state_version)
        filter_servers = tuple(filter_servers)
        size = entry_bytes(broker.name, broker.address, broker.cluster, broker.ha_address, *filter_servers)
        if now != FOREVER:
            names = [topic.name for topic in topics.topics.values()] if broker.is_master else []
            new = [name for name in names if broker.name not in self._queues.get(name, ())]
            self.budget.check(size + sum(map(entry_bytes, new)), broker.name)
        known = self._live.get(broker.address)
        if known is not None and not known.broker.is_same(broker):
            self._remove(broker.address)
            known = None
        if known is None:
            self._claim_name(broker)
        self._clusters[broker.name] = broker.cluster
        if broker.is_master and (known is None or known.version != topics.version):
            if whole:
                self._remove_topics(broker.name, keep=topics.topics)
            for topic in topics.topics.values():
                self._add_topic(topic, broker.name)
        if known is not None:
            self.budget.count(-known.size, broker.name)
        self.budget.count(size, broker.name)
        self._live[broker.address] = _Registration(broker, topics.version, now, owner, filter_servers, size)
        return None if broker.is_master else self.master_of(broker.name)

    def _check_epoch(self, broker: RegisteredBroker, epoch: int) -> None:
        """Raises Refusal if this master was replaced by another one, in a later epoch."""
        address = self._names.get(broker.name, {}).get(MASTER)
        if address is None or address == broker.address:
            return
        newest = self._live[address].version.state_version
        if epoch < newest:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"{broker.name} has the master {address} in epoch {newest}, and this one is of epoch {epoch}",
            )

    def _claim_name(self, broker: RegisteredBroker) -> None:
        """Gives this name and id to the broker. Drops the broker that had them, which has moved or was replaced."""
        addresses = self._names.setdefault(broker.name, {})
        if broker.broker_id in addresses:
            self._forget(addresses[broker.broker_id])
        addresses[broker.broker_id] = broker.address

    def unregister(self, broker: RegisteredBroker) -> bool:
        """Removes a broker. Returns whether it was registered with this name, id and address."""
        live = self._live.get(broker.address)
        if live is None or not live.broker.is_same(broker):
            return False
        self._remove(broker.address)
        return True

    def touch(self, address: str, now: float) -> None:
        """Renews the registration of the broker at `address`, with the same topics."""
        live = self._live.get(address)
        if live is not None and live.seen_at != FOREVER:
            live.seen_at = now

    def expire(self, before: float) -> list[RegisteredBroker]:
        """Removes and returns the brokers that last registered before the time `before`."""
        return self._remove_all(live.broker for live in self._live.values() if live.seen_at < before)

    def drop_owner(self, owner: object) -> list[RegisteredBroker]:
        """Removes and returns the brokers that the connection `owner` registered."""
        return self._remove_all(live.broker for live in self._live.values() if live.owner is owner)

    def _remove_all(self, brokers: Iterator[RegisteredBroker]) -> list[RegisteredBroker]:
        gone = list(brokers)
        for broker in gone:
            self._remove(broker.address)
        return gone

    def _remove(self, address: str) -> None:
        broker = self._forget(address)
        addresses = self._names[broker.name]
        del addresses[broker.broker_id]
        if not addresses:
            del self._names[broker.name]
            del self._clusters[broker.name]
            self._remove_topics(broker.name, keep=())

    def _forget(self, address: str) -> RegisteredBroker:
        live = self._live.pop(address)
        self.budget.count(-live.size, live.broker.name)
        return live.broker

    def _add_topic(self, topic: TopicConfig, name: str) -> None:
        queues = self._queues.setdefault(topic.name, {})
        if name not in queues:
            self.budget.count(entry_bytes(topic.name), name)
        queues[name] = _queues_of(name, topic)

    def _remove_topics(self, name: str, keep: Iterable[str]) -> None:
        kept = frozenset(keep)
        for topic in [topic for topic, queues in self._queues.items() if name in queues and topic not in kept]:
            self._remove_topic(topic, name)

    def _remove_topic(self, topic: str, name: str) -> None:
        queues = self._queues[topic]
        del queues[name]
        self.budget.count(-entry_bytes(topic), name)
        if not queues:
            del self._queues[topic]

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[RegisteredBroker]:
        return [live.broker for live in self._live.values()]

    def master_of(self, name: str) -> RegisteredBroker | None:
        address = self._names.get(name, {}).get(MASTER)
        return None if address is None else self._live[address].broker

    def is_local(self, broker: RegisteredBroker) -> bool:
        """Whether the broker with this name and id, or at this address, is in this process.

        Slaves of the same name may run elsewhere.
        """
        named = self._names.get(broker.name, {}).get(broker.broker_id)
        known = [self._live.get(address) for address in (named, broker.address) if address is not None]
        return any(each is not None and each.seen_at == FOREVER for each in known)

    def version_of(self, address: str) -> DataVersion | None:
        """Returns the data version of the last registration from this address; None if there is none."""
        live = self._live.get(address)
        return None if live is None else live.version

    def queues(self, topic: str) -> dict[str, QueueData]:
        """Returns a topic's queues by broker name."""
        return dict(sorted(self._queues.get(topic, {}).items()))

    def route(self, topic: str) -> TopicRouteData | None:
        """Returns the route of a topic; None if no broker has it."""
        return self.route_of(list(self.queues(topic).values()))

    def route_of(self, queues: list[QueueData]) -> TopicRouteData | None:
        """Returns the route to these queues; None if the list is empty."""
        if not queues:
            return None
        names = [each.broker_name for each in queues]
        servers = {
            address: list(self._live[address].filter_servers)
            for name in names
            for address in self._names[name].values()
            if self._live[address].filter_servers
        }
        brokers = [self._broker_data(name) for name in names]
        return TopicRouteData(broker_datas=brokers, queue_datas=queues, filter_server_table=servers)

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in sorted(self._names)},
            cluster_addr_table={cluster: self._names_in(cluster) for cluster in self.clusters()},
        )

    def clusters(self) -> list[str]:
        return sorted(set(self._clusters.values()))

    def topics(self) -> list[str]:
        return sorted(self._queues)

    def topics_of(self, cluster: str) -> list[str]:
        """Returns the topics that a cluster's brokers have."""
        names = set(self._names_in(cluster))
        return sorted(topic for topic, queues in self._queues.items() if not names.isdisjoint(queues))

    def system_topics(self) -> list[str]:
        """Returns the names of all clusters and brokers, because each has a topic of its name."""
        return [name for cluster in self.clusters() for name in (cluster, *self._names_in(cluster))]

    def _names_in(self, cluster: str) -> list[str]:
        return sorted(name for name, its in self._clusters.items() if its == cluster)

    def _broker_data(self, name: str) -> BrokerData:
        addresses = dict(sorted(self._names[name].items()))
        return BrokerData(broker_name=name, cluster=self._clusters[name], broker_addrs=addresses)

    # -- administration --------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Removes a topic from all clusters, or only from `cluster`.

        The topic comes back when a broker registers it with a new data version.
        """
        for name in [name for name in self._queues.get(topic, {}) if cluster in (None, self._clusters[name])]:
            self._remove_topic(topic, name)

    def wipe_write_perm(self, name: str) -> int:
        """Removes the write permission of a broker's topics, before a shutdown. Returns the number of topics."""
        return self._set_perms(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, name: str) -> int:
        """Gives read and write permission to a broker's topics. Returns the number of topics."""
        return self._set_perms(name, lambda perm: perm | PERM_READ | PERM_WRITE)

    def _set_perms(self, name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._queues.values():
            if name in queues:
                queues[name] = msgspec.structs.replace(queues[name], perm=change(queues[name].perm))
                count += 1
        return count


def _queues_of(name: str, topic: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=name,
        perm=topic.perm,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        topic_sys_flag=topic.sys_flag,
    )


# -- the route of a topic that does not exist yet -------------------------------------------------------------

TEMPLATE_TOPIC: Final = "TBW102"
_DEFAULT_QUEUES: Final = 4
"""The number of queues that clients request by default when a send creates a topic."""
_RESERVED: Final = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        DAMAGED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_RESERVED_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_")


def default_route(routes: RouteTable, topic: str) -> TopicRouteData | None:
    """Returns the route that a send would create for a new topic; None if a send would not create the topic."""
    if topic in _RESERVED or topic.startswith(_RESERVED_PREFIXES) or not is_legal_topic(topic):
        return None
    template = routes.queues(TEMPLATE_TOPIC)
    offered = [_from_template(queues) for queues in template.values() if queues.perm & PERM_INHERIT]
    return routes.route_of(offered)


def _from_template(template: QueueData) -> QueueData:
    return QueueData(
        broker_name=template.broker_name,
        perm=template.perm & ~PERM_INHERIT,
        read_queue_nums=min(_DEFAULT_QUEUES, template.write_queue_nums),
        write_queue_nums=min(_DEFAULT_QUEUES, template.write_queue_nums),
    )
