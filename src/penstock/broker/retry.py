"""Retries: messages that a consumer sends back because it could not consume them.

The broker stores a copy with an incremented retry count. The copy goes to the group's retry topic, with a delay. It
goes to the group's dead letter topic if the retries are used up or the consumer asks for that. The old record stays in
the log. Under SYNC_FLUSH or SYNC_MASTER the outcome waits in `send_acks`, like that of a send.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable
from functools import partial

from penstock.broker.operations_as_plain_calls import Client, Operation, WriteGuard, host_text
from penstock.broker.reads_without_blocking_the_loop import after_read
from penstock.broker.send import make_dead_letter_topic
from penstock.broker.send_acks import PendingAck, PendingAcks
from penstock.broker.send_and_pull_results import STORED, PutOutcomes, SendOutcome
from penstock.broker.table_persistence import BrokerState
from penstock.broker.topics import UNIT_SUBSCRIPTION, retry_topic
from penstock.broker.user_hooks_for_send_and_pull import ConsumeContext
from penstock.format.config_tables import SubscriptionGroup
from penstock.format.constants import DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from penstock.format.record import Record
from penstock.protocol.bodies.routes import PERM_WRITE
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.groups import SendBack
from penstock.store.message import Message

_FIRST_RETRY_LEVEL = 3
"""The delay level of the first retry: ten seconds, unless messageDelayLevel is set. Each further retry waits one level
longer."""


class SendBacks:
    """Stores messages that consumers send back. Use it from the loop's thread only."""

    def __init__(self, state: BrokerState, acks: PendingAcks, guard: WriteGuard) -> None:
        self._store = state.store
        self._guard = guard
        self._topics = state.topics
        self._groups = state.groups
        self._settings = state.settings
        self._acks = acks
        self._hooks = state.hooks
        self._counters = state.counters
        self._outcomes = PutOutcomes(state.store)

    def operations(self) -> tuple[Operation, ...]:
        return (Operation("send back", self.send_back, writes=True),)

    def send_back(
        self, client: Client, request: SendBack, answered: bool = True
    ) -> SendOutcome | PendingAck | Awaitable[SendOutcome | PendingAck]:
        """Stores the copy. Raises Refusal. If the client gets an answer, the outcome waits until the copy is safe."""
        group = self._check(client, request)
        if group.retry_queue_nums <= 0:
            return SendOutcome()
        record = self._store.try_look_up(request.offset)
        return after_read(self._store, record, client, partial(self._copy, client, request, group, answered))

    def _copy(
        self, client: Client, request: SendBack, group: SubscriptionGroup, answered: bool, record: Record | None
    ) -> SendOutcome | PendingAck:
        if record is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message at offset {request.offset}")
        self._guard.check()  # the look-up may have waited for the disk
        if answered:
            self._acks.check(client)
        message = self._message(record, request, group)
        result = self._store.append(message, again=True)
        if result.status not in STORED:
            raise self._outcomes.refusal(result)
        topic = message.properties[RETRY_TOPIC] if message.properties else record.topic
        self._counters.count_sent_back(topic, group.name)
        self._counters.count_sent(message.topic, 1, result.size)
        if self._hooks.consume:
            self._call_after_consume(client, request, record)
        outcome = SendOutcome()
        return self._acks.when_safe(client, result.end_offset, outcome) if answered else outcome

    def _check(self, client: Client, request: SendBack) -> SubscriptionGroup:
        group = self._groups.find_or_create(request.group, client)
        if group is None:
            why = f"consumer group '{request.group}' does not exist"
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
        if not self._settings.now.is_writable:
            raise Refusal(ResponseCode.NO_PERMISSION, "this broker is not writable (brokerPermission)")
        return group

    def _message(self, record: Record, request: SendBack, group: SubscriptionGroup) -> Message:
        """Returns the copy of `record` to store, and creates its topic if that is new. Raises Refusal."""
        properties = {
            **record.properties,
            RETRY_TOPIC: record.properties.get(RETRY_TOPIC, record.topic),
            ORIGIN_MESSAGE_ID: record.properties.get(ORIGIN_MESSAGE_ID, record.msg_id),
            WAIT: "false",
        }
        max_times = group.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
        is_dead = request.delay_level < 0 or record.reconsume_times >= max_times
        if is_dead:
            topic = make_dead_letter_topic(self._topics, group.name)
            queue_id, level = 0, 0
        else:
            flag = UNIT_SUBSCRIPTION if request.unit_mode else 0
            name = retry_topic(group.name)
            retry = self._topics.create_for_send_back(name, group.retry_queue_nums, sys_flag=flag)
            if retry is None:
                raise Refusal(ResponseCode.SYSTEM_ERROR, f"topic '{name}' does not exist and cannot be created")
            topic = retry
            queue_id = random.randrange(group.retry_queue_nums)
            level = request.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times
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

    def _call_after_consume(self, client: Client, request: SendBack, record: Record) -> None:
        self._hooks.after_consume(
            ConsumeContext(
                consumer_group=request.group,
                topic=record.topic,
                queue_id=record.queue_id,
                client_host=host_text(*client.peer),
                store_host=self._store.settings.store_host,
                count=1,
                size=record.size,
                origin_msg_id=request.origin_msg_id or record.msg_id,
                success=False,
            )
        )
