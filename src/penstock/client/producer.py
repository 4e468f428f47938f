"""Sends messages.

    async with Producer("orders-service", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"two shirts", tags="paid", keys="order_1"))

A send returns when the broker has stored the message, however safely its settings say; `SendResult.status` tells where
it could not be as safe as that. What goes wrong is tried again, at another broker if there is one, and then raised: an
error means that the message may or may not be stored, so a message can be stored twice, with the same `msg_id`. Several
sends at once are `asyncio.gather`'s business. Belongs to the thread of one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from penstock.client.config import Namesrv
from penstock.client.instance import ClientInstance
from penstock.client.message import Message
from penstock.client.outgoing import Outgoing, Packing, pack, pack_batch
from penstock.client.queue_choice import QueueChoice, queue_of_key
from penstock.client.results import STATUSES, SendResult
from penstock.client.routes import Route
from penstock.client.started import Started
from penstock.errors import NoAnswer, NoRoute, Refused, Unreachable
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.send import SendMessageReply

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
