"""Administers consumer and producer groups: settings, members, progress."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.topics import TopicAdmin
from penstock.client.client_instance import ClientInstance
from penstock.errors import NoRoute, Refused
from penstock.format.config_tables import SubscriptionGroup, SubscriptionGroups
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol.bodies.admin import TopicList, decode_config, encode_config
from penstock.protocol.bodies.clients import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import ConsumeStats, ConsumeStatsList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import GetBrokerConsumeStats
from penstock.protocol.headers.groups import (
    ConsumerGroupRequest,
    DeleteGroup,
    GetConsumerRunningInfo,
    GetConsumeStats,
    GroupName,
    ProducerGroup,
)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in one queue."""

    queue: MessageQueue
    broker_offset: int
    """The offset of the next message to be written."""
    consumer_offset: int
    """The offset of the next message to be consumed."""
    last_timestamp: int
    """Store time of the last consumed message, in epoch milliseconds; 0 if unknown."""

    @property
    def lag(self) -> int:
        """The number of messages not consumed yet."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's progress over all its queues."""

    group: str
    consume_tps: float
    """Messages consumed per second over the last minute."""
    queues: list[QueueProgress]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


class GroupAdmin:
    """Inspects and changes groups. A change goes from broker to broker; after an error the remaining brokers are
    unchanged.
    """

    def __init__(self, instance: ClientInstance, cluster: ClusterAdmin, topics: TopicAdmin) -> None:
        self._instance = instance
        self._cluster = cluster
        self._topics = topics

    # -- reading ---------------------------------------------------------------------------------------------

    async def configs(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, SubscriptionGroup]:
        """Returns the settings of all consumer groups, by group name."""
        configs: dict[str, SubscriptionGroup] = {}
        for address in await self._cluster.targets(cluster, broker):
            reply = await self._instance.request(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            configs.update(decode_config(SubscriptionGroups, reply.body).groups)
        return dict(sorted(configs.items()))

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Returns a group's progress, in one topic or in all topics that the group consumes."""
        tps, queues = 0.0, []
        header = GetConsumeStats(consumer_group=group, topic=topic)
        for address in await self._cluster.targets():
            reply = await self._instance.request(address, RequestCode.GET_CONSUME_STATS, header)
            stats = ConsumeStats.from_bytes(reply.body)
            tps += stats.consume_tps
            queues += [
                QueueProgress(queue, at.broker_offset, at.consumer_offset, at.last_timestamp)
                for queue, at in stats.offset_table.items()
            ]
        return GroupProgress(group, tps, sorted(queues, key=lambda each: (each.queue.topic, each.queue)))

    async def all_progress(self) -> dict[str, GroupProgress]:
        """Returns the progress of all groups by name, without system groups. Sends one request per broker."""
        rates: dict[str, float] = {}
        queues: dict[str, list[QueueProgress]] = {}
        for address in await self._cluster.targets():
            header = GetBrokerConsumeStats(is_order=False)
            reply = await self._instance.request(address, RequestCode.GET_BROKER_CONSUME_STATS, header)
            for by_group in ConsumeStatsList.from_bytes(reply.body).consume_stats_list:
                for group, per_topic in by_group.items():
                    rates[group] = rates.get(group, 0.0) + sum(stats.consume_tps for stats in per_topic)
                    queues.setdefault(group, []).extend(
                        QueueProgress(queue, at.broker_offset, at.consumer_offset, at.last_timestamp)
                        for stats in per_topic
                        for queue, at in stats.offset_table.items()
                    )
        return {
            group: GroupProgress(group, rates[group], sorted(of_group, key=lambda each: (each.queue.topic, each.queue)))
            for group, of_group in sorted(queues.items())
        }

    async def connections(self, group: str) -> ConsumerConnection:
        """Returns a group's consumers and subscriptions. Raises Refused (CONSUMER_NOT_ONLINE) if the group has no
        consumer.
        """
        header = ConsumerGroupRequest(consumer_group=group)
        failure: Refused | None = None
        for address in await self._cluster.targets():
            try:
                reply = await self._instance.request(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except Refused as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                failure = error
                continue
            return ConsumerConnection.from_bytes(reply.body)
        assert failure is not None  # `targets` raises if there is no broker
        raise failure

    async def producers(self, group: str, topic: str | None = None) -> ProducerConnection:
        """Returns a group's producers at the brokers of `topic`, or at all brokers. Raises Refused if the group has
        none.
        """
        header = ProducerGroup(producer_group=group)
        masters = await (self._cluster.masters() if topic is None else self._topics.masters(topic))
        producers = {}
        failure: Refused | None = None
        for address in masters.values():
            try:
                reply = await self._instance.request(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            except Refused as error:
                failure = error
                continue
            producers.update(
                {each.client_id: each for each in ProducerConnection.from_bytes(reply.body).connection_set}
            )
        if not producers and failure is not None:
            raise failure
        return ProducerConnection(connection_set=list(producers.values()))

    async def all_producers(self, *, broker: str | None = None) -> dict[str, list[ProducerInfo]]:
        """Returns the connected producers of every group, by group name: at one broker, or at all of them."""
        groups: dict[str, dict[str, ProducerInfo]] = {}
        for address in await self._cluster.targets(None, broker):
            reply = await self._instance.request(address, RequestCode.GET_ALL_PRODUCER_INFO)
            for group, producers in ProducerTableInfo.from_bytes(reply.body).data.items():
                groups.setdefault(group, {}).update({each.client_id: each for each in producers})
        return {group: list(found.values()) for group, found in sorted(groups.items())}

    async def topics(self, group: str) -> list[str]:
        """Returns the topics that a group has consumed."""
        topics: set[str] = set()
        for address in await self._cluster.targets():
            reply = await self._instance.request(address, RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupName(group=group))
            topics |= set(TopicList.from_bytes(reply.body).topic_list)
        return sorted(topics)

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Returns a consumer's own report about its queues and its cached messages."""
        header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
        failure: Refused | None = None
        for address in await self._cluster.targets():
            try:
                reply = await self._instance.request(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            except Refused as error:
                failure = error
                continue
            return ConsumerRunningInfo.from_bytes(reply.body)
        assert failure is not None
        raise failure

    # -- changing --------------------------------------------------------------------------------------------

    async def update(
        self, config: SubscriptionGroup, *, cluster: str | None = None, broker: str | None = None
    ) -> list[str]:
        """Creates or changes a consumer group at one broker, in one cluster, or everywhere. Returns the brokers'
        addresses.
        """
        targets = await self._cluster.targets(cluster, broker)
        for address in targets:
            body = encode_config(config)
            await self._instance.request(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        return targets

    async def delete(
        self,
        group: str,
        *,
        remove_offset: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Deletes a consumer group at one broker, in one cluster, or everywhere. Returns the brokers' addresses.

        Unless `broker` is given, the group's retry topic and dead-letter topic are deleted, too.
        """
        targets = await self._cluster.targets(cluster, broker)
        header = DeleteGroup(group_name=group, clean_offset=remove_offset, remove_offset=remove_offset)
        for address in targets:
            await self._instance.request(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        if broker is None:
            for topic in (f"{RETRY_PREFIX}{group}", f"{DLQ_PREFIX}{group}"):
                try:
                    await self._topics.route(topic)
                except NoRoute:
                    continue
                await self._topics.delete(topic, cluster=cluster)
        return targets
