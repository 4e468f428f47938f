"""Sends: the checks of a message or a batch, and its way into the store.

A message is appended to the log on the loop's thread, which takes microseconds. Under SYNC_FLUSH or SYNC_MASTER the
outcome waits in `send_acks`.

A message to a topic that has passed all checks takes a fast path: its properties are stored as the text that the client
sent, with `CLUSTER` appended. `_send_checked` is the slow path for every other message, and for one whose properties
ask for a delay, a transaction or `WAIT=false`.

A batch becomes one message per item. It is stored as a whole or not at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from penstock.broker.consumers import GroupTable
from penstock.broker.long_polling import HeldPulls
from penstock.broker.operations_as_plain_calls import Client, ClientHosts, Operation
from penstock.broker.send_acks import PendingAck, PendingAcks
from penstock.broker.send_and_pull_results import STORED, PutOutcomes, SendOutcome
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.stats import MessageCounters
from penstock.broker.topics import NOT_FOR_SENDING, UNIT, UNIT_SUBSCRIPTION, BrokerTopics, dead_letter_topic
from penstock.broker.user_hooks_for_send_and_pull import Hooks, SendContext
from penstock.errors import BadMessage
from penstock.format import kernels
from penstock.format.batch import decode_batch_body, has_more_messages
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import CLUSTER, DELAY, HALF_TOPIC, PROPERTY_SEPARATOR, RETRY_PREFIX, TRAN_MSG, WAIT
from penstock.format.properties import encode_properties, join_properties, split_properties
from penstock.format.sys_flag import MULTI_TAGS
from penstock.format.topics import check_topic
from penstock.protocol.bodies.routes import PERM_WRITE
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.send import SendMessage
from penstock.store.message import Message, PutStatus
from penstock.store.message_store import MessageStore
from penstock.store.replication.master_or_slave_role import Role

# -- properties ----------------------------------------------------------------------------------------------

_DELAY: Final = f"{DELAY}\x01"
_HALF: Final = f"{TRAN_MSG}\x01"
_CLUSTER: Final = f"{CLUSTER}\x01"
_WAIT: Final = f"{WAIT}\x01"
_WAITS: Final = f"{WAIT}\x01true{PROPERTY_SEPARATOR}"


def plain_text(text: str, suffix: str) -> str | None:
    """Returns the property text to store, which ends with `suffix`; or None if the message needs the slow path.

    A message needs it if a property asks for a delay or a transaction, sets `CLUSTER`, or sets `WAIT` to anything but
    `true`. `WAIT=true`, which Java always sends, is the default and is left out.
    """
    if _DELAY in text or _HALF in text or _CLUSTER in text:
        return None
    if text and text[-1] != PROPERTY_SEPARATOR:
        text += PROPERTY_SEPARATOR
    before, waits, after = text.partition(_WAITS)
    if _WAIT in before or (waits and (_WAIT in after or (before and before[-1] != PROPERTY_SEPARATOR))):
        return None
    return before + after + suffix


# -- checks --------------------------------------------------------------------------------------------------


class SendChecks:
    """RocketMQ's checks of a send, in RocketMQ's order. They create the topic if that is allowed."""

    def __init__(
        self, topics: BrokerTopics, groups: GroupTable, settings: SettingsInForce, clock: Callable[[], int]
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._clock = clock

    def topic_for(self, client: Client, request: SendMessage) -> TopicConfig:
        """Returns the topic that a send names, created if it is new. Raises Refusal if the send is not allowed."""
        settings, name = self._settings.now, request.topic
        if self._clock() < settings.start_accept_send_request_time_stamp:
            why = "this broker does not accept messages yet (startAcceptSendRequestTimeStamp)"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        if not settings.is_writable:
            raise Refusal(ResponseCode.NO_PERMISSION, "this broker is not writable (brokerPermission)")
        try:
            check_topic(name)
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if name in NOT_FOR_SENDING:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"topic '{name}' is reserved for the broker; clients cannot send to it"
            )
        topic = self._topics.find(name) or self._create(client, request)
        if not topic.perm & PERM_WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, f"topic '{name}' is not writable")
        return topic

    def check_queue(self, request: SendMessage, queues: int) -> None:
        """Raises Refusal if the topic, which has `queues` queues, lacks the queue that the send names."""
        if request.queue_id >= queues:
            why = f"topic '{request.topic}' has {queues} queues, and no queue {request.queue_id}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)

    def _create(self, client: Client, request: SendMessage) -> TopicConfig:
        is_retry = request.topic.startswith(RETRY_PREFIX)
        flag = 0 if not request.unit_mode else UNIT_SUBSCRIPTION if is_retry else UNIT
        if is_retry:
            created = self._topics.create_for_send_back(request.topic, 1, sys_flag=flag, by=client)
        else:
            queues = request.default_topic_queue_nums
            created = self._topics.create_on_send(request.topic, request.default_topic, queues, flag, client)
        if created is None:
            why = f"topic '{request.topic}' does not exist, and a send may not create it; create it first"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, why)
        return created

    def dead_letter_for(self, client: Client, request: SendMessage) -> TopicConfig | None:
        """Returns the group's dead letter topic if a message to a retry topic has used up its retries; otherwise None.

        Applies to retries that a client sends itself. The group is that of the retry topic. Raises Refusal.
        """
        name = request.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find_or_create(name, client)
        if group is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group '{name}' does not exist")
        max_times = group.retry_max_times if request.max_reconsume_times is None else request.max_reconsume_times
        if request.reconsume_times < max_times:
            return None
        return make_dead_letter_topic(self._topics, name)


def make_dead_letter_topic(topics: BrokerTopics, group: str) -> TopicConfig:
    """Returns a group's dead letter topic, created if it is new. Raises Refusal if it cannot be created."""
    topic = topics.create_for_send_back(dead_letter_topic(group), 1)
    if topic is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"topic '{dead_letter_topic(group)}' does not exist and cannot be created"
        )
    return topic


