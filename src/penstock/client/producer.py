"""The producer: sends messages and retries failed sends.

    async with Producer("orders-service", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("orders", b"two shirts", tags="paid", keys="order_1"))

A send returns when the broker has stored the message; `SendResult.status` shows whether flush and replication finished
in time. A failed send is retried, at another broker if there is one, so a message can be stored twice, with the same
`msg_id`. The error of the last attempt is raised. NoAnswer means that the message may be stored or not: a frame was
written and never answered. After any other error it is not stored. For concurrent sends use `asyncio.gather`, with as
many as you like: `max_in_flight` of them are under way at a time, and the others wait for their turn. Sends of one turn
of the event loop to one topic leave as one batch, where their messages allow it: see `batching`. A producer is not
thread-safe: use it from its event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from penstock.client.batching import OutgoingBatches, SendBatch, fits_batch, pack_properties
from penstock.client.client_instance import ClientInstance, ClientLifecycle, check_group
from penstock.client.config import Namesrv
from penstock.client.message import Message, SendResult
from penstock.client.send_requests import (
    BatchDelivery,
    Delivery,
    OutgoingRequest,
    PackingOptions,
    Sender,
    pack,
    pack_batch,
    select_by_hash,
)
from penstock.client.send_window import SendTurn, SendWindow
from penstock.errors import BadSettings
from penstock.protocol.bodies.queues import MessageQueue

_MAX_LINGER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Timeouts, retries and limits of a producer. The constructor raises BadSettings for an invalid value."""

    timeout_s: float = 3.0
    """Timeout of one send, including its retries, from the moment when its first frame is written."""
    retries: int = 2
    max_in_flight: int = 1000
    """Limit of unanswered sends. Above it, `send` waits for its turn."""
    linger: float = 0.0
    """Seconds for which a message waits for others of its topic, to leave with them in one request. With 0, only the
    sends of one turn of the event loop leave together.
    """
    batch_bytes: int = 128 << 10
    """Limit of such a request, in bytes. With 1, every message leaves alone."""
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
        self._sender = Sender(self._instance, self._packing, timeout_s=options.timeout_s, retries=options.retries)
        self._window = SendWindow(options.max_in_flight)
        self._batched_below = min(options.compress_over, options.max_message_size)
        self._batches = OutgoingBatches(
            options.linger, options.batch_bytes, options.max_in_flight, self._begin, self._sender.flush
        )

    async def start(self) -> Self:
        self._instance.start()
        return self

    async def close(self) -> None:
        """Sends what waits because of `linger`, and closes the connections. Sends that wait for their turn fail, and
        their messages are not sent; call `flush` before to wait for them.
        """
        self._window.close()
        self._batches.flush()
        if self._options.linger:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.timeout_s):
                    await self._window.drain()
        await self._instance.close()

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Sends one message to `queue`, else to the queue of its sharding key, else to the topic's next queue in turn.

        Raises NoAnswer if the message may be stored or not. It is not stored after any other error: NoRoute,
        Unreachable, Refused, or BadMessage if the body exceeds `max_message_size`.
        """
        if timeout_s is not None or not fits_batch(message, self._batched_below):
            (result,) = await self._deliver(pack(message, self._packing), queue, timeout_s)
            return result
        properties, msg_id = pack_properties(message)
        number = self._window.take() or await self._window.wait()
        try:
            if queue is None and message.sharding_key:
                route = await self._sender.route(message.topic)
                queue = select_by_hash(self._sender.writable(route), message.sharding_key)
            sending = self._batches.add(message, properties, msg_id, queue, number)
        except BaseException:
            self._window.give_back(number)
            raise
        return await sending

    async def flush(self) -> None:
        """Lets the messages leave that wait for others because of `linger`, and returns when every send that has begun
        by now has its result or its error. A task that was created before counts.
        """
        await asyncio.sleep(0)  # tasks that were created before run first
        self._batches.flush()
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
        route = await self._sender.route(message.topic)
        chosen, address = self._sender.choose(route, message.sharding_key, queue)
        self._batches.end_turn()
        await self._instance.request_oneway(address, outgoing.code, outgoing.to_queue(chosen.queue_id), outgoing.body)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the writable queues of a topic, in the order in which `send` takes turns."""
        return list((await self._sender.route(topic)).publish_queues)

    # -- delivering ------------------------------------------------------------------------------------------

    async def _deliver(
        self, outgoing: OutgoingRequest, queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        """Sends a request in its turn, after the batches that wait. Raises as `Delivery.run` does."""
        turn = SendTurn(self._window, (self._window.take() or await self._window.wait(),))
        self._batches.end_turn()
        try:
            return await Delivery(self._sender, outgoing, queue, turn, timeout_s).run()
        finally:
            turn.end()

    def _begin(self, batch: SendBatch) -> None:
        turn = SendTurn(self._window, [send.number for send in batch.sends])
        BatchDelivery(self._sender, batch, turn).begin()
