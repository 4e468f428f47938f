"""The requests of a producer: which queue, which bytes, and the attempts until the broker has answered.

`QueueSelector` chooses queues. `pack` and `pack_batch` build requests, without I/O. A `Delivery` sends one request, and
again after a failure that a retry can mend. A `BatchDelivery` does so for a batch, whose first frame is written without
a task, and gives each send its own result or error. The classes are not thread-safe: use them from the event loop's
thread only.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from penstock.client.batching import QueuedSend, SendBatch, pack_properties
from penstock.client.client_instance import ClientInstance
from penstock.client.message import STATUSES, Message, SendResult
from penstock.client.routes import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, Route, check_reply
from penstock.client.send_window import SendTurn
from penstock.clock import now_ms
from penstock.errors import BadMessage, BadRequest, NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.format import kernels
from penstock.format.batch import encode_batch_body
from penstock.format.constants import RETRY_PREFIX, UNIQ_KEY, WAIT
from penstock.format.message_id import make_unique_id
from penstock.format.properties import encode_properties
from penstock.format.sys_flag import COMPRESSED
from penstock.protocol import fields
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.compression import deflate_body
from penstock.protocol.headers.send import SendMessageReply, SendMessageV2, batch_limit
from penstock.remoting.connection import Connection

_MIN_AVOID_S: Final = 1.0
_MAX_AVOID_S: Final = 30.0
_RETRY_SAME: Final = frozenset(
    {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL}
)
"""Response codes of a temporary failure: a retry can succeed at the same broker."""
_RETRY_OTHER: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Response codes of a failure that concerns one broker: only a retry at another broker can succeed."""
_SEND_ALONE: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
"""Response codes for a batch whose messages may be accepted one by one."""
_PAUSE_S: Final = 0.1
_BATCH_LIMIT: Final = batch_limit(32)
"""Limit of the messages of a batch. A broker with an IPv6 address, which has longer ids, refuses already fewer."""
SendReport = SendResult | PenstockError


# -- choosing a queue ------------------------------------------------------------------------------------------------


class QueueSelector:
    """Chooses a topic's queues in round-robin order, and avoids brokers that failed recently."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_turn: dict[str, int] = {}
        self._avoided: dict[str, tuple[float, float]] = {}
        """By broker name: the end of the avoidance on `clock`, and its length, both in seconds."""

    def next(self, queues: Sequence[MessageQueue], other_than: str = "") -> MessageQueue:
        """Returns the topic's next queue in turn, if possible not at broker `other_than` nor at a broker that failed
        recently.
        """
        topic = queues[0].topic
        turn = self._next_turn.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        self._next_turn[topic] = turn + 1
        if not other_than and not self._avoided:
            return queues[turn % len(queues)]
        in_turn = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
        elsewhere = [queue for queue in in_turn if queue.broker_name != other_than] or in_turn
        return next((queue for queue in elsewhere if not self._is_avoided(queue.broker_name)), elsewhere[0])

    def mark_failed(self, broker_name: str) -> None:
        """Avoids a broker for one second. Each further failure doubles that time, up to 30 seconds."""
        _, previous = self._avoided.get(broker_name, (0.0, 0.0))
        duration = min(max(_MIN_AVOID_S, 2 * previous), _MAX_AVOID_S)
        self._avoided[broker_name] = (self._clock() + duration, duration)

    def mark_working(self, broker_name: str) -> None:
        self._avoided.pop(broker_name, None)

    def _is_avoided(self, broker_name: str) -> bool:
        until, _ = self._avoided.get(broker_name, (0.0, 0.0))
        return self._clock() < until


def select_by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Returns the queue of a sharding key. Java's SelectMessageQueueByHash chooses the same queue."""
    hashed = kernels.java_hash(key)
    return queues[abs(hashed) % len(queues)]


# -- building requests -----------------------------------------------------------------------------------------------


_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(SendMessageV2)}
_QUEUE_ID, _SYS_FLAG, _FLAG = _NAMES["queue_id"], _NAMES["sys_flag"], _NAMES["flag"]
_BORN, _PROPERTIES = _NAMES["born_timestamp"], _NAMES["properties"]