# -- batches -------------------------------------------------------------------------------------------------

_NOT_IN_A_BATCH = (f"{DELAY}\x01".encode(), f"{TRAN_MSG}\x01".encode())


def batch_messages(
    request: SendMessage,
    body: bytes,
    *,
    queue_id: int,
    sys_flag: int,
    born_host: str,
    cluster: str,
    max_size: int,
    max_count: int,
) -> list[Message]:
    """Returns one message per item of the batch `body`, in order. Raises BadMessage.

    All messages get the topic, the born time and the retry count of `request`.
    """
    if request.topic.startswith(RETRY_PREFIX):
        raise BadMessage("a batch cannot be sent to a retry topic")
    if len(body) > max_size:
        raise BadMessage(f"a batch of {len(body)} bytes is too long; {max_size} are allowed (maxMessageSize)")
    if has_more_messages(body, max_count):
        raise BadMessage(f"a batch has more than {max_count} messages, whose ids do not fit into one reply")
    common = encode_properties({**_common(request), CLUSTER: cluster})
    items = None
    if not any(name in body for name in _NOT_IN_A_BATCH):
        items = kernels.split_batch(body, common)
    if items is None:
        items = _checked_items(body, common)
    topic, born_timestamp, reconsume_times = request.topic, request.born_timestamp, request.reconsume_times
    return [
        Message(
            topic,
            content,
            (),
            "",
            None,
            queue_id,
            0,
            flag,
            sys_flag,
            born_timestamp,
            born_host,
            "",
            reconsume_times,
            0,
            True,
            text,
        )
        for flag, content, text in items
    ]


def _checked_items(body: bytes, common: bytes) -> list[tuple[int, bytes, str]]:
    """Returns the items of a batch, checked one by one. Raises BadMessage.

    This is the slow path: for items that may be delayed, transactional or malformed, or that contain text that is not
    UTF-8.
    """
    items = decode_batch_body(body)
    for item in items:
        _check_item(item.properties)
    return [
        (flag, content, join_properties(properties, common).decode("utf-8", "surrogateescape"))
        for flag, content, properties in items
    ]


def _common(request: SendMessage) -> dict[str, str]:
    """Returns the properties that every message of a batch gets from the batch's request. Raises BadMessage."""
    properties = split_properties(request.properties)
    properties.pop(WAIT, None)
    if int_of(properties.pop(DELAY, "0")) > 0:
        raise BadMessage("a batch cannot be delayed")
    return properties


def _check_item(properties: bytes) -> None:
    if not any(name in properties for name in _NOT_IN_A_BATCH):
        return
    split = split_properties(properties.decode("utf-8", "surrogateescape") + PROPERTY_SEPARATOR)
    if int_of(split.get(DELAY, "0")) > 0 or split.get(TRAN_MSG, "").lower() == "true":
        raise BadMessage("a message of a batch may be neither transactional nor delayed")


def int_of(text: str) -> int:
    """Returns a property's text as a number. Raises BadMessage."""
    try:
        return int(text)
    except ValueError:
        raise BadMessage(f"a property must be a number, not {text[:40]!r}") from None


# -- sends ---------------------------------------------------------------------------------------------------

HalfMessage = Callable[[Message], Message]
"""Turns a transactional message into the half message that is stored in its place. The message's properties must be a
dict."""
_MULTI_TAG = "MULTI_TAG"
_BLANK: Final = SendOutcome()
_SUCCESS: Final = ResponseCode.SUCCESS  # each look-up in an enum costs as much as the outcome itself
_PUT_OK: Final = PutStatus.PUT_OK


