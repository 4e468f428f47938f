"""Which queue a message goes to: the next one in turn, round brokers that failed lately, or always the one of its key.

Pure but for the turn and the memory of failures. Belongs to the loop's thread.


From messages to the requests that send them: ids, compression, properties, batches. Pure functions.

Sends messages.

    async with Producer("orders-service", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"two shirts", tags="paid", keys="order_1"))

A send returns when the broker has stored the message, however safely its settings say; `SendResult.status` tells where
it could not be as safe as that. What goes wrong is tried again, at another broker if there is one, and then raised: an
error means that the message may or may not be stored, so a message can be stored twice, with the same `msg_id`. Several
sends at once are `asyncio.gather`'s business. Belongs to the thread of one event loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import msgspec

from penstock.client.config import Namesrv
from penstock.client.instance import ClientInstance, Started
from penstock.client.message import STATUSES, Message, SendResult
from penstock.client.routes import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, Route
from penstock.clock import now_ms
from penstock.errors import BadMessage, NoAnswer, NoRoute, Refused, Unreachable
from penstock.format import kernels
from penstock.format.batch import encode_batch_body
from penstock.format.constants import RETRY_PREFIX, UNIQ_KEY, WAIT
from penstock.format.message_id import make_unique_id
from penstock.format.properties import encode_properties
from penstock.format.sys_flag import COMPRESSED
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.compression import deflate_body
from penstock.protocol.headers.send import SendMessageReply, SendMessageV2

_FIRST_DETOUR_S: Final = 1.0
_LONGEST_DETOUR_S: Final = 30.0


class QueueChoice:
    """Turns of one producer, by topic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: dict[str, int] = {}
        self._avoided: dict[str, tuple[float, float]] = {}
        """Brokers that failed: until when they are avoided, and how long that was."""

    def next(self, queues: Sequence[MessageQueue], but: str = "") -> MessageQueue:
        """The next queue of a topic, at another broker than `but` and at none that failed lately, if there is one."""
        topic = queues[0].topic
        turn = self._turns.get(topic)
        if turn is None:
            turn = random.randrange(len(queues))
        self._turns[topic] = turn + 1
        if not but and not self._avoided:
            return queues[turn % len(queues)]
        in_turn = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
        elsewhere = [queue for queue in in_turn if queue.broker_name != but] or in_turn
        return next((queue for queue in elsewhere if not self._is_avoided(queue.broker_name)), elsewhere[0])

    def failed(self, broker_name: str) -> None:
        """Has others take the messages for a while: a second, then twice as long each time."""
        _, before = self._avoided.get(broker_name, (0.0, 0.0))
        detour = min(max(_FIRST_DETOUR_S, 2 * before), _LONGEST_DETOUR_S)
        self._avoided[broker_name] = (self._clock() + detour, detour)

    def worked(self, broker_name: str) -> None:
        self._avoided.pop(broker_name, None)

    def _is_avoided(self, broker_name: str) -> bool:
        until, _ = self._avoided.get(broker_name, (0.0, 0.0))
        return self._clock() < until


def queue_of_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a sharding key: the one that Java's SelectMessageQueueByHash chooses for the same text."""
    hashed = kernels.java_hash(key)
    return queues[abs(hashed) % len(queues)]


class Outgoing(NamedTuple):
    """A request that sends one message, or a batch; its queue is still to be chosen."""

    code: RequestCode
    header: SendMessageV2
    body: bytes
    msg_ids: tuple[str, ...]
    """Of each message."""
    sharding_key: str

    def to_queue(self, queue_id: int) -> SendMessageV2:
        return msgspec.structs.replace(self.header, queue_id=queue_id)


class Packing(NamedTuple):
    """How a producer packs."""

    group: str
    compress_over: int
    max_size: int