class OutgoingRequest(NamedTuple):
    """A request that sends one message or one batch. `to_queue` sets the queue id."""

    code: RequestCode
    topic: str
    arguments: dict[str, str]
    body: bytes
    msg_ids: Sequence[str]
    """The unique id of each message, in order."""
    sharding_key: str

    def to_queue(self, queue_id: int) -> dict[str, str]:
        return {**self.arguments, _QUEUE_ID: str(queue_id)}


class PackingOptions(NamedTuple):
    """A producer's group, and its limits in bytes: see `ProducerOptions`."""

    group: str
    compress_over: int
    max_size: int


def pack(
    message: Message, packing: PackingOptions, *, extra: dict[str, str] | None = None, sys_flag: int = 0
) -> OutgoingRequest:
    """Builds the request for one message; `extra` properties are added to the message's own. Raises BadMessage."""
    body = message.body
    if len(body) > packing.max_size:
        raise BadMessage(f"a body has {len(body)} bytes; the limit is {packing.max_size}")
    if len(body) >= packing.compress_over:
        body, sys_flag = deflate_body(body), sys_flag | COMPRESSED
    properties = {**message.all_properties(), **(extra or {})}
    msg_id = properties.setdefault(UNIQ_KEY, make_unique_id())
    arguments = _arguments(message, packing, encode_properties(properties), sys_flag)
    return OutgoingRequest(RequestCode.SEND_MESSAGE_V2, message.topic, arguments, body, (msg_id,), message.sharding_key)


def pack_send(send: QueuedSend, packing: PackingOptions) -> OutgoingRequest:
    """Builds the request for a message that is in no batch after all."""
    message = send.message
    arguments = _arguments(message, packing, send.properties)
    return OutgoingRequest(RequestCode.SEND_MESSAGE_V2, message.topic, arguments, message.body, (send.msg_id,), "")


def pack_batch(messages: Sequence[Message], packing: PackingOptions) -> OutgoingRequest:
    """Builds the request for several messages of one topic. Raises BadMessage."""
    if not messages:
        raise BadMessage("a batch needs at least one message")
    if len(messages) > _BATCH_LIMIT:
        why = "because the ids of all have to fit into one reply; send it in parts"
        raise BadMessage(f"a batch has {len(messages)} messages; the limit is {_BATCH_LIMIT}, {why}")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise BadMessage("messages of a retry topic cannot be sent in a batch")
    items, msg_ids = [], []
    for message in messages:
        if message.topic != first.topic or message.wait != first.wait:
            raise BadMessage("all messages of a batch must have the same topic and the same `wait`")
        if message.is_delayed:
            raise BadMessage("a message with a delay cannot be sent in a batch")
        if message.sharding_key != first.sharding_key:
            raise BadMessage("all messages of a batch must have the same sharding key, because they go to one queue")
        properties, msg_id = pack_properties(message)
        items.append((message.flag, message.body, properties))
        msg_ids.append(msg_id)
    return _pack_items(first, items, msg_ids, packing)


def pack_sends(sends: Sequence[QueuedSend], packing: PackingOptions) -> OutgoingRequest:
    """Builds the request for a batch of sends, whose queue is chosen. Raises BadMessage."""
    items = [(message.flag, message.body, properties) for message, properties, _, _, _ in sends]
    outgoing = _pack_items(sends[0].message, items, [send.msg_id for send in sends], packing)
    return outgoing._replace(sharding_key="")


def _pack_items(
    first: Message, items: Sequence[tuple[int, bytes, bytes]], msg_ids: Sequence[str], packing: PackingOptions
) -> OutgoingRequest:
    body = encode_batch_body(items)
    if len(body) > packing.max_size:
        raise BadMessage(f"a batch has {len(body)} bytes; the limit is {packing.max_size}; send it in parts")
    shared = {} if first.wait else {WAIT: "false"}
    arguments = _arguments(first, packing, encode_properties(shared), batch=True)
    return OutgoingRequest(RequestCode.SEND_BATCH_MESSAGE, first.topic, arguments, body, msg_ids, first.sharding_key)


def _arguments(
    message: Message, packing: PackingOptions, properties: bytes, sys_flag: int = 0, *, batch: bool = False
) -> dict[str, str]:
    arguments = _constant_arguments(packing.group, message.topic, batch).copy()
    arguments[_SYS_FLAG] = str(sys_flag)
    arguments[_BORN] = str(now_ms())
    arguments[_FLAG] = str(message.flag)
    arguments[_PROPERTIES] = properties.decode("utf-8", "surrogateescape")
    return arguments


