"""Which brokers there are, which topics they have, and how many queues of each.

A broker is known by its name; under it masters and slaves have an id and an address each. It is here from its first
registration until it unregisters, its connection closes or it falls silent. Topics are the master's business: what it
registers is added to what is known, because brokers register single topics too; only `delete_topic`, and a
registration of the `whole` table, take any away.

Pure: no clock, no I/O. Belongs to one thread. Nothing survives the process: brokers register again.


The route of a topic that nobody has yet.

Some clients send only to a topic whose route they were told, and never ask for the template's. While topics may be
created by a send, they get the route that the topic would have: at each broker that offers the template, with as many
queues as a send creates by default. Names that mean something to a broker get none.
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

FOREVER: Final = float("inf")


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
        """Whether it has the same place among the brokers, whatever else it says."""
        return (self.name, self.broker_id) == (other.name, other.broker_id)


@dataclass(slots=True)
class _Live:
    """What is known of a broker that is here."""

    broker: RegisteredBroker
    version: DataVersion
    seen_at: float
    """FOREVER for a broker of this process."""
    owner: object
    """The connection on which it registered."""
    filter_servers: tuple[str, ...]


class RouteTable:
    """The routes of all topics."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}  # by address
        self._names: dict[str, dict[int, str]] = {}  # addresses by name and id
        self._clusters: dict[str, str] = {}  # by name of broker
        self._queues: dict[str, dict[str, QueueData]] = {}  # by topic and name of broker

    # -- brokers come and go ---------------------------------------------------------------------------------

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
        """A broker is here. Returns its master, if it is a slave and that is known."""
        known = self._live.get(broker.address)
        if known is not None and not known.broker.is_same(broker):
            self._remove(broker.address)
            known = None
        if known is None:
            self._give_place(broker)
        self._clusters[broker.name] = broker.cluster
        if broker.is_master and (known is None or known.version != topics.version):
            if whole:
                self._forget_topics(broker.name, keep=topics.topics)
            for topic in topics.topics.values():
                self._queues.setdefault(topic.name, {})[broker.name] = _queues_of(broker.name, topic)
        self._live[broker.address] = _Live(broker, topics.version, now, owner, tuple(filter_servers))
        return None if broker.is_master else self.master_of(broker.name)

    def _give_place(self, broker: RegisteredBroker) -> None:
        """Whoever had its name and id is gone: it moved to another address, or another one took over."""
        addresses = self._names.setdefault(broker.name, {})
        if broker.broker_id in addresses:
            del self._live[addresses[broker.broker_id]]
        addresses[broker.broker_id] = broker.address

    def unregister(self, broker: RegisteredBroker) -> bool:
        """A broker leaves; says whether it was here, under this name, id and address."""
        live = self._live.get(broker.address)
        if live is None or not live.broker.is_same(broker):
            return False
        self._remove(broker.address)
        return True

    def touch(self, address: str, now: float) -> None:
        """A broker was heard of, and nothing has changed."""
        live = self._live.get(address)
        if live is not None and live.seen_at != FOREVER:
            live.seen_at = now

    def expire(self, before: float) -> list[RegisteredBroker]:
        """Removes the brokers that were last heard of before a time."""
        return self._remove_all(live.broker for live in self._live.values() if live.seen_at < before)

    def drop_owner(self, owner: object) -> list[RegisteredBroker]:
        """Removes the brokers whose connection is gone."""
        return self._remove_all(live.broker for live in self._live.values() if live.owner is owner)

    def _remove_all(self, brokers: Iterator[RegisteredBroker]) -> list[RegisteredBroker]:
        gone = list(brokers)
        for broker in gone:
            self._remove(broker.address)
        return gone

    def _remove(self, address: str) -> None:
        broker = self._live.pop(address).broker
        addresses = self._names[broker.name]
        del addresses[broker.broker_id]
        if not addresses:
            del self._names[broker.name]
            del self._clusters[broker.name]
            self._forget_topics(broker.name, keep=())

    def _forget_topics(self, name: str, keep: Iterable[str]) -> None:
        kept = frozenset(keep)
        for topic in [topic for topic, queues in self._queues.items() if name in queues and topic not in kept]:
            self._forget_topic(topic, name)

    def _forget_topic(self, topic: str, name: str) -> None:
        queues = self._queues[topic]
        del queues[name]
        if not queues:
            del self._queues[topic]

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def brokers(self) -> list[RegisteredBroker]:
        return [live.broker for live in self._live.values()]

    def master_of(self, name: str) -> RegisteredBroker | None:
        address = self._names.get(name, {}).get(MASTER)
        return None if address is None else self._live[address].broker

    def is_local(self, broker: RegisteredBroker) -> bool:
        """Whether a broker of this process has its name and id; a slave of such a broker may come from elsewhere."""
        address = self._names.get(broker.name, {}).get(broker.broker_id)
        return address is not None and self._live[address].seen_at == FOREVER

    def version_of(self, address: str) -> DataVersion | None:
        """The version of what a broker registered last."""
        live = self._live.get(address)
        return None if live is None else live.version

    def queues(self, topic: str) -> dict[str, QueueData]:
        """A topic's queues by name of broker."""
        return dict(sorted(self._queues.get(topic, {}).items()))

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic is; None if nobody has it."""
        return self.route_of(list(self.queues(topic).values()))

    def route_of(self, queues: list[QueueData]) -> TopicRouteData | None:
        """The route to these queues; None if there are none."""
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
        """The topics that a cluster's brokers have."""
        names = set(self._names_in(cluster))
        return sorted(topic for topic, queues in self._queues.items() if not names.isdisjoint(queues))

    def system_topics(self) -> list[str]:
        """Each cluster and each broker has a topic of its name."""
        return [name for cluster in self.clusters() for name in (cluster, *self._names_in(cluster))]

    def _names_in(self, cluster: str) -> list[str]:
        return sorted(name for name, its in self._clusters.items() if its == cluster)

    def _broker_data(self, name: str) -> BrokerData:
        addresses = dict(sorted(self._names[name].items()))
        return BrokerData(broker_name=name, cluster=self._clusters[name], broker_addrs=addresses)

    # -- administration --------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets a topic, everywhere or in one cluster, until a broker registers it with a new version."""
        for name in [name for name in self._queues.get(topic, {}) if cluster in (None, self._clusters[name])]:
            self._forget_topic(topic, name)

    def wipe_write_perm(self, name: str) -> int:
        """A broker's topics take no more messages, so that it can be shut down; returns how many topics."""
        return self._set_perms(name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, name: str) -> int:
        """A broker's topics may be read and written again; returns how many topics."""
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


TEMPLATE_TOPIC: Final = "TBW102"
_QUEUES: Final = 4
"""What clients ask for when a send creates a topic, unless told otherwise."""
_TAKEN: Final = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        DAMAGED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_TAKEN_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_")


def default_route(routes: RouteTable, topic: str) -> TopicRouteData | None:
    """The route that a send would give to a new topic; None if it would not."""
    if topic in _TAKEN or topic.startswith(_TAKEN_PREFIXES) or not is_legal_topic(topic):
        return None
    template = routes.queues(TEMPLATE_TOPIC)
    offered = [_like(queues) for queues in template.values() if queues.perm & PERM_INHERIT]
    return routes.route_of(offered)


def _like(template: QueueData) -> QueueData:
    return QueueData(
        broker_name=template.broker_name,
        perm=template.perm & ~PERM_INHERIT,
        read_queue_nums=min(_QUEUES, template.write_queue_nums),
        write_queue_nums=min(_QUEUES, template.write_queue_nums),
    )
