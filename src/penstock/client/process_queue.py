"""What a push consumer has in hand of one queue: the messages that were pulled and are not consumed yet.

From it follows what may be committed: the lowest offset in hand, or, with nothing in hand, where the next pull begins.
So a crash brings messages again, and never loses one. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.client.message import ReceivedMessage
from penstock.clock import now_ms
from penstock.protocol.bodies.queues import MessageQueue

_MAX_COUNT = 1000
_MAX_BYTES = 100 << 20
_MAX_SPAN = 2000
"""Offsets from the lowest in hand to the next pull: what a crash may bring again."""


class ProcessQueue:
    """One queue's messages in hand, in the order of their offsets. Once `dropped`, what comes of them is ignored."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.next_offset = offset
        """Where the next pull begins."""
        self.dropped = False
        self.pulled_at = self.consumed_at = 0
        """When that was last done, in epoch milliseconds."""
        self._in_hand: dict[int, ReceivedMessage] = {}
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def __len__(self) -> int:
        return len(self._in_hand)

    @property
    def bytes_in_hand(self) -> int:
        return self._bytes

    @property
    def offsets_in_hand(self) -> list[int]:
        return list(self._in_hand)

    @property
    def commit_offset(self) -> int:
        """Everything before it has been consumed."""
        return next(iter(self._in_hand), self.next_offset)

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Takes a page that was pulled at `next_offset`, which moves on."""
        for message in messages:
            self._in_hand[message.queue_offset] = message
            self._bytes += message.size
        self.next_offset = next_offset
        self.pulled_at = now_ms()
        self._look_for_room()

    def remove(self, message: ReceivedMessage) -> None:
        """A message has been consumed, or sent back."""
        if self._in_hand.pop(message.queue_offset, None) is not None:
            self._bytes -= message.size
        self.consumed_at = now_ms()
        self._look_for_room()

    def drop(self) -> None:
        """Somebody else has the queue now, or nobody."""
        self.dropped = True
        self._has_room.set()

    async def room(self) -> None:
        """Returns when more may be pulled: when not too much is in hand, and the lowest of it is not too far back."""
        await self._has_room.wait()

    def _look_for_room(self) -> None:
        span = self.next_offset - self.commit_offset
        if self.dropped or (len(self._in_hand) < _MAX_COUNT and self._bytes < _MAX_BYTES and span < _MAX_SPAN):
            self._has_room.set()
        else:
            self._has_room.clear()
