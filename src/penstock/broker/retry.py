"""Retries: messages that a consumer sends back because it could not consume them (request code 36).

The broker stores a copy with an incremented retry count. The copy goes to the group's retry topic, with a delay. It
goes to the group's dead letter topic if the retries are used up or the consumer asks for that. The old record stays in
the log. Under SYNC_FLUSH or SYNC_MASTER the reply waits in `send_acks`, like that of a send.
"""

from __future__ import annotations

import random

from penstock.broker.broker_state import BrokerState
from penstock.broker.message_hooks import ConsumeContext
from penstock.broker.replies import STORED, PutReplies, host_text
from penstock.broker.send import make_dead_letter_topic
from penstock.broker.send_acks import PendingAcks
from penstock.broker.topics import UNIT_SUBSCRIPTION, retry_topic
from penstock.format.config_tables import SubscriptionGroup
from penstock.format.constants import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC
from penstock.format.record import Record
from penstock.protocol.bodies.routes import PERM_WRITE
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import ONE_WAY, Command
from penstock.protocol.headers.groups import SendBack
from penstock.protocol.versions import V3_4_9
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.store.message import Message

_FIRST_RETRY_LEVEL = 3
"""The delay level of the first retry: ten seconds, unless messageDelayLevel is set. Each further retry waits one level
longer."""


class SendBacks:
    """Stores messages that consumers send back. Use it from the loop's thread only."""

    def __init__(self, state: BrokerState, acks: PendingAcks) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._settings = state.settings
        self._acks = acks
        self._hooks = state.hooks
        self._counters = state.counters
        self._replies = PutReplies(state.store)
        self._must_wait = acks.is_needed

    def handlers(self) -> dict[RequestCode, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    def _send_back(self, connection: Connection, command: Command) -> Command | None:
        header = command.read(SendBack)
        group = self._check(header)
        if group.retry_queue_nums <= 0:
            return command.reply(ResponseCode.SUCCESS)
        record = self._store.look_up(header.offset)
        if record is None:
            why = f"no message at offset {header.offset}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        message = self._message(record, header, group, self._max_times(header, command.version, group))
        result = self._store.append(message)
        if result.status not in STORED:
            return self._replies.refused(command, result)
        topic = message.properties[RETRY_TOPIC] if message.properties else record.topic
        self._counters.sent_back[topic, group.name] += 1
        self._counters.count_sent(message.topic, 1, result.size)
        if self._hooks.consume:
            self._call_after_consume(connection, header, record)
        reply = command.reply(ResponseCode.SUCCESS)
        if self._must_wait and not command.flag & ONE_WAY:
            self._acks.add(connection, result.end_offset, reply)
            return None
        return reply

    def _check(self, header: SendBack) -> SubscriptionGroup:
        group = self._groups.find_or_create(header.group)
        if group is None:
            why = f"consumer group '{header.group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        if not self._settings.now.is_writable:
            raise Refusal(ResponseCode.NO_PERMISSION, "this broker is not writable (brokerPermission)")
        return group

    @staticmethod
    def _max_times(header: SendBack, version: int, group: SubscriptionGroup) -> int:
        """Returns how often a message is retried: the client's number if its version sends one, else the group's."""
        if version >= V3_4_9 and header.max_reconsume_times is not None:
            return header.max_reconsume_times
        return group.retry_max_times

    def _message(self, record: Record, header: SendBack, group: SubscriptionGroup, max_times: int) -> Message:
        """Returns the copy of `record` to store, and creates its topic if that is new. Raises Refusal."""
        properties = {
            **record.properties,
            RETRY_TOPIC: record.properties.get(RETRY_TOPIC, record.topic),
            ORIGIN_MESSAGE_ID: record.properties.get(ORIGIN_MESSAGE_ID, record.msg_id),
        }
        is_dead = header.delay_level < 0 or record.reconsume_times >= max_times
        if is_dead:
            topic = make_dead_letter_topic(self._topics, group.name)
            queue_id, level = 0, 0
        else:
            flag = UNIT_SUBSCRIPTION if header.unit_mode else 0
            name = retry_topic(group.name)
            retry = self._topics.create_for_send_back(name, group.retry_queue_nums, sys_flag=flag)
            if retry is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{name}' does not exist and cannot be created")
            topic = retry
            queue_id = random.randrange(group.retry_queue_nums)
            level = header.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
        if not topic.perm & PERM_WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, f"topic '{topic.name}' is not writable")
        properties[DELAY] = str(level)
        return Message(
            topic.name,
            record.body,
            properties=properties,
            queue_id=queue_id,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            reconsume_times=record.reconsume_times + 1,
        )

    def _call_after_consume(self, connection: Connection, header: SendBack, record: Record) -> None:
        self._hooks.after_consume(
            ConsumeContext(
                consumer_group=header.group,
                topic=record.topic,
                queue_id=record.queue_id,
                client_host=host_text(*connection.peer),
                store_host=self._store.settings.store_host,
                count=1,
                size=record.size,
                origin_msg_id=header.origin_msg_id or record.msg_id,
                success=False,
            )
        )
