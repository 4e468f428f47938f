"""Administers topics (list, create, change, delete, statistics) and offsets (reset, clone, time spans)."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.client_instance import ClientInstance
from penstock.client.offsets import QueueOffsets
from penstock.client.routes import TEMPLATE_TOPIC, Route
from penstock.errors import NoRoute, Refused
from penstock.format.config_tables import TopicConfig, TopicConfigs
from penstock.protocol import fields
from penstock.protocol.bodies.admin import GroupList, TopicList, decode_config
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import (
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import CreateTopic, TopicName
from penstock.protocol.headers.namesrv import DeleteTopicRoute, GetTopicsByCluster
from penstock.protocol.headers.offsets import CloneGroupOffset, QueryConsumeTimeSpan, ResetOffset

_ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
_UNIT, _UNIT_SUBSCRIPTION = 1, 2


class TopicAdmin:
    """Inspects and changes topics. A change goes from broker to broker; after an error the remaining brokers are
    unchanged.
    """

    def __init__(self, instance: ClientInstance, cluster: ClusterAdmin) -> None:
        self._instance = instance
        self._cluster = cluster

    # -- reading ---------------------------------------------------------------------------------------------

    async def names(self, cluster: str | None = None) -> list[str]:
        """Returns the names of all topics, or of the topics of one cluster, including system topics."""
        if cluster is None:
            reply = await self._instance.name_servers.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        else:
            header = fields.write(GetTopicsByCluster(cluster=cluster))
            reply = await self._instance.name_servers.request(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        return sorted(set(TopicList.from_bytes(reply.body).topic_list))

    async def route(self, topic: str) -> Route:
        """Fetches the topic's current route from a name server. Raises NoRoute if no broker has the topic."""
        return await self._instance.routes.fetch(topic)

    async def clusters(self, topic: str) -> set[str]:
        """Returns the names of the clusters that have a topic."""
        return {broker.cluster for broker in (await self.route(topic)).data.broker_datas}

    async def config(self, topic: str) -> dict[str, TopicConfig]:
        """Returns a topic's settings by broker name, for each master that has the topic."""
        configs = {}
        for name, address in (await self.route(topic)).masters.items():
            config = (await self.configs(address)).get(topic)
            if config is not None:
                configs[name] = config
        return configs

    async def configs(self, broker: str) -> dict[str, TopicConfig]:
        """Returns the settings of all topics of one broker, by topic name."""
        reply = await self._instance.request(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_config(TopicConfigs, reply.body).topics

    async def stats(self, topic: str, brokers: Iterable[str] | None = None) -> dict[MessageQueue, TopicOffset]:
        """Returns the minimum offset, the maximum offset and the last write time of each queue.

        `brokers` are the addresses to query; by default, all masters of the topic.
        """
        offsets: dict[MessageQueue, TopicOffset] = {}
        header = TopicName(topic=topic)
        for address in (await self.route(topic)).masters.values() if brokers is None else brokers:
            reply = await self._instance.request(address, RequestCode.GET_TOPIC_STATS_INFO, header)
            offsets.update(TopicStatsTable.from_bytes(reply.body).offset_table)
        return dict(sorted(offsets.items()))

    async def groups(self, topic: str) -> list[str]:
        """Returns the names of the groups that consume a topic."""
        groups: set[str] = set()
        header = TopicName(topic=topic)
        for address in (await self.route(topic)).masters.values():
            reply = await self._instance.request(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            groups |= set(GroupList.from_bytes(reply.body).group_list)
        return sorted(groups)

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
        """Creates or changes a topic at one broker, in one cluster, or everywhere. Returns the brokers' addresses.

        `queues` sets the number of both read and write queues. `perm` is 2 to write, 4 to read, 6 for both. `order`
        registers the topic's queues at the name servers, so that producers keep their order across brokers.
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
            await self._instance.request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        if order:
            names = await self._cluster.masters(cluster)
            ordered = [name for name, address in names.items() if address in targets]
            conf = ";".join(f"{name}:{header.write_queue_nums}" for name in ordered)
            await self._cluster.put_kv(_ORDER_TOPICS, topic, conf)
        return targets

    async def delete(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Deletes a topic at the brokers of one cluster or of all clusters, and at the name servers.

        Returns the brokers' addresses. The topic's messages stay on disk until their files expire.
        """
        targets = await self._cluster.targets(cluster)
        header = TopicName(topic=topic)
        for address in targets:
            await self._instance.request(address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
        route_header = fields.write(DeleteTopicRoute(topic=topic, cluster_name=cluster))
        await self._instance.name_servers.request_all(RequestCode.DELETE_TOPIC_IN_NAMESRV, route_header)
        if await self._cluster.get_kv(_ORDER_TOPICS, topic) is not None:
            await self._cluster.delete_kv(_ORDER_TOPICS, topic)
        return targets

    async def masters(self, topic: str) -> dict[str, str]:
        """Returns the addresses of the masters that have a topic, by broker name. Raises NoRoute if there are none."""
        masters = (await self.route(topic)).masters
        if not masters:
            raise NoRoute(f"topic '{topic}' has no master at the moment; start its broker")
        return masters


class OffsetAdmin(QueueOffsets):
    """Reads, resets and clones offsets."""

    def __init__(self, instance: ClientInstance) -> None:
        super().__init__(instance)
        self._instance = instance

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the readable queues of a topic. Raises NoRoute if no broker has the topic."""
        return list((await self._route(topic)).subscribe_queues)

    async def reset(self, group: str, topic: str, timestamp: int, *, force: bool = True) -> dict[MessageQueue, int]:
        """Resets a group's offsets in a topic to a time (epoch milliseconds; −1 for the end). Returns the new offsets.

        Without `force` an offset only moves backwards. Connected consumers continue at the new offsets at once. For a
        group without connected consumers, the new offsets are only committed.
        """
        header = ResetOffset(topic=topic, group=group, timestamp=timestamp, is_force=force)
        offsets: dict[MessageQueue, int] = {}
        route = await self._route(topic)
        for name, address in route.masters.items():
            try:
                reply = await self._instance.request(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            except Refused as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                offsets.update(await self._reset_offline(group, name, route, timestamp, force))
            else:
                offsets.update(ResetOffsetBody.from_bytes(reply.body).offset_table)
        return dict(sorted(offsets.items()))

    async def _reset_offline(
        self, group: str, broker_name: str, route: Route, timestamp: int, force: bool
    ) -> dict[MessageQueue, int]:
        offsets = {}
        for queue in route.subscribe_queues:
            if queue.broker_name != broker_name:
                continue
            target = await (self.max_offset(queue) if timestamp < 0 else self.offset_by_time(queue, timestamp))
            current = await self.committed(group, queue, exact=True)
            if not force and current is not None:
                target = min(target, current)
            await self.commit(group, queue, target)
            offsets[queue] = target
        return offsets

    async def clone(self, source: str, target: str, topic: str, *, offline: bool = False) -> None:
        """Copies one group's offsets in a topic to another group.

        Unless `offline`, a broker copies nothing if the source group has connected consumers and these do not
        subscribe to the topic.
        """
        header = CloneGroupOffset(src_group=source, dest_group=target, topic=topic, offline=offline)
        for address in (await self._route(topic)).masters.values():
            await self._instance.request(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def time_span(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Returns, for each queue, the store times of its oldest, its newest and its last consumed message."""
        header = QueryConsumeTimeSpan(topic=topic, group=group)
        spans: list[QueueTimeSpan] = []
        for address in (await self._route(topic)).masters.values():
            reply = await self._instance.request(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            spans += QueryConsumeTimeSpanBody.from_bytes(reply.body).consume_time_span_set
        return sorted(spans, key=lambda span: span.message_queue)

    async def _route(self, topic: str) -> Route:
        """Refreshes and returns the topic's route, because the inherited methods find brokers by the cached route."""
        await self._instance.routes.refresh([topic])
        return await self._instance.routes.find(topic)