class Sends:
    """Stores the messages that producers send."""

    def __init__(
        self,
        store: MessageStore,
        topics: BrokerTopics,
        checks: SendChecks,
        settings: SettingsInForce,
        acks: PendingAcks,
        held: HeldPulls,
        hooks: Hooks,
        counters: MessageCounters,
        make_half: HalfMessage | None = None,
    ) -> None:
        self._store = store
        self._checks = checks
        self._settings = settings
        self._acks = acks
        self._held = held
        self._hooks = hooks
        self._counters = counters
        self._make_half = make_half
        self._must_wait = self._has_waited = acks.is_needed
        self._outcomes = PutOutcomes(store)
        self._hosts = ClientHosts()
        self._plain: dict[str, int] = {}
        """The topics that have passed all checks, with their number of queues. Emptied when topics or settings
        change."""
        topics.on_change.append(self._plain.clear)
        settings.on_change.append(self._on_settings)
        self._on_settings(settings.now)
        store.on_role_change(self._on_role)

    def operations(self) -> tuple[Operation, ...]:
        return (Operation("send", self.send, writes=True),)

    @property
    def plain_topics(self) -> dict[str, int]:
        """The topics that have passed all checks, with their number of queues; one dict for all time."""
        return self._plain

    @property
    def takes_ordinary(self) -> bool:
        """Whether an ordinary message to one of `plain_topics` only has to be appended, counted and answered, at once
        or when it is safe."""
        return not self._hooks.send

    def room(self, client: Client) -> int:
        """Returns how many replies to ordinary sends of a client may wait for acks; -1 if such replies do not wait."""
        return self._acks.room(client) if self._has_waited else -1

    def _on_role(self, role: Role) -> None:
        self._must_wait = self._acks.is_needed
        self._has_waited = self._has_waited or self._must_wait

    def _on_settings(self, settings: BrokerSettings) -> None:
        self._plain.clear()
        self._cluster = settings.broker_cluster_name
        self.suffix = f"{CLUSTER}\x01{self._cluster}"
        """The last property of every message."""

    def send(
        self, client: Client, request: SendMessage, body: bytes, answered: bool = True
    ) -> SendOutcome | PendingAck:
        """Stores a message, or a batch. Raises Refusal.

        If the client gets an answer, the outcome waits until the message is safe. Otherwise it may be blank.
        """
        topic = request.topic
        queues = self._plain.get(topic)
        if queues is None or not 0 <= request.queue_id < queues or self._hooks.send:
            return self._send_checked(client, request, body, answered)
        if self._must_wait:
            self._acks.check(client)
        if request.batch:
            return self._put_batch(client, request, body, request.queue_id, request.sys_flag, answered)
        text = plain_text(request.properties, self.suffix)
        if text is None:
            return self._send_checked(client, request, body, answered)
        message = Message(
            topic,
            body,
            (),
            "",
            None,
            request.queue_id,
            0,
            request.flag,
            request.sys_flag,
            request.born_timestamp,
            self._hosts[client],
            "",
            request.reconsume_times,
            0,
            True,
            text,
        )
        result = self._store.append(message)
        if result.status is not _PUT_OK:
            raise self._outcomes.refusal(result)
        queue_id = result.queue_id
        self._counters.count_sent(topic, 1, result.size)
        if not answered:
            self._held.on_stored(topic, queue_id)
            return _BLANK
        msg_id = self._outcomes.msg_id(result.physical_offset)
        outcome = SendOutcome(_SUCCESS, None, msg_id, queue_id, result.queue_offset)
        if self._must_wait:  # the message goes to slaves before it goes to held pulls
            pending = self._acks.when_safe(client, result.end_offset, outcome)
            self._held.on_stored(topic, queue_id)
            return pending
        self._held.on_stored(topic, queue_id)
        return outcome

    # -- with all checks -------------------------------------------------------------------------------------

    def _send_checked(
        self, client: Client, request: SendMessage, body: bytes, answered: bool
    ) -> SendOutcome | PendingAck:
        started = time.perf_counter()
        topic = self._checks.topic_for(client, request)
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        self._checks.check_queue(request, queues)
        if self._must_wait:
            self._acks.check(client)
        if topic.filter_type != _MULTI_TAG and not topic.name.startswith(RETRY_PREFIX):
            self._plain[topic.name] = queues
        queue_id = request.queue_id if request.queue_id >= 0 else random.randrange(max(1, topic.write_queue_nums))
        if not self._hooks.send:
            return self._put(client, request, body, topic, queue_id, answered)
        context = self._context(client, request, body, queue_id)
        try:
            self._hooks.before_send(context)
            outcome = self._put(client, request, body, topic, queue_id, answered)
        except Refusal as refusal:
            self._call_after_send(context, started, SendOutcome(refusal.code, str(refusal), queue_offset=-1))
            raise
        self._call_after_send(context, started, outcome.outcome if isinstance(outcome, PendingAck) else outcome)
        return outcome

    def _put(
        self, client: Client, request: SendMessage, body: bytes, topic: TopicConfig, queue_id: int, answered: bool
    ) -> SendOutcome | PendingAck:
        """Stores a message or a batch for a topic, and a queue of it. Raises Refusal."""
        sys_flag = request.sys_flag | (MULTI_TAGS if topic.filter_type == _MULTI_TAG else 0)
        if request.batch:
            return self._put_batch(client, request, body, queue_id, sys_flag, answered)
        try:
            message = self._message(client, request, body, topic.name, queue_id, sys_flag)
        except BadMessage as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        result = self._store.append(message)
        if result.status not in STORED:
            raise self._outcomes.refusal(result)
        self._counters.count_sent(message.topic, 1, result.size)
        self._held.on_stored(message.topic, message.queue_id)
        shown = queue_id if message.topic == HALF_TOPIC else message.queue_id
        msg_id = self._outcomes.msg_id(result.physical_offset)
        outcome = SendOutcome(_SUCCESS, None, msg_id, shown, result.queue_offset)
        if not (answered and message.wait):
            return outcome
        return self._acks.when_safe(client, result.end_offset, outcome)

    def _message(
        self, client: Client, request: SendMessage, body: bytes, name: str, queue_id: int, sys_flag: int
    ) -> Message:
        """Builds the message to store on the slow path. Raises Refusal or BadMessage.

        Handles retries, dead letters, `WAIT` and half messages.
        """
        properties = split_properties(request.properties)
        if name.startswith(RETRY_PREFIX):
            dead_letter = self._checks.dead_letter_for(client, request)
            if dead_letter is not None:
                name, queue_id = dead_letter.name, 0
                properties.pop(DELAY, None)
        waits = properties.pop(WAIT, "true").lower() == "true"
        message = Message(
            name,
            body,
            properties={**properties, CLUSTER: self._cluster},
            queue_id=queue_id,
            flag=request.flag,
            sys_flag=sys_flag,
            born_timestamp=request.born_timestamp,
            born_host=self._hosts[client],
            reconsume_times=request.reconsume_times,
            wait=waits,
        )
        is_half = properties.get(TRAN_MSG, "").lower() == "true"
        if is_half and not (request.reconsume_times > 0 and int_of(properties.get(DELAY, "0")) > 0):
            return self._half(message)
        return message

    def _half(self, message: Message) -> Message:
        if self._settings.now.reject_transaction_message or self._make_half is None:
            why = "this broker does not accept transactional messages (rejectTransactionMessage)"
            raise Refusal(ResponseCode.NO_PERMISSION, why)
        return self._make_half(message)

    def _put_batch(
        self, client: Client, request: SendMessage, body: bytes, queue_id: int, sys_flag: int, answered: bool
    ) -> SendOutcome | PendingAck:
        try:
            messages = batch_messages(
                request,
                body,
                queue_id=queue_id,
                sys_flag=sys_flag,
                born_host=self._hosts[client],
                cluster=self._cluster,
                max_size=self._store.settings.max_message_size,
                max_count=self._outcomes.batch_limit,
            )
        except BadMessage as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        batch = self._store.append_many(messages)
        if batch.status not in STORED:
            raise self._outcomes.refusal(batch)
        results = batch.results
        self._counters.count_sent(request.topic, len(results), results[-1].end_offset - results[0].physical_offset)
        self._held.on_stored(request.topic, queue_id)
        ids = self._outcomes.msg_ids([result.physical_offset for result in results])
        outcome = SendOutcome(_SUCCESS, None, ids, queue_id, results[0].queue_offset)
        return self._acks.when_safe(client, results[-1].end_offset, outcome) if answered else outcome

    def _context(self, client: Client, request: SendMessage, body: bytes, queue_id: int) -> SendContext:
        return SendContext(
            producer_group=request.producer_group,
            topic=request.topic,
            queue_id=queue_id,
            property_text=request.properties,
            body_size=len(body),
            born_host=self._hosts[client],
            born_timestamp=request.born_timestamp,
            store_host=self._store.settings.store_host,
            region=self._settings.now.region_id,
            request_timestamp=time.time_ns() // 1_000_000,
            batch=request.batch,
        )

    def _call_after_send(self, context: SendContext, started: float, outcome: SendOutcome) -> None:
        context.took_ms = (time.perf_counter() - started) * 1000
        context.code, context.remark = outcome.code, outcome.remark
        context.msg_id, context.queue_offset = outcome.msg_id, outcome.queue_offset
        self._hooks.after_send(context)
