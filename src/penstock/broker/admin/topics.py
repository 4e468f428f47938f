"""Topics for administrators: create, change, delete and show.

Deleting a topic also deletes its queues, the consumer offsets in it, and the retry topics that belong to this topic
alone (5.x's `%RETRY%group_topic`). A retry topic of that name may also be the one of a group named `group_topic`: if
there is such a group, it is not deleted. The records stay in the log until their files are deleted. Queues are deleted
in a thread, because that touches files; so are store times read, which may be on disk only.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from penstock.broker.operations_as_plain_calls import Client, Operation, administration
from penstock.broker.table_persistence import BrokerState
from penstock.broker.topics import is_topic_of_broker, retry_topic
from penstock.errors import BadMessage
from penstock.format.config_tables import TopicConfig, TopicConfigs
from penstock.format.constants import RETRY_PREFIX
from penstock.format.topics import check_topic
from penstock.protocol.bodies.admin import GroupList, TopicList, encode_deleted
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import TopicOffset, TopicStatsTable
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.admin import AllTopicsReply, CreateTopic, TopicName

_MAX_QUEUES: Final = 4096
_HIGHEST_PERM: Final = 15
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class AdminTopics:
    """Changes and shows the topic table and the topics' queues."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("create topic", self.create, changes=True),
            administration("delete topic", self.delete, changes=True),
            administration("all topics", self.all_topics, for_slaves=True),
            administration("show topic", self.show),
            administration("topic stats", self.stats),
            administration("system topics", self.system_topics),
            administration("topic consumers", self.consumers),
        )

    # -- changing --------------------------------------------------------------------------------------------

    def create(self, client: Client, request: CreateTopic) -> None:
        """Creates or changes a topic."""
        topics = self._state.topics
        self._check(request)
        known = topics.find(request.topic)
        max_topics = self._state.settings.now.max_topics
        if known is None and len(topics.all()) >= max_topics:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"there are {max_topics} topics already (maxTopics)")
        extra = {} if known is None else dict(known.extra)
        if request.attributes:
            extra["attributes"] = _attributes(extra.get("attributes"), request.attributes)
        topics.update(
            TopicConfig(
                name=request.topic,
                read_queue_nums=request.read_queue_nums,
                write_queue_nums=request.write_queue_nums,
                perm=request.perm,
                order=request.order,
                filter_type=request.topic_filter_type,
                sys_flag=request.topic_sys_flag,
                extra=extra,
            )
        )

    def _check(self, request: CreateTopic) -> None:
        """Raises Refusal if the topic may not be created or changed with these values."""
        try:
            check_topic(request.topic)
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._refuse_system(request.topic)
        wrong = ""
        if not (0 <= request.read_queue_nums <= _MAX_QUEUES and 0 <= request.write_queue_nums <= _MAX_QUEUES):
            wrong = f"a topic has at most {_MAX_QUEUES} queues"
        elif not 0 <= request.perm <= _HIGHEST_PERM:
            wrong = "perm is a sum of 1 inherit, 2 write, 4 read and 8 priority"
        elif request.topic_filter_type not in _FILTER_TYPES:
            wrong = f"topicFilterType must be {' or '.join(_FILTER_TYPES)}"
        if wrong:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{request.topic}' cannot be created: {wrong}")

    async def delete(self, client: Client, request: TopicName) -> None:
        self._refuse_system(request.topic)
        await delete_topic(self._state, request.topic)

    def _refuse_system(self, topic: str) -> None:
        if self._is_system(topic):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{topic}' is a system topic and cannot be changed")

    def _is_system(self, topic: str) -> bool:
        return is_topic_of_broker(topic, self._state.settings.now)

    # -- showing ---------------------------------------------------------------------------------------------

    def all_topics(self, client: Client) -> tuple[TopicConfigs, AllTopicsReply]:
        """Returns the topic table, which is all that RocketMQ's slaves read.

        Penstock's slaves also read the deleted topics, each with the log offset up to which its messages are deleted.
        """
        deleted = self._state.store.deleted_topics()
        reply = AllTopicsReply(penstock_deleted_topics=encode_deleted(deleted) if deleted else None)
        return self._state.topics.snapshot(), reply

    def show(self, client: Client, request: TopicName) -> TopicConfig:
        config = self._state.topics.find(request.topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{request.topic}' does not exist")
        return config

    async def stats(self, client: Client, request: TopicName) -> TopicStatsTable:
        config, store = self.show(client, request), self._state.store
        broker = self._state.settings.now.broker_name

        def read() -> dict[MessageQueue, TopicOffset]:
            table = {}
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
                highest = store.max_offset(config.name, queue_id)
                last = store.store_time(config.name, queue_id, highest - 1) if highest else 0
                table[MessageQueue(broker_name=broker, queue_id=queue_id, topic=config.name)] = TopicOffset(
                    min_offset=max(0, store.min_offset(config.name, queue_id)),
                    max_offset=highest,
                    last_update_timestamp=max(0, last),
                )
            return table

        return TopicStatsTable(offset_table=await asyncio.wrap_future(store.read_cold(read, client)))

    def system_topics(self, client: Client) -> TopicList:
        return TopicList(topic_list=sorted(name for name in self._state.topics.all() if self._is_system(name)))

    def consumers(self, client: Client, request: TopicName) -> GroupList:
        """Returns the groups that subscribe to the topic or have offsets in it."""
        topic = request.topic
        online = {group.name for group in self._state.clients.consumer_groups() if topic in group.subscriptions}
        return GroupList(group_list=sorted(online.union(self._state.offsets.groups_of(topic))))


async def delete_topic(state: BrokerState, topic: str) -> None:
    """Deletes a topic, its queues and offsets, and the retry topics that are its own, as the module's docstring says.

    The table has lost the topic before the first wait. Does nothing for a topic that does not exist.
    """
    for name in [topic, *_retry_topics(state, topic)]:
        state.topics.delete(name)
        await asyncio.to_thread(state.store.delete_topic, name)
        state.offsets.remove_topic(name)
        state.counters.forget_topic(name)


def _retry_topics(state: BrokerState, topic: str) -> list[str]:
    """Returns the retry topics that belong to this topic alone, and not to a group whose name ends like it."""
    groups = state.offsets.groups_of(topic)
    names = {retry_topic(group) + mark + topic for group in groups for mark in ("_", "+")}
    return sorted(name for name in names if state.topics.find(name) is not None and not _has_group(state, name))


def _has_group(state: BrokerState, name: str) -> bool:
    """Whether there is a group whose retry topic has this name."""
    group = name.removeprefix(RETRY_PREFIX)
    return state.groups.find(group) is not None or bool(state.offsets.of_group(group))


def _attributes(known: Any, changes: str) -> dict[str, str]:
    """Applies attribute changes, in 5.x's notation: `+name=value` sets and `-name` removes. Raises Refusal."""
    attributes = dict(known) if isinstance(known, dict) else {}
    for change in changes.split(","):
        sign, (name, _, value) = change[:1], change[1:].partition("=")
        if sign == "+" and name:
            attributes[name] = value
        elif sign == "-" and name:
            attributes.pop(name, None)
        else:
            why = f"{change[:80]!r} is not a change of an attribute; write +name=value or -name"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
    return attributes