@lru_cache(256)
def _constant_arguments(group: str, topic: str, batch: bool) -> dict[str, str]:
    """Returns the arguments of a send that are the same for all messages of a topic. Copy them before a change."""
    return fields.write(
        SendMessageV2(
            producer_group=group,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=NEW_TOPIC_QUEUES,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            batch=batch,
        )
    )


# -- delivering ------------------------------------------------------------------------------------------------------


class Sender:
    """What the deliveries of one producer have in common."""

    def __init__(self, instance: ClientInstance, packing: PackingOptions, *, timeout_s: float, retries: int) -> None:
        self.instance = instance
        self.packing = packing
        self.timeout_s = timeout_s
        self.retries = retries
        self.selector = QueueSelector()
        self.unflushed: set[Connection] = set()
        """Connections with frames of `BatchDelivery.begin` that are not written yet."""
        self.tasks: set[asyncio.Task[None]] = set()

    async def route(self, topic: str) -> Route:
        return await self.instance.routes.find_to_publish(topic)

    def choose(
        self, route: Route, sharding_key: str, queue: MessageQueue | None, failed_at: str = ""
    ) -> tuple[MessageQueue, str]:
        """Returns the queue for a message and its master's address: `queue`, else that of the sharding key, else the
        next one in turn. Raises NoRoute.
        """
        if queue is not None:
            if queue.topic != route.topic:
                raise NoRoute(
                    f"queue of topic '{queue.topic}' given for a message of topic '{route.topic}'; "
                    "choose one of the message's topic"
                )
            chosen = queue
        elif sharding_key:
            chosen = select_by_hash(self.writable(route), sharding_key)
        else:
            chosen = self.selector.next(route.publish_queues or self.writable(route), failed_at)
        address = route.masters.get(chosen.broker_name)
        if address is None:
            self.instance.routes.refresh_soon(route.topic)  # another broker may be the master soon
            raise NoRoute(
                f"broker '{chosen.broker_name}' of topic '{route.topic}' has no master at the moment; start it"
            )
        return chosen, address

    def writable(self, route: Route) -> Sequence[MessageQueue]:
        """Returns the queues of a route that take messages. Raises NoRoute if there is none."""
        if not route.publish_queues:
            self.instance.routes.refresh_soon(route.topic)  # the master may have restarted since the route was fetched
            raise NoRoute(
                f"topic '{route.topic}' has no writable queue; check its permission with `penstock topic config`"
            )
        return route.publish_queues

    def flush(self) -> None:
        """Writes the frames of the batches that have begun."""
        while self.unflushed:
            self.unflushed.pop().flush()