def pack(message: Message, packing: Packing, *, extra: dict[str, str] | None = None, sys_flag: int = 0) -> Outgoing:
    """The request for one message; `extra` are properties that its kind needs. Raises BadMessage."""
    body = message.body
    if len(body) > packing.max_size:
        raise BadMessage(f"a body has {len(body)} bytes; {packing.max_size} are allowed here")
    if len(body) >= packing.compress_over:
        body, sys_flag = deflate_body(body), sys_flag | COMPRESSED
    properties = {**message.all_properties(), **(extra or {})}
    msg_id = properties.setdefault(UNIQ_KEY, make_unique_id())
    header = _header(message, packing, properties, sys_flag)
    return Outgoing(RequestCode.SEND_MESSAGE_V2, header, body, (msg_id,), message.sharding_key)


def pack_batch(messages: Sequence[Message], packing: Packing) -> Outgoing:
    """The request for several messages of one topic. Raises BadMessage."""
    if not messages:
        raise BadMessage("a batch needs at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise BadMessage("messages of a retry topic cannot be sent in a batch")
    for message in messages:
        if message.topic != first.topic or message.wait != first.wait:
            raise BadMessage("all messages of a batch must have the same topic and the same `wait`")
        if message.delay_level > 0:
            raise BadMessage("a message with a delay cannot be sent in a batch")
    items, ids = [], []
    for message in messages:
        properties = message.all_properties()
        ids.append(properties.setdefault(UNIQ_KEY, make_unique_id()))
        items.append((message.flag, message.body, encode_properties(properties)))
    body = encode_batch_body(items)
    if len(body) > packing.max_size:
        raise BadMessage(f"a batch has {len(body)} bytes; {packing.max_size} are allowed here, so send it in parts")
    shared = {} if first.wait else {WAIT: "false"}
    header = msgspec.structs.replace(_header(first, packing, shared, 0), batch=True)
    keys = {message.sharding_key for message in messages}
    if len(keys) > 1:
        raise BadMessage("messages of a batch go to one queue, so they need the same sharding key")
    return Outgoing(RequestCode.SEND_BATCH_MESSAGE, header, body, tuple(ids), first.sharding_key)


def _header(message: Message, packing: Packing, properties: dict[str, str], sys_flag: int) -> SendMessageV2:
    return SendMessageV2(
        producer_group=packing.group,
        topic=message.topic,
        default_topic=TEMPLATE_TOPIC,
        default_topic_queue_nums=NEW_TOPIC_QUEUES,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=now_ms(),
        flag=message.flag,
        properties=encode_properties(properties).decode("utf-8", "surrogateescape"),
    )


_TRY_AGAIN: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL})
"""Answers that another moment may change."""
_TRY_ELSEWHERE: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST})
"""Answers that another broker need not give."""
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends."""

    timeout_s: float = 3.0
    """For a send with all its retries."""
    retries: int = 2
    compress_over: int = 4096
    """Bodies of so many bytes and more are compressed, with zlib."""
    max_message_size: int = 4 << 20
    """Bytes of a body, or of a batch; brokers have limits of their own."""


class Producer(Started):
    """One producer of a group. Started once, closed once; `async with` does both."""

    def __init__(
        self,
        group: str,
        namesrv: Namesrv = None,
        *,
        options: ProducerOptions | None = None,
    ) -> None:
        options = options or ProducerOptions()
        self.group = group
        self._instance = ClientInstance(namesrv)
        self._instance.producer_group = group
        self._options = options
        self._packing = Packing(group, options.compress_over, options.max_message_size)
        self._choice = QueueChoice()

    async def start(self) -> Self:
        self._instance.start()
        return self

    async def close(self) -> None:
        await self._instance.close()

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Stores one message: in `queue`, or in that of its sharding key, or in the next in turn.

        Raises NoRoute, Unreachable, NoAnswer, Refused, or BadMessage for what no broker would take.
        """
        (result,) = await self._deliver(pack(message, self._packing), queue, timeout_s)
        return result

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Stores messages of one topic in one queue, all of them or none, with one request; results in their order."""
        return await self._deliver(pack_batch(messages, self._packing), queue, timeout_s)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Sends a message without asking what became of it."""
        outgoing = pack(message, self._packing)
        route = await self._route(message.topic)
        chosen = self._choose(route, outgoing, queue, "")
        address = _master(route, chosen)
        await self._instance.tell(address, outgoing.code, outgoing.to_queue(chosen.queue_id), outgoing.body)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that a topic may be written to, as `send` numbers them."""
        return list((await self._route(topic)).publish_queues)

    # -- delivering ------------------------------------------------------------------------------------------

    async def _deliver(
        self, outgoing: Outgoing, queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._options.timeout_s if timeout_s is None else timeout_s)
        failed_at = ""
        for attempt in range(self._options.retries + 1):
            route = await self._route(outgoing.header.topic)
            chosen = self._choose(route, outgoing, queue, failed_at)
            try:
                reply = await self._try(route, chosen, outgoing, max(deadline - loop.time(), 0.001))
            except (Unreachable, NoAnswer, Refused) as error:
                fixed = queue is not None or outgoing.sharding_key != ""
                pause_s = self._pause(error, route, chosen, attempt, fixed=fixed)
                if attempt == self._options.retries or pause_s is None or loop.time() + pause_s >= deadline:
                    raise
                failed_at = chosen.broker_name
                await asyncio.sleep(pause_s)
            else:
                self._choice.worked(chosen.broker_name)
                return _results(reply, outgoing, chosen)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _pause(
        self, error: Exception, route: Route, chosen: MessageQueue, attempt: int, *, fixed: bool
    ) -> float | None:
        """How long to wait before the next attempt; None if there is no use in one."""
        others = not fixed and any(queue.broker_name != chosen.broker_name for queue in route.publish_queues)
        if isinstance(error, Refused):
            if error.code not in _TRY_AGAIN and not (others and error.code in _TRY_ELSEWHERE):
                return None
        else:
            self._instance.routes.refresh_soon(route.topic)
        self._choice.failed(chosen.broker_name)
        return 0.0 if others else _PAUSE_S * 2**attempt

    async def _try(self, route: Route, chosen: MessageQueue, outgoing: Outgoing, timeout_s: float) -> Command:
        header = outgoing.to_queue(chosen.queue_id)
        address = _master(route, chosen)
        return await self._instance.ask(
            address, outgoing.code, header, outgoing.body, timeout_s=timeout_s, good=STATUSES
        )

    async def _route(self, topic: str) -> Route:
        return await self._instance.routes.find_to_publish(topic)

    def _choose(self, route: Route, outgoing: Outgoing, queue: MessageQueue | None, failed_at: str) -> MessageQueue:
        if queue is not None:
            if queue.topic != route.topic:
                raise NoRoute(
                    f"a queue of topic '{queue.topic}' was given for a message of topic "
                    f"'{route.topic}'; give one of its own"
                )
            return queue
        if not route.publish_queues:
            self._instance.routes.refresh_soon(route.topic)  # its master may be back, though a slave kept the route
            raise NoRoute(
                f"no broker has topic '{route.topic}' with queues that may be written; see `penstock topic config`"
            )
        if outgoing.sharding_key:
            return queue_of_key(route.publish_queues, outgoing.sharding_key)
        return self._choice.next(route.publish_queues, failed_at)


def _master(route: Route, queue: MessageQueue) -> str:
    try:
        return route.masters[queue.broker_name]
    except KeyError:
        raise NoRoute(f"broker '{queue.broker_name}' has no master for topic '{route.topic}' now; start it") from None


def _results(reply: Command, outgoing: Outgoing, chosen: MessageQueue) -> list[SendResult]:
    told = reply.read(SendMessageReply)
    queue = MessageQueue(broker_name=chosen.broker_name, queue_id=told.queue_id, topic=chosen.topic)
    offset_ids = told.msg_id.split(",")
    if len(offset_ids) != len(outgoing.msg_ids):  # 5.x answers a batch that it stores as one record with one id
        offset_ids = offset_ids[:1] * len(outgoing.msg_ids)
    return [
        SendResult(
            STATUSES[ResponseCode(reply.code)],
            msg_id,
            offset_id,
            queue,
            told.queue_offset + number,
            told.region or "",
            told.trace_on or False,
        )
        for number, (msg_id, offset_id) in enumerate(zip(outgoing.msg_ids, offset_ids, strict=True))
    ]
