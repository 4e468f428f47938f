"""Batches that a producer makes of single sends: messages of one topic for one queue wait for each other for a moment.

A batch leaves when its first message has waited for `linger` seconds, when the next message would make it larger than
`batch_bytes`, or when all turns of the producer are waiting in batches. Each send gets the result or the error of its
own message. The broker stores a batch as a whole or not at all; if it refuses one because of what is in it, the
messages are sent one by one, so that an error concerns its own message only.

Not every message can be in a batch: see `fits_batch`. The classes are not thread-safe: use them from the event loop's
thread only.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.client.message import Message, SendResult
from penstock.client.send_window import SendTurn
from penstock.errors import PenstockError
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.queues import MessageQueue


class PackedItem(NamedTuple):
    """One message in the form that it has in the body of a batch, and its unique id."""

    encoded: bytes
    msg_id: str


class BatchKey(NamedTuple):
    """What messages of one batch have in common. Without a queue, the producer chooses one for the whole batch."""

    topic: str
    wait: bool
    queue: MessageQueue | None


class BatchEntry(NamedTuple):
    """One send: its message, in both forms, its turn, and the future of its result."""

    message: Message
    item: PackedItem
    turn: SendTurn
    result: asyncio.Future[SendResult]


@dataclass(slots=True, eq=False)
class LingeringBatch:
    """Messages that leave together, in the order of their sends."""

    key: BatchKey
    entries: list[BatchEntry] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | None = None


SendReport = SendResult | PenstockError
SendBatch = Callable[[LingeringBatch], Awaitable[list[SendReport]]]
"""Sends a batch and returns the outcome of each message, in order."""


def fits_batch(message: Message, compress_over: int) -> bool:
    """Whether a message may be in a batch: it has no delay, is no retry, and its body is too small to be compressed."""
    return len(message.body) < compress_over and not message.is_delayed and not message.topic.startswith(RETRY_PREFIX)


class BatchLinger:
    """The batches of one producer that have not left, and those that are under way."""

    def __init__(self, linger_s: float, batch_bytes: int, max_lingering: int, send: SendBatch) -> None:
        """`max_lingering` is the number of sends that can be under way at all."""
        self._linger_s = linger_s
        self._batch_bytes = batch_bytes
        self._max_lingering = max_lingering
        self._send = send
        self._lingering: dict[Hashable, LingeringBatch] = {}
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, key: BatchKey, message: Message, item: PackedItem, turn: SendTurn) -> SendResult:
        """Adds a message, whose `turn` belongs to the batch from now on, and returns its result."""
        loop, size = asyncio.get_running_loop(), len(item.encoded)
        batch = self._lingering.get(key)
        if batch is not None and batch.size + size > self._batch_bytes:
            self._dispatch(batch)
            batch = None
        if batch is None:
            batch = self._lingering[key] = LingeringBatch(key)
            batch.timer = loop.call_later(self._linger_s, self._dispatch, batch)
        result: asyncio.Future[SendResult] = loop.create_future()
        batch.entries.append(BatchEntry(message, item, turn, result))
        batch.size += size
        self._count += 1
        if batch.size >= self._batch_bytes:
            self._dispatch(batch)
        elif self._count >= self._max_lingering:
            self.flush()
        return await result

    def flush(self) -> None:
        """Lets all batches leave."""
        for batch in list(self._lingering.values()):
            self._dispatch(batch)

    async def close(self, timeout_s: float) -> None:
        """Lets all batches leave and waits up to `timeout_s` for their outcome."""
        self.flush()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def _dispatch(self, batch: LingeringBatch) -> None:
        del self._lingering[batch.key]
        self._count -= len(batch.entries)
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.create_task(self._run(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, batch: LingeringBatch) -> None:
        try:
            try:
                outcomes: list[SendReport] = await self._send(batch)
            except Exception as error:
                told = error if isinstance(error, PenstockError) else PenstockError(f"a batch was not sent: {error!r}")
                outcomes = [copy.copy(told) for _ in batch.entries]
            for entry, outcome in zip(batch.entries, outcomes, strict=True):
                if entry.result.done():  # its caller was cancelled
                    continue
                if isinstance(outcome, SendResult):
                    entry.result.set_result(outcome)
                else:
                    entry.result.set_exception(outcome)
        finally:
            for entry in batch.entries:
                entry.turn.end()