class Delivery:
    """One request on its way: its attempts so far, and what is known about them."""

    def __init__(
        self,
        sender: Sender,
        outgoing: OutgoingRequest,
        queue: MessageQueue | None,
        turn: SendTurn,
        timeout_s: float | None = None,
    ) -> None:
        """Without a `queue`, each attempt chooses one. `turn` counts the frames; the caller ends it."""
        self._sender = sender
        self._outgoing = outgoing
        self._queue = queue
        self._turn = turn
        self._timeout_s = sender.timeout_s if timeout_s is None else timeout_s
        self._attempts = 0
        self._frames = 0
        """The frames written before the last attempt."""
        self._failed_at = ""
        self._may_be_stored = False
        self._route: Route | None = None
        self._chosen: MessageQueue | None = None

    async def run(self, failure: PenstockError | None = None) -> list[SendResult]:
        """Sends the request until the broker accepts it, or until a retry cannot mend the failure of an attempt.
        `failure` is that of an attempt before. Raises NoAnswer if the messages may be stored, and any other error only
        if they are not.
        """
        try:
            while True:
                if failure is not None:
                    await asyncio.sleep(self._pause_after(failure))
                route = await self._sender.route(self._outgoing.topic)
                address, arguments = self._aim(route)
                try:
                    reply = await self._sender.instance.request(
                        address,
                        self._outgoing.code,
                        arguments,
                        self._outgoing.body,
                        timeout_s=self._left_s(),
                        good=STATUSES,
                        flight=self._turn,
                    )
                except (Unreachable, NoAnswer, Refused) as error:
                    failure = error
                else:
                    return self._results(reply)
        except PenstockError as error:
            if self._may_be_stored:
                raise may_be_stored(error, self._outgoing.msg_ids[0]) from error
            if isinstance(error, NoAnswer):
                raise Unreachable(f"{error}, and the message was not sent; send it again") from error
            raise

    def _aim(self, route: Route) -> tuple[str, dict[str, str]]:
        """Chooses a queue for the next attempt; returns its broker's address and the request's arguments."""
        outgoing = self._outgoing
        self._route = route
        self._chosen, address = self._sender.choose(route, outgoing.sharding_key, self._queue, self._failed_at)
        self._frames = self._turn.frames
        self._attempts += 1
        return address, outgoing.to_queue(self._chosen.queue_id)

    def _left_s(self) -> float:
        if not self._turn.frames:
            return self._timeout_s
        return max(self._turn.started_at + self._timeout_s - time.monotonic(), 0.001)

    def _pause_after(self, failure: PenstockError) -> float:
        """Returns the seconds to wait before the next attempt. Raises the failure if a retry cannot succeed, or if it
        was the last attempt. Marks the broker as failed.
        """
        route, chosen, sender, turn = self._route, self._chosen, self._sender, self._turn
        assert route is not None
        assert chosen is not None
        is_answer = isinstance(failure, Refused) and not (failure.code == ResponseCode.SYSTEM_ERROR and failure.msg_id)
        self._may_be_stored = self._may_be_stored or (turn.frames > self._frames and not is_answer)
        is_fixed = self._queue is not None or self._outgoing.sharding_key != ""
        others = not is_fixed and any(each.broker_name != chosen.broker_name for each in route.publish_queues)
        can_succeed = True
        if isinstance(failure, Refused):
            can_succeed = failure.code in _RETRY_SAME or (others and failure.code in _RETRY_OTHER)
        if not isinstance(failure, Refused) or failure.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            sender.instance.routes.refresh_soon(route.topic)  # the broker is gone, stops, or is not the master any more
        if can_succeed:
            sender.selector.mark_failed(chosen.broker_name)
        if others:
            turn.let_go()  # the sends that wait can go elsewhere
        pause_s = 0.0 if others else _PAUSE_S * 2 ** (self._attempts - 1)
        is_late = turn.frames > 0 and time.monotonic() + pause_s >= turn.started_at + self._timeout_s
        if self._attempts > sender.retries or not can_succeed or is_late:
            raise failure
        self._failed_at = chosen.broker_name
        return pause_s

    def _results(self, reply: Command) -> list[SendResult]:
        """Returns the result of each message. Raises NoAnswer if the reply cannot be read."""
        chosen, msg_ids = self._chosen, self._outgoing.msg_ids
        assert chosen is not None
        try:
            header = reply.read(SendMessageReply)
        except BadRequest as error:
            self._may_be_stored = True
            raise NoAnswer(f"the broker's answer cannot be read: {error}") from error
        self._sender.selector.mark_working(chosen.broker_name)
        queue, status = chosen, STATUSES[ResponseCode(reply.code)]
        if header.queue_id != chosen.queue_id:
            queue = MessageQueue(broker_name=chosen.broker_name, queue_id=header.queue_id, topic=chosen.topic)
        offset_ids = header.msg_id.split(",")
        if len(offset_ids) != len(msg_ids):  # RocketMQ 5 stores a batch as one record with one id
            offset_ids = offset_ids[:1] * len(msg_ids)
        region, trace_on, offset = header.region or "", header.trace_on or False, header.queue_offset
        return [
            SendResult(status, msg_id, offset_id, queue, offset + number, region, trace_on)
            for number, (msg_id, offset_id) in enumerate(zip(msg_ids, offset_ids, strict=True))
        ]


