"""Back-pressure of a producer: a limited number of unanswered sends, and a turn for each of the others.

A send takes a turn before it does anything, and turns are given first come, first served. A turn is free again when its
send has ended and the broker has answered each of its frames, even too late for the caller, or the frame's connection
is closed. So a broker that stands still has at most the limit in frames, however many sends wait, and at most so many
sends end without an answer. A broker that never answers a frame holds its turn for `pending_requests.SILENT_S` only,
and does not hold it at all once its send has failed and there is another broker to send to.

The classes are not thread-safe: use them from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from penstock.errors import Unreachable


class SendTurn:
    """The turn of one request, which has one send or the sends of a batch: a `Flight` for its frames."""

    __slots__ = ("_has_ended", "_numbers", "_unsettled", "_window", "frames", "started_at")

    def __init__(self, window: SendWindow, numbers: Sequence[int]) -> None:
        """`numbers` are what `SendWindow` gave to the sends."""
        self._window = window
        self._numbers = numbers
        self._unsettled = 0
        self._has_ended = False
        self.frames = 0
        """The number of frames written so far."""
        self.started_at = 0.0
        """When the first frame was written, by the monotonic clock; 0 before."""

    def written(self) -> None:
        if not self.frames:
            self.started_at = time.monotonic()
        self.frames += 1
        self._unsettled += 1

    def settled(self) -> None:
        if self._unsettled:  # not after `let_go`
            self._unsettled -= 1
            if self._has_ended and not self._unsettled:
                self._window.free(len(self._numbers))

    def let_go(self) -> None:
        """The frames written so far no longer count. Only for a request that has not ended."""
        self._unsettled = 0

    def split(self) -> list[SendTurn]:
        """Ends this turn and returns one for each of its sends. The frames written so far no longer count."""
        numbers, self._numbers = self._numbers, ()
        self._unsettled = 0
        return [SendTurn(self._window, (number,)) for number in numbers]

    def end(self) -> None:
        """The sends have their results or errors. Called once."""
        self._has_ended = True
        self._window.ended(self._numbers)
        if not self._unsettled:
            self._window.free(len(self._numbers))


class SendWindow:
    """The turns of one producer: `limit` at a time."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._begun = 0
        self._active: dict[int, None] = {}
        """The numbers of the sends that have not ended, in their order."""
        self._drains: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False

    def take(self) -> int:
        """Takes a turn if one is free: returns the number of a new send, for a `SendTurn`, and 0 if none is free.
        Raises Unreachable if the producer is closed.
        """
        if self._closed:
            raise _closed()
        if not self._free:
            return 0
        self._free -= 1
        self._begun = number = self._begun + 1
        self._active[number] = None
        return number

    async def wait(self) -> int:
        """Waits for a turn and returns the number of its send. Raises Unreachable if the producer is closed
        meanwhile.
        """
        self._begun = number = self._begun + 1
        self._active[number] = None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except BaseException:
            self.ended((number,))
            if future.done() and not future.cancelled() and future.exception() is None:
                self.free(1)  # the caller was cancelled in the moment in which its turn came: it goes to the next one
            raise
        return number

    def give_back(self, number: int) -> None:
        """Ends a send that has its turn, but got no further."""
        self.ended((number,))
        self.free(1)

    async def drain(self) -> None:
        """Returns when every send that has begun by now has ended."""
        if self._active:
            drained = asyncio.get_running_loop().create_future()
            self._drains.append((self._begun, drained))
            await drained

    def close(self) -> None:
        """Fails the sends that wait for a turn, and those to come."""
        self._closed = True
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if not future.done():
                future.set_exception(_closed())

    # -- for turns -------------------------------------------------------------------------------------------

    def free(self, count: int) -> None:
        """Gives turns to the sends that have waited longest."""
        while count and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1
        self._free += count

    def ended(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._active[number]
        if self._drains:
            oldest = next(iter(self._active), self._begun + 1)
            for last, drained in self._drains:
                if last < oldest and not drained.done():
                    drained.set_result(None)
            self._drains = [each for each in self._drains if not each[1].done()]


def _closed() -> Unreachable:
    return Unreachable("this producer is closed, and the message was not sent; create a new `Producer`")
