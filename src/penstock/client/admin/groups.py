"""Consumer and producer groups: how they are set, who is in them, how far they have come."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.topics import TopicAdmin
from penstock.client.instance import ClientInstance
from penstock.errors import NoRoute, Refused
from penstock.format.config_tables import SubscriptionGroup, SubscriptionGroups
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol.bodies.clients import ConsumerConnection, ConsumerRunningInfo, ProducerConnection
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import ConsumeStats, ConsumeStatsList
from penstock.protocol.bodies.tables import TopicList, decode_config, encode_config
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
    """How far a group has come in one queue."""

    queue: MessageQueue
    broker_offset: int
    """Of the message that will come next."""
    consumer_offset: int
    """Of the message that the group consumes next."""
    last_timestamp: int
    """When the last message that was consumed had been stored, in epoch milliseconds; 0 if that is not known."""

    @property
    def lag(self) -> int:
        """How many messages are still to be consumed."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group has come."""

    group: str
    consume_tps: float
    """Messages a second, lately."""
    queues: list[QueueProgress]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


class GroupAdmin:
    """What has to be done at several brokers is done at one after the other; an error leaves the rest undone."""

    def __init__(self, instance: ClientInstance, cluster: ClusterAdmin, topics: TopicAdmin) -> None:
        self._instance = instance
        self._cluster = cluster
        self._topics = topics

    # -- asking ----------------------------------------------------------------------------------------------

    async def configs(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, SubscriptionGroup]:
        """All consumer groups and how they are set, by name."""
        found: dict[str, SubscriptionGroup] = {}
        for address in await self._cluster.targets(cluster, broker):
            reply = await self._instance.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            found.update(decode_config(SubscriptionGroups, reply.body).groups)
        return dict(sorted(found.items()))

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far a group has come, in one topic or in all that it consumes."""
        tps, queues = 0.0, []
        header = GetConsumeStats(consumer_group=group, topic=topic)
        for address in await self._cluster.targets():
            reply = await self._instance.ask(address, RequestCode.GET_CONSUME_STATS, header)
            stats = ConsumeStats.from_bytes(reply.body)
            tps += stats.consume_tps
            queues += [
                QueueProgress(queue, at.broker_offset, at.consumer_offset, at.last_timestamp)
                for queue, at in stats.offset_table.items()
            ]
        return GroupProgress(group, tps, sorted(queues, key=lambda each: (each.queue.topic, each.queue)))

    async def all_progress(self) -> dict[str, GroupProgress]:
        """How far all groups have come, with one request to each broker; those of brokers' own are left out."""
        rates: dict[str, float] = {}
        queues: dict[str, list[QueueProgress]] = {}
        for address in await self._cluster.targets():
            header = GetBrokerConsumeStats(is_order=False)
            reply = await self._instance.ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header)
            for by_group in ConsumeStatsList.from_bytes(reply.body).consume_stats_list:
                for group, found in by_group.items():
                    rates[group] = rates.get(group, 0.0) + sum(stats.consume_tps for stats in found)
                    queues.setdefault(group, []).extend(
                        QueueProgress(queue, at.broker_offset, at.consumer_offset, at.last_timestamp)
                        for stats in found
                        for queue, at in stats.offset_table.items()
                    )
        return {
            group: GroupProgress(group, rates[group], sorted(of_group, key=lambda each: (each.queue.topic, each.queue)))
            for group, of_group in sorted(queues.items())
        }

    async def connections(self, group: str) -> ConsumerConnection:
        """The consumers of a group, and what it subscribes to. Raises Refused (CONSUMER_NOT_ONLINE) if none is."""
        header = ConsumerGroupRequest(consumer_group=group)
        failure: Refused | None = None
        for address in await self._cluster.targets():
            try:
                reply = await self._instance.ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
            except Refused as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                failure = error
                continue
            return ConsumerConnection.from_bytes(reply.body)
        assert failure is not None  # there is a broker, or `targets` had raised
        raise failure

    async def producers(self, group: str, topic: str | None = None) -> ProducerConnection:
        """The producers of a group, at the brokers of a topic or at all. Raises Refused if none is there."""
        header = ProducerGroup(producer_group=group)
        masters = await (self._cluster.masters() if topic is None else self._topics.masters(topic))
        found = {}
        failure: Refused | None = None
        for address in masters.values():
            try:
                reply = await self._instance.ask(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
            except Refused as error:
                failure = error
                continue
            found.update({each.client_id: each for each in ProducerConnection.from_bytes(reply.body).connection_set})
        if not found and failure is not None:
            raise failure
        return ProducerConnection(connection_set=list(found.values()))

    async def topics(self, group: str) -> list[str]:
        """The topics that a group has consumed."""
        found: set[str] = set()
        for address in await self._cluster.targets():
            reply = await self._instance.ask(address, RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupName(group=group))
            found |= set(TopicList.from_bytes(reply.body).topic_list)
        return sorted(found)

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """What one consumer says about itself: its queues, and what it has in hand."""
        header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id)
        failure: Refused | None = None
        for address in await self._cluster.targets():
            try:
                reply = await self._instance.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
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
        """Makes or changes a consumer group at one broker, in one cluster, or everywhere; returns the addresses."""
        targets = await self._cluster.targets(cluster, broker)
        for address in targets:
            body = encode_config(config)
            await self._instance.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        return targets

    async def delete(
        self,
        group: str,
        *,
        remove_offset: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Deletes a consumer group with its topics for retries and dead letters; returns the brokers' addresses."""
        targets = await self._cluster.targets(cluster, broker)
        header = DeleteGroup(group_name=group, clean_offset=remove_offset, remove_offset=remove_offset)
        for address in targets:
            await self._instance.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        if broker is None:
            for topic in (f"{RETRY_PREFIX}{group}", f"{DLQ_PREFIX}{group}"):
                try:
                    await self._topics.route(topic)
                except NoRoute:
                    continue
                await self._topics.delete(topic, cluster=cluster)
        return targets