class BatchDelivery(Delivery):
    """The delivery of a batch, or of one send that is in no batch. It is the `ReplyTo` of its first frame.

    The broker stores a batch as a whole or not at all. If it refuses one because of what is in it, the messages are
    sent one by one, so that an error concerns its own message only.
    """

    def __init__(self, sender: Sender, batch: SendBatch, turn: SendTurn) -> None:
        sends, packing = batch.sends, sender.packing
        outgoing = pack_send(sends[0], packing) if len(sends) == 1 else pack_sends(sends, packing)
        super().__init__(sender, outgoing, batch.key.queue, turn)
        self._batch = batch
        self._address = ""
        self._is_answered = False

    def begin(self) -> None:
        """Sends the batch, whose sends get their reports later. If the route is known and the connection is open, the
        frame leaves with the sender's next `flush`.
        """
        sender, outgoing = self._sender, self._outgoing
        route = sender.instance.routes.known(outgoing.topic)
        connection = None
        try:
            if route is not None:
                self._address, arguments = self._aim(route)
                connection = sender.instance.find_connection(self._address)
            if connection is None or connection.congested:
                self._attempts = 0
                self._continue(None)
            else:
                command = sender.instance.command(outgoing.code, arguments, outgoing.body)
                connection.enqueue_request(command, self._timeout_s, self, self._turn)
                sender.unflushed.add(connection)
        except Exception as error:
            self._report(self._same(error))

    # -- the reply -------------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._is_answered

    def cancel(self) -> None:
        """Does nothing: only a coroutine stops waiting."""

    def set_result(self, reply: Command, /) -> None:
        self._is_answered = True
        try:
            if reply.code not in STATUSES:
                check_reply(reply, self._outgoing.code, self._address)
            results = self._results(reply)
        except PenstockError as error:
            self._continue(error)
        else:
            for send, result in zip(self._batch.sends, results, strict=True):
                if not send.result.done():
                    send.result.set_result(result)
            self._turn.end()

    def set_exception(self, error: PenstockError, /) -> None:
        self._is_answered = True
        self._continue(error)

    # -- after the first attempt -----------------------------------------------------------------------------

    def _pause_after(self, failure: PenstockError) -> float:
        pause_s = super()._pause_after(failure)
        if self._batch.is_abandoned:
            raise failure
        return pause_s

    def _continue(self, failure: PenstockError | None) -> None:
        task = asyncio.get_running_loop().create_task(self._finish(failure))
        self._sender.tasks.add(task)
        task.add_done_callback(self._sender.tasks.discard)

    async def _finish(self, failure: PenstockError | None) -> None:
        try:
            reports = await self._deliver(failure)
        except Exception as error:
            reports = self._same(error)
        except asyncio.CancelledError:  # the producer is closed, or the loop ends
            closed = Unreachable("this producer is closed, and the message was not sent; create a new `Producer`")
            if self._turn.frames:
                self._report([may_be_stored("this producer is closed", send.msg_id) for send in self._batch.sends])
            else:
                self._report(self._same(closed))
            raise
        self._report(reports)

    async def _deliver(self, failure: PenstockError | None) -> Sequence[SendReport]:
        sends = self._batch.sends
        try:
            return await self.run(failure)
        except NoAnswer as error:
            return [may_be_stored(error.__cause__ or error, send.msg_id) for send in sends]
        except Refused as error:  # nothing of it is stored
            if len(sends) == 1 or error.code not in _SEND_ALONE:
                return [Refused(str(error), code=error.code, remark=error.remark) for _ in sends]
        turns = self._turn.split()
        return await asyncio.gather(*(self._send_alone(send, turn) for send, turn in zip(sends, turns, strict=True)))

    async def _send_alone(self, send: QueuedSend, turn: SendTurn) -> SendReport:
        sender = self._sender
        try:
            (result,) = await Delivery(sender, pack_send(send, sender.packing), self._queue, turn).run()
        except PenstockError as error:
            return error
        finally:
            turn.end()
        return result

    def _same(self, error: Exception) -> list[SendReport]:
        """Returns an error of its own for each send."""
        known = error if isinstance(error, PenstockError) else PenstockError(f"a batch was not sent: {error!r}")
        return [copy.copy(known) for _ in self._batch.sends]

    def _report(self, reports: Sequence[SendReport]) -> None:
        for send, report in zip(self._batch.sends, reports, strict=True):
            send.report(report)
        self._turn.end()


def may_be_stored(error: BaseException | str, msg_id: str) -> NoAnswer:
    """Returns the error of a send whose frame was written and not answered."""
    return NoAnswer(f"{error}; the message may be stored, with the id {msg_id}")
