"""Batches that a producer makes of single sends: messages of one topic for one queue leave in one request.

Without `linger`, the sends of one turn of the event loop are a batch, which leaves when the turn ends. So a send waits
for nothing, and programs with many sends at a time have few requests. With `linger`, a batch leaves when its first
message has waited for so many seconds. It leaves earlier when the next message would make it larger than `batch_bytes`,
and when all turns of the producer are waiting in batches. Messages are in the order of their sends.

The broker stores a batch as a whole or not at all; each send gets the result or the error of its own message. Not every
message can be in a batch: see `fits_batch`. The classes are not thread-safe: use them from the event loop's thread
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from penstock.client.message import Message, SendResult
from penstock.errors import BadMessage, PenstockError
from penstock.format.batch import FIXED_SIZE
from penstock.format.constants import (
    DELAY,
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    RETRY_PREFIX,
    TRAN_MSG,
    UNIQ_KEY,
)
from penstock.format.message_id import make_unique_id
from penstock.format.properties import encode_properties
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.headers.send import batch_limit

_BATCH_LIMIT: Final = batch_limit(56)
"""Limit of the messages of a batch that every broker accepts, also one with an IPv6 address and its longer ids."""
_ALONE: Final = frozenset(
    {
        DELAY,
        TRAN_MSG,
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "__STARTDELIVERTIME",
        "INNER_MULTI_DISPATCH",
    }
)
"""Properties by which a broker, of RocketMQ 4 or 5, stores a message elsewhere or later. It ignores them in a batch."""
_UNIQ_KEY: Final = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}".encode()
_SYSTEM_PREFIXES: Final = (RETRY_PREFIX, "%DLQ%", "rmq_sys_", "RMQ_SYS_", "%SYS%")


class BatchKey(NamedTuple):
    """What messages of one batch have in common. Without a queue, the producer chooses one for the whole batch."""

    topic: str
    wait: bool
    queue: MessageQueue | None


class QueuedSend(NamedTuple):
    """One send: its message, the message's encoded properties and unique id, its number in the `SendWindow`, and the
    future of its result.
    """

    message: Message
    properties: bytes
    msg_id: str
    number: int
    result: asyncio.Future[SendResult]

    def report(self, outcome: SendResult | PenstockError) -> None:
        """Ends the send, unless its caller was cancelled."""
        if self.result.done():
            return
        if isinstance(outcome, SendResult):
            self.result.set_result(outcome)
        else:
            self.result.set_exception(outcome)


@dataclass(slots=True, eq=False)
class SendBatch:
    """Messages that leave together, in the order of their sends."""

    key: BatchKey
    sends: list[QueuedSend] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether the callers of all sends were cancelled."""
        return all(send.result.done() for send in self.sends)


def fits_batch(message: Message, size_limit: int) -> bool:
    """Whether a message may be in a batch: its body is smaller than `size_limit`, so it is not compressed, its topic is
    no retry or system topic, and it has neither a delay nor another property that the broker ignores in a batch.
    """
    if len(message.body) >= size_limit or message.delay_level > 0 or _is_system_topic(message.topic):
        return False
    return not message.properties or _ALONE.isdisjoint(message.properties)


@lru_cache(256)
def _is_system_topic(topic: str) -> bool:
    return topic.startswith(_SYSTEM_PREFIXES)


def pack_properties(message: Message) -> tuple[bytes, str]:
    """Returns a message's encoded properties, which fit into a batch, and its unique id. Raises BadMessage."""
    if message.is_bare:
        msg_id = make_unique_id()
        return _UNIQ_KEY + msg_id.encode(), msg_id
    properties = message.all_properties()
    msg_id = properties.setdefault(UNIQ_KEY, make_unique_id())
    encoded = encode_properties(properties)
    if len(encoded) > MAX_PROPERTIES_LENGTH:
        raise BadMessage(
            "the properties of a message in a batch are too long",
            expected=f"at most {MAX_PROPERTIES_LENGTH} bytes",
            found=len(encoded),
        )
    return encoded, msg_id


class OutgoingBatches:
    """The batches of one producer that have not left."""

    def __init__(
        self,
        linger_s: float,
        batch_bytes: int,
        max_waiting: int,
        send: Callable[[SendBatch], None],
        sent: Callable[[], None],
    ) -> None:
        """`send` is called with each batch that leaves, and `sent` after the last one of a turn. `max_waiting` is the
        number of sends that can be under way at all.
        """
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._max_waiting = min(max_waiting, _BATCH_LIMIT)
        self._send = send
        self._sent = sent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[tuple[str, bool, MessageQueue | None], SendBatch] = {}
        """By `BatchKey`; a plain tuple is equal to one, and cheaper."""
        self._count = 0
        self._flush_is_due = False

    def add(
        self, message: Message, properties: bytes, msg_id: str, queue: MessageQueue | None, number: int
    ) -> asyncio.Future[SendResult]:
        """Adds a message, and returns the future of its result. Its turn belongs to the batch from now on."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        key = message.topic, message.wait, queue
        size = FIXED_SIZE + len(message.body) + len(properties)
        batch = self._waiting.get(key)
        if batch is not None and batch.size + size > self._batch_bytes:
            self._leave(batch)
            if self._linger_s:  # else the flush of this turn comes
                self._sent()
            batch = None
        if batch is None:
            batch = self._waiting[key] = SendBatch(BatchKey(*key))
            if self._linger_s:
                batch.timer = loop.call_later(self._linger_s, self._leave_late, batch)
            elif not self._flush_is_due:
                self._flush_is_due = True
                loop.call_soon(self.flush)
        result: asyncio.Future[SendResult] = loop.create_future()
        batch.sends.append(QueuedSend(message, properties, msg_id, number, result))
        batch.size += size
        self._count += 1
        if batch.size >= self._batch_bytes:
            self._leave(batch)
            self._sent()
        elif self._count >= self._max_waiting:
            self.flush()
        return result

    def flush(self) -> None:
        """Lets all batches leave."""
        self._flush_is_due = False
        for batch in list(self._waiting.values()):
            self._leave(batch)
        self._sent()

    def end_turn(self) -> None:
        """Lets the batches of this turn leave, so that what is sent next comes after them; not those that linger."""
        if not self._linger_s and self._waiting:
            self.flush()

    def _leave_late(self, batch: SendBatch) -> None:
        self._leave(batch)
        self._sent()

    def _leave(self, batch: SendBatch) -> None:
        del self._waiting[batch.key]
        self._count -= len(batch.sends)
        if batch.timer is not None:
            batch.timer.cancel()
        self._send(batch)
