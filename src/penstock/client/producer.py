"""The producer: sends messages and retries failed sends.

    async with Producer("orders-service", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"two shirts", tags="paid", keys="order_1"))

A send returns when the broker has stored the message; `SendResult.status` shows whether flush and replication finished
in time. A failed send is retried, at another broker if there is one, so a message can be stored twice, with the same
`msg_id`. The error of the last attempt is raised. NoAnswer means that the message may be stored or not: a frame was
written and never answered. After any other error it is not stored. For concurrent sends use `asyncio.gather`, with as
many as you like: `max_in_flight` of them are under way at a time, and the others wait for their turn. A producer is not
thread-safe: use it from its event loop's thread only.

`QueueSelector` chooses queues. `pack` and `pack_batch` build requests, without I/O. `Producer` sends and retries.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import msgspec

from penstock.client.batching import (
    BatchEntry,
    BatchKey,
    BatchLinger,
    LingeringBatch,
    PackedItem,
    SendReport,
    fits_batch,
)
from penstock.client.config import Namesrv
from penstock.client.instance import ClientInstance, ClientLifecycle, check_group
from penstock.client.message import STATUSES, Message, SendResult
from penstock.client.routes import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, Route
from penstock.client.send_window import SendTurn, SendWindow, SharedFlight
from penstock.clock import now_ms
from penstock.errors import BadMessage, BadSettings, NoAnswer, NoRoute, PenstockError, Refused, Unreachable
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
from penstock.remoting.connection import Flight

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
_MAX_LINGER_S: Final = 60.0


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


class OutgoingRequest(NamedTuple):
    """A request that sends one message or one batch. `to_queue` sets the queue id."""

    code: RequestCode
    header: SendMessageV2
    body: bytes
    msg_ids: tuple[str, ...]
    """The unique id of each message, in order."""
    sharding_key: str

    def to_queue(self, queue_id: int) -> SendMessageV2:
        return msgspec.structs.replace(self.header, queue_id=queue_id)


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
    header = _header(message, packing, properties, sys_flag)
    return OutgoingRequest(RequestCode.SEND_MESSAGE_V2, header, body, (msg_id,), message.sharding_key)


def pack_item(message: Message) -> PackedItem:
    """Encodes a message for a batch. Raises BadMessage if its properties are too long."""
    properties = message.all_properties()
    msg_id = properties.setdefault(UNIQ_KEY, make_unique_id())
    return PackedItem(encode_batch_body([(message.flag, message.body, encode_properties(properties))]), msg_id)


def pack_batch(messages: Sequence[Message], packing: PackingOptions) -> OutgoingRequest:
    """Builds the request for several messages of one topic. Raises BadMessage."""
    if not messages:
        raise BadMessage("a batch needs at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise BadMessage("messages of a retry topic cannot be sent in a batch")
    for message in messages:
        if message.topic != first.topic or message.wait != first.wait:
            raise BadMessage("all messages of a batch must have the same topic and the same `wait`")
        if message.is_delayed:
            raise BadMessage("a message with a delay cannot be sent in a batch")
        if message.sharding_key != first.sharding_key:
            raise BadMessage("all messages of a batch must have the same sharding key, because they go to one queue")
    return pack_items(first, [pack_item(message) for message in messages], packing)


def pack_items(first: Message, items: Sequence[PackedItem], packing: PackingOptions) -> OutgoingRequest:
    """Builds the request for a batch of packed messages, the `first` of which is given. Raises BadMessage."""
    body = b"".join([item.encoded for item in items])
    if len(body) > packing.max_size:
        raise BadMessage(f"a batch has {len(body)} bytes; the limit is {packing.max_size}; send it in parts")
    shared = {} if first.wait else {WAIT: "false"}
    header = msgspec.structs.replace(_header(first, packing, shared, 0), batch=True)
    ids = tuple(item.msg_id for item in items)
    return OutgoingRequest(RequestCode.SEND_BATCH_MESSAGE, header, body, ids, first.sharding_key)


def _header(message: Message, packing: PackingOptions, properties: dict[str, str], sys_flag: int) -> SendMessageV2:
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


# -- producer --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Timeouts, retries and limits of a producer. The constructor raises BadSettings for an invalid value."""

    timeout_s: float = 3.0
    """Timeout of one send, including its retries, from the moment when its first frame is written."""
    retries: int = 2
    max_in_flight: int = 1000
    """Limit of unanswered sends. Above it, `send` waits for its turn."""
    linger: float = 0.0
    """Seconds for which a message waits for others of its topic, to leave with them in one request; 0 for none."""
    batch_bytes: int = 128 << 10
    """Limit of such a request, in bytes."""
    compress_over: int = 4096
    """Bodies of at least this many bytes are compressed with zlib."""
    max_message_size: int = 4 << 20
    """Limit of one body or one batch, in bytes. Brokers have limits of their own."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or self.retries < 0:
            raise BadSettings("a producer needs `max_in_flight` of at least 1 and `retries` of at least 0")
        if not self.timeout_s > 0:
            raise BadSettings(f"`timeout_s` of a producer must be above 0, not {self.timeout_s!r}")
        if not 0 <= self.linger <= _MAX_LINGER_S:
            raise BadSettings(f"`linger` of a producer must be 0 to {_MAX_LINGER_S:g} seconds, not {self.linger!r}")
        if not 1 <= self.batch_bytes <= self.max_message_size:
            raise BadSettings("`batch_bytes` of a producer must be at least 1 and at most `max_message_size`")


class Producer(ClientLifecycle):
    """One member of a producer group. Start it once and close it once; `async with` does both."""

    def __init__(
        self,
        group: str,
        namesrv: Namesrv = None,
        *,
        options: ProducerOptions | None = None,
    ) -> None:
        """Raises BadSettings for an invalid group."""
        check_group(group)
        options = options or ProducerOptions()
        self.group = group
        self._instance = ClientInstance(namesrv)
        self._instance.producer_group = group
        self._options = options
        self._packing = PackingOptions(group, options.compress_over, options.max_message_size)
        self._selector = QueueSelector()
        self._window = SendWindow(options.max_in_flight)
        self._linger = (
            BatchLinger(options.linger, options.batch_bytes, options.max_in_flight, self._send_lingering)
            if options.linger > 0
            else None
        )

    async def start(self) -> Self:
        self._instance.start()
        return self

    async def close(self) -> None:
        """Sends what waits because of `linger`, and closes the connections. Sends that wait for their turn fail, and
        their messages are not sent; call `flush` before to wait for them.
        """
        self._window.close()
        if self._linger is not None:
            await self._linger.close(self._options.timeout_s)
        await self._instance.close()

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Sends one message to `queue`, else to the queue of its sharding key, else to the topic's next queue in turn.

        Raises NoAnswer if the message may be stored or not. It is not stored after any other error: NoRoute,
        Unreachable, Refused, or BadMessage if the body exceeds `max_message_size`.
        """
        if self._linger is None or timeout_s is not None or not fits_batch(message, self._options.compress_over):
            (result,) = await self._deliver(pack(message, self._packing), queue, timeout_s)
            return result
        item = pack_item(message)
        turn = self._window.take() or await self._window.wait()
        try:
            if queue is None and message.sharding_key:
                queue = select_by_hash(self._writable(await self._route(message.topic)), message.sharding_key)
            sending = self._linger.add(BatchKey(message.topic, message.wait, queue), message, item, turn)
        except BaseException:
            turn.end()
            raise
        return await sending

    async def flush(self) -> None:
        """Lets the messages leave that wait for others because of `linger`, and returns when every send that has begun
        by now has its result or its error. A task that was created before counts.
        """
        await asyncio.sleep(0)  # tasks that were created before run first
        if self._linger is not None:
            self._linger.flush()
        await self._window.drain()

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Sends messages of one topic to one queue in one request. The broker stores all of them or none. Returns one
        result per message, in the same order.
        """
        return await self._deliver(pack_batch(messages, self._packing), queue, timeout_s)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Sends a message without waiting for a reply, so the caller does not learn whether it was stored."""
        outgoing = pack(message, self._packing)
        route = await self._route(message.topic)
        chosen = self._choose(route, outgoing, queue, "")
        address = _master(route, chosen)
        await self._instance.request_oneway(address, outgoing.code, outgoing.to_queue(chosen.queue_id), outgoing.body)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the writable queues of a topic, in the order in which `send` takes turns."""
        return list((await self._route(topic)).publish_queues)

    # -- delivering ------------------------------------------------------------------------------------------

    async def _deliver(
        self,
        outgoing: OutgoingRequest,
        queue: MessageQueue | None,
        timeout_s: float | None,
        turns: Sequence[SendTurn] = (),
    ) -> list[SendResult]:
        """Sends a request in its turn, and again after a failure that a retry can mend. Raises NoAnswer if the messages
        may be stored, and any other error only if they are not. Without `turns`, the request waits for one of its own.
        """
        own = None if turns else self._window.take() or await self._window.wait()
        first = own or turns[0]
        flight: SendTurn | SharedFlight = first if len(turns) < 2 else SharedFlight(turns)
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        failed_at, unknown = "", False
        try:
            for attempt in range(self._options.retries + 1):
                route = await self._route(outgoing.header.topic)
                chosen = self._choose(route, outgoing, queue, failed_at)
                frames = first.frames
                left_s = timeout_s if not frames else max(first.started_at + timeout_s - time.monotonic(), 0.001)
                try:
                    reply = await self._try(route, chosen, outgoing, left_s, flight)
                except (Unreachable, NoAnswer, Refused) as error:
                    unknown = unknown or (first.frames > frames and not isinstance(error, Refused))
                    fixed = queue is not None or outgoing.sharding_key != ""
                    others = not fixed and any(each.broker_name != chosen.broker_name for each in route.publish_queues)
                    pause_s = self._pause(error, route, chosen, attempt, others=others)
                    if others:
                        flight.let_go()  # the sends that wait can go elsewhere
                    is_late = first.frames > 0 and time.monotonic() + (pause_s or 0.0) >= first.started_at + timeout_s
                    if attempt == self._options.retries or pause_s is None or is_late:
                        raise
                    failed_at = chosen.broker_name
                    await asyncio.sleep(pause_s)
                else:
                    self._selector.mark_working(chosen.broker_name)
                    return _results(reply, outgoing, chosen)
            raise AssertionError("unreachable: the last attempt returns or raises")
        except PenstockError as error:
            if unknown:
                raise may_be_stored(error, outgoing.msg_ids[0]) from error
            if isinstance(error, NoAnswer):
                raise Unreachable(f"{error}, and the message was not sent; send it again") from error
            raise
        finally:
            if own is not None:
                own.end()

    async def _send_lingering(self, batch: LingeringBatch) -> list[SendReport]:
        """Sends the messages of a batch: in one request, or one by one if it has only one or the broker refuses the
        batch as such.
        """
        entries, queue = batch.entries, batch.key.queue
        if len(entries) > 1:
            outgoing = pack_items(entries[0].message, [entry.item for entry in entries], self._packing)
            try:
                return [*await self._deliver(outgoing, queue, None, [entry.turn for entry in entries])]
            except NoAnswer as error:
                return [may_be_stored(error.__cause__ or error, msg_id) for msg_id in outgoing.msg_ids]
            except Refused as error:  # nothing of it is stored
                if error.code not in _SEND_ALONE:
                    return [Refused(str(error), code=error.code, remark=error.remark) for _ in entries]
        return await asyncio.gather(*(self._send_one(entry, queue) for entry in entries))

    async def _send_one(self, entry: BatchEntry, queue: MessageQueue | None) -> SendReport:
        outgoing = pack(entry.message, self._packing, extra={UNIQ_KEY: entry.item.msg_id})
        try:
            (result,) = await self._deliver(outgoing, queue, None, (entry.turn,))
        except PenstockError as error:
            return error
        return result

    def _pause(
        self, error: Exception, route: Route, chosen: MessageQueue, attempt: int, *, others: bool
    ) -> float | None:
        """Returns the seconds to wait before the next attempt, or None if a retry cannot succeed. Marks the broker as
        failed. `others` says whether the next attempt can be at another broker.
        """
        if isinstance(error, Refused):
            if error.code not in _RETRY_SAME and not (others and error.code in _RETRY_OTHER):
                return None
        else:
            self._instance.routes.refresh_soon(route.topic)
        self._selector.mark_failed(chosen.broker_name)
        return 0.0 if others else _PAUSE_S * 2**attempt

    async def _try(
        self, route: Route, chosen: MessageQueue, outgoing: OutgoingRequest, timeout_s: float, flight: Flight
    ) -> Command:
        header = outgoing.to_queue(chosen.queue_id)
        address = _master(route, chosen)
        return await self._instance.request(
            address, outgoing.code, header, outgoing.body, timeout_s=timeout_s, good=STATUSES, flight=flight
        )

    async def _route(self, topic: str) -> Route:
        return await self._instance.routes.find_to_publish(topic)

    def _choose(
        self, route: Route, outgoing: OutgoingRequest, queue: MessageQueue | None, failed_at: str
    ) -> MessageQueue:
        if queue is not None:
            if queue.topic != route.topic:
                raise NoRoute(
                    f"queue of topic '{queue.topic}' given for a message of topic '{route.topic}'; "
                    "choose one of the message's topic"
                )
            return queue
        queues = self._writable(route)
        if outgoing.sharding_key:
            return select_by_hash(queues, outgoing.sharding_key)
        return self._selector.next(queues, failed_at)

    def _writable(self, route: Route) -> Sequence[MessageQueue]:
        """Returns the queues of a route that take messages. Raises NoRoute if there is none."""
        if not route.publish_queues:
            self._instance.routes.refresh_soon(route.topic)  # the master may have restarted since the route was fetched
            raise NoRoute(
                f"topic '{route.topic}' has no writable queue; check its permission with `penstock topic config`"
            )
        return route.publish_queues


def may_be_stored(error: BaseException, msg_id: str) -> NoAnswer:
    """Returns the error of a send whose frame was written and not answered."""
    return NoAnswer(f"{error}; the message may be stored, with the id {msg_id}")


def _master(route: Route, queue: MessageQueue) -> str:
    try:
        return route.masters[queue.broker_name]
    except KeyError:
        raise NoRoute(
            f"broker '{queue.broker_name}' of topic '{route.topic}' has no master at the moment; start it"
        ) from None


def _results(reply: Command, outgoing: OutgoingRequest, chosen: MessageQueue) -> list[SendResult]:
    header = reply.read(SendMessageReply)
    queue = MessageQueue(broker_name=chosen.broker_name, queue_id=header.queue_id, topic=chosen.topic)
    offset_ids = header.msg_id.split(",")
    if len(offset_ids) != len(outgoing.msg_ids):  # RocketMQ 5 stores a batch as one record with one id
        offset_ids = offset_ids[:1] * len(outgoing.msg_ids)
    return [
        SendResult(
            STATUSES[ResponseCode(reply.code)],
            msg_id,
            offset_id,
            queue,
            header.queue_offset + number,
            header.region or "",
            header.trace_on or False,
        )
        for number, (msg_id, offset_id) in enumerate(zip(outgoing.msg_ids, offset_ids, strict=True))
    ]
