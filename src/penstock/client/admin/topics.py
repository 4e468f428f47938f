"""Topics: list, make, change, delete, and how they stand.

Offsets as administrators move them.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.instance import ClientInstance
from penstock.client.offsets import QueueOffsets
from penstock.client.routes import TEMPLATE_TOPIC, Route
from penstock.errors import NoRoute, Refused
from penstock.format.config_tables import TopicConfig, TopicConfigs
from penstock.protocol import fields
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import (
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from penstock.protocol.bodies.tables import GroupList, TopicList, decode_config
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import CreateTopic, TopicName
from penstock.protocol.headers.namesrv import DeleteTopicRoute, GetTopicsByCluster
from penstock.protocol.headers.offsets import CloneGroupOffset, QueryConsumeTimeSpan, ResetOffset

_ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
_UNIT, _UNIT_SUBSCRIPTION = 1, 2


class TopicAdmin:
    """What has to be done at several brokers is done at one after the other; an error leaves the rest undone."""

    def __init__(self, instance: ClientInstance, cluster: ClusterAdmin) -> None:
        self._instance = instance
        self._cluster = cluster

    # -- asking ----------------------------------------------------------------------------------------------

    async def names(self, cluster: str | None = None) -> list[str]:
        """The names of all topics, the cluster's own among them, or of those of one cluster."""
        if cluster is None:
            reply = await self._instance.name_servers.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        else:
            header = fields.write(GetTopicsByCluster(cluster=cluster))
            reply = await self._instance.name_servers.ask(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        return sorted(set(TopicList.from_bytes(reply.body).topic_list))

    async def route(self, topic: str) -> Route:
        """Which brokers have a topic, as a name server says now. Raises NoRoute if none has."""
        return await self._instance.routes.ask(topic)

    async def clusters(self, topic: str) -> set[str]:
        """The clusters that have a topic."""
        return {broker.cluster for broker in (await self.route(topic)).data.broker_datas}

    async def config(self, topic: str) -> dict[str, TopicConfig]:
        """How a topic is set at each broker that has it, by broker name."""
        found = {}
        for name, address in (await self.route(topic)).masters.items():
            config = (await self.configs(address)).get(topic)
            if config is not None:
                found[name] = config
        return found

    async def configs(self, broker: str) -> dict[str, TopicConfig]:
        """All topics of one broker."""
        reply = await self._instance.ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_config(TopicConfigs, reply.body).topics

    async def stats(self, topic: str, brokers: Iterable[str] | None = None) -> dict[MessageQueue, TopicOffset]:
        """What each queue holds: its lowest and next offset, and when it was last written.

        Name servers are asked which brokers have the topic, unless their addresses are given.
        """
        found: dict[MessageQueue, TopicOffset] = {}
        header = TopicName(topic=topic)
        for address in (await self.route(topic)).masters.values() if brokers is None else brokers:
            reply = await self._instance.ask(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            found.update(TopicStatsTable.from_bytes(reply.body).offset_table)
        return dict(sorted(found.items()))

    async def groups(self, topic: str) -> list[str]:
        """The groups that consume a topic."""
        found: set[str] = set()
        header = TopicName(topic=topic)
        for address in (await self.route(topic)).masters.values():
            reply = await self._instance.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            found |= set(GroupList.from_bytes(reply.body).group_list)
        return sorted(found)

    # -- changing --------------------------------------------------------------------------------------------

    async def create(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = 6,
        order: bool = False,
        unit: bool = False,
        unit_subscription: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Makes or changes a topic at one broker, in one cluster, or everywhere; returns the brokers' addresses.

        `queues` is both numbers of queues; `perm` is 2 to write, 4 to read, 6 for both. With `order`, the name servers
        are told that the topic's queues are ordered across brokers.
        """
        header = CreateTopic(
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=read_queues if queues is None else queues,
            write_queue_nums=write_queues if queues is None else queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            order=order,
            topic_sys_flag=(_UNIT if unit else 0) | (_UNIT_SUBSCRIPTION if unit_subscription else 0),
        )
        targets = await self._cluster.targets(cluster, broker)
        for address in targets:
            await self._instance.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        if order:
            names = await self._cluster.masters(cluster)
            told = [name for name, address in names.items() if address in targets]
            conf = ";".join(f"{name}:{header.write_queue_nums}" for name in told)
            await self._cluster.put_kv(_ORDER_TOPICS, topic, conf)
        return targets

    async def delete(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Deletes a topic at all brokers, or those of a cluster, and at the name servers; returns the brokers'
        addresses. The messages stay on disk until their files expire.
        """
        targets = await self._cluster.targets(cluster)
        header = TopicName(topic=topic)
        for address in targets:
            await self._instance.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        gone = fields.write(DeleteTopicRoute(topic=topic, cluster_name=cluster))
        await self._instance.name_servers.ask_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, gone)
        if await self._cluster.get_kv(_ORDER_TOPICS, topic) is not None:
            await self._cluster.delete_kv(_ORDER_TOPICS, topic)
        return targets

    async def masters(self, topic: str) -> dict[str, str]:
        """The addresses of the masters that have a topic, by broker name. Raises NoRoute."""
        found = (await self.route(topic)).masters
        if not found:
            raise NoRoute(f"topic '{topic}' has no master now; start its broker")
        return found


class OffsetAdmin(QueueOffsets):
    """Offsets of queues and groups, and their reset and cloning."""

    def __init__(self, instance: ClientInstance) -> None:
        super().__init__(instance)
        self._instance = instance

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that may be read. Raises NoRoute if no broker has it."""
        return list((await self._route(topic)).subscribe_queues)

    async def reset(self, group: str, topic: str, timestamp: int, *, force: bool = True) -> dict[MessageQueue, int]:
        """Has a group consume a topic from a time on, in epoch milliseconds, −1 for what is still to come; returns
        where each queue goes on. Without `force` a queue only moves backwards. Consumers that are connected go on there
        at once; for a group without any, the offsets are stored.
        """
        header = ResetOffset(topic=topic, group=group, timestamp=timestamp, is_force=force)
        found: dict[MessageQueue, int] = {}
        route = await self._route(topic)
        for name, address in route.masters.items():
            try:
                reply = await self._instance.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except Refused as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                found.update(await self._reset_offline(group, name, route, timestamp, force))
            else:
                found.update(ResetOffsetBody.from_bytes(reply.body).offset_table)
        return dict(sorted(found.items()))

    async def _reset_offline(
        self, group: str, broker_name: str, route: Route, timestamp: int, force: bool
    ) -> dict[MessageQueue, int]:
        found = {}
        for queue in route.subscribe_queues:
            if queue.broker_name != broker_name:
                continue
            target = await (self.max_offset(queue) if timestamp < 0 else self.offset_by_time(queue, timestamp))
            current = await self.committed(group, queue, exact=True)
            if not force and current is not None:
                target = min(target, current)
            await self.commit(group, queue, target)
            found[queue] = target
        return found

    async def clone(self, source: str, target: str, topic: str, *, offline: bool = False) -> None:
        """Has one group go on in a topic where another one is. With `offline` neither may have consumers."""
        header = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
        for address in (await self._route(topic)).masters.values():
            await self._instance.ask(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def time_span(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """When the oldest, the newest and the last consumed message of each queue were stored."""
        header = QueryConsumeTimeSpan(topic=topic, group=group)
        found: list[QueueTimeSpan] = []
        for address in (await self._route(topic)).masters.values():
            reply = await self._instance.ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            found += QueryConsumeTimeSpanBody.from_bytes(reply.body).consume_time_span_set
        return sorted(found, key=lambda span: span.message_queue)

    async def _route(self, topic: str) -> Route:
        """As the name servers have it now; other methods find the brokers' addresses by it."""
        await self._instance.routes.refresh([topic])
        return await self._instance.routes.find(topic)
