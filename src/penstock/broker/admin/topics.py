"""Topics for administrators: create, change, delete and show (request codes 17, 21, 202, 215, 300, 305, 351).

Deleting a topic also deletes its queues, the consumer offsets in it, and the retry topics that belong to this topic
alone (5.x's `%RETRY%group_topic`). The records stay in the log until their files are deleted. Queues are deleted in a
thread, because that touches files.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from penstock.broker.broker_state import BrokerState
from penstock.broker.topics import REPLY_TOPIC_SUFFIX, is_system_topic, retry_topic
from penstock.errors import BadMessage
from penstock.format.config_tables import TopicConfig
from penstock.format.topics import check_topic
from penstock.protocol.bodies.admin import DELETED_TOPICS, GroupList, TopicList, encode_config, encode_deleted
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import TopicOffset, TopicStatsTable
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import CreateTopic, TopicName
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

log = logging.getLogger("penstock.broker")

_MAX_QUEUES: Final = 4096
_HIGHEST_PERM: Final = 15
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class AdminTopics:
    """Changes and shows the topic table and the topics' queues."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._create,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all,
            RequestCode.GET_TOPIC_CONFIG: self._one,
            RequestCode.GET_TOPIC_STATS_INFO: self._stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._system,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._consumers,
        }

    # -- changing --------------------------------------------------------------------------------------------

    def _create(self, connection: Connection, command: Command) -> Command:
        header, topics = command.read(CreateTopic), self._state.topics
        self._check(header)
        known = topics.find(header.topic)
        max_topics = self._state.settings.now.max_topics
        if known is None and len(topics.all()) >= max_topics:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"there are {max_topics} topics already (maxTopics)")
        extra = {} if known is None else dict(known.extra)
        if header.attributes:
            extra["attributes"] = _attributes(extra.get("attributes"), header.attributes)
        topics.update(
            TopicConfig(
                name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                order=header.order,
                filter_type=header.topic_filter_type,
                sys_flag=header.topic_sys_flag,
                extra=extra,
            )
        )
        log.info(
            "%s topic %s (%d queues): by=%s",
            "changed" if known else "created",
            header.topic,
            header.write_queue_nums,
            connection.peer[0],
        )
        return command.reply(ResponseCode.SUCCESS)

    def _check(self, header: CreateTopic) -> None:
        """Raises Refusal if the topic may not be created or changed with these values."""
        try:
            check_topic(header.topic)
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self._refuse_system(header.topic)
        wrong = ""
        if not (0 <= header.read_queue_nums <= _MAX_QUEUES and 0 <= header.write_queue_nums <= _MAX_QUEUES):
            wrong = f"a topic has at most {_MAX_QUEUES} queues"
        elif not 0 <= header.perm <= _HIGHEST_PERM:
            wrong = "perm is a sum of 1 inherit, 2 write, 4 read and 8 priority"
        elif header.topic_filter_type not in _FILTER_TYPES:
            wrong = f"topicFilterType must be {' or '.join(_FILTER_TYPES)}"
        if wrong:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{header.topic}' cannot be created: {wrong}")

    async def _delete(self, connection: Connection, command: Command) -> Command:
        topic, state = command.read(TopicName).topic, self._state
        self._refuse_system(topic)
        groups = state.offsets.groups_of(topic)
        retry_topics = {retry_topic(group) + mark + topic for group in groups for mark in ("_", "+")}
        names = [topic, *sorted(name for name in retry_topics if state.topics.find(name) is not None)]
        for name in names:
            state.topics.delete(name)
            await asyncio.to_thread(state.store.delete_topic, name)
            state.offsets.remove_topic(name)
            state.counters.forget_topic(name)
        return command.reply(ResponseCode.SUCCESS)

    def _refuse_system(self, topic: str) -> None:
        if self._is_system(topic):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{topic}' is a system topic and cannot be changed")

    def _is_system(self, topic: str) -> bool:
        now = self._state.settings.now
        cluster = now.broker_cluster_name
        return is_system_topic(topic) or topic in (cluster, now.broker_name, cluster + REPLY_TOPIC_SUFFIX)

    # -- showing ---------------------------------------------------------------------------------------------

    def _all(self, connection: Connection, command: Command) -> Command:
        """Replies with the topic table in the body, which is all that RocketMQ's slaves read.

        Penstock's slaves also read the deleted topics, each with the log offset up to which its messages are deleted.
        """
        deleted = self._state.store.deleted_topics()
        ext = {DELETED_TOPICS: encode_deleted(deleted)} if deleted else None
        return command.reply(ResponseCode.SUCCESS, ext=ext, body=encode_config(self._state.topics.snapshot()))

    def _one(self, connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SUCCESS, body=encode_config(self._find(command)))

    def _stats(self, connection: Connection, command: Command) -> Command:
        config, store = self._find(command), self._state.store
        broker = self._state.settings.now.broker_name
        table = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            highest = store.max_offset(config.name, queue_id)
            table[MessageQueue(broker_name=broker, queue_id=queue_id, topic=config.name)] = TopicOffset(
                min_offset=max(0, store.min_offset(config.name, queue_id)),
                max_offset=highest,
                last_update_timestamp=max(0, store.store_time(config.name, queue_id, highest - 1)) if highest else 0,
            )
        return command.reply(ResponseCode.SUCCESS, body=TopicStatsTable(offset_table=table).to_bytes())

    def _system(self, connection: Connection, command: Command) -> Command:
        names = sorted(name for name in self._state.topics.all() if self._is_system(name))
        return command.reply(ResponseCode.SUCCESS, body=TopicList(topic_list=names).to_bytes())

    def _consumers(self, connection: Connection, command: Command) -> Command:
        topic = command.read(TopicName).topic
        online = {group.name for group in self._state.clients.consumer_groups() if topic in group.subscriptions}
        groups = sorted(online.union(self._state.offsets.groups_of(topic)))
        return command.reply(ResponseCode.SUCCESS, body=GroupList(group_list=groups).to_bytes())

    def _find(self, command: Command) -> TopicConfig:
        topic = command.read(TopicName).topic
        config = self._state.topics.find(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic '{topic}' does not exist")
        return config


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
