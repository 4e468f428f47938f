"""Requests that one side of a connection has sent, until each is answered or given up.

`PendingRequests` belongs to one `remoting.connection.Connection`: it hands out the ids of requests, keeps their
deadlines, and passes replies and errors to those who wait for them. Use it from the thread of the event loop only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

from penstock.errors import NoAnswer, PenstockError
from penstock.protocol.command import Command

_LAST_ID: Final = 2**31 - 1
SILENT_S: Final = 10.0
"""How long a request whose caller has given up still counts as unanswered, if its connection lives."""
_GRACE_S: Final = 0.01
"""How long a due deadline waits for replies that have arrived and are not read yet, because the loop was busy."""


class Flight(Protocol):
    """Follows the frame of one request, for a sender that limits how many are unanswered."""

    def written(self) -> None:
        """The peer may have the frame from now on."""

    def settled(self) -> None:
        """The frame no longer counts: it is answered, perhaps too late for its caller, or its connection is closed, or
        its peer has said nothing about it for `SILENT_S` after its deadline. Called once for each `written`.
        """


class ReplyTo(Protocol):
    """Receives the reply to one request, or the error instead of it: a future, or an object that needs no turn of the
    loop for it. None of the methods may raise.
    """

    def done(self) -> bool:
        """Whether it no longer waits."""

    def set_result(self, reply: Command, /) -> None: ...

    def set_exception(self, error: PenstockError, /) -> None: ...

    def cancel(self) -> object: ...


class _Pending:
    """One request without a reply. Its deadline starts when its frame is written."""

    __slots__ = ("deadline", "flight", "future", "is_late", "timeout_s")

    def __init__(self, future: ReplyTo, timeout_s: float, flight: Flight | None) -> None:
        self.future = future
        self.timeout_s = timeout_s
        self.deadline = math.inf
        self.flight = flight
        self.is_late = False


class PendingRequests:
    """Requests that one connection has sent and that have no reply yet.

    Ids (`opaque`) count up and are unique on their connection only. A reply to an unknown id is ignored. One timer, set
    to the earliest deadline, serves all requests. A request with a `Flight` stays after its caller has given up, until
    it is settled.
    """

    __slots__ = ("_last", "_loop", "_peer", "_timer", "_unwritten", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self._loop = loop
        self._peer = peer
        self._last = 0
        self._waiting: dict[int, _Pending] = {}
        self._unwritten: list[_Pending] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, timeout_s: float, reply_to: ReplyTo, flight: Flight | None = None) -> int:
        """Returns a new id. `reply_to` gets the reply, or NoAnswer `timeout_s` after `frames_written`."""
        opaque = self._last
        while True:
            opaque = opaque + 1 if opaque < _LAST_ID else 1
            if opaque not in self._waiting:
                break
        self._last = opaque
        self._waiting[opaque] = pending = _Pending(reply_to, timeout_s, flight)
        self._unwritten.append(pending)
        return opaque

    def frames_written(self, now: float) -> None:
        """Starts the deadlines of the requests that were added since the last call: their frames are written."""
        added, self._unwritten = self._unwritten, []
        earliest = math.inf
        for pending in added:
            pending.deadline = deadline = now + pending.timeout_s
            if deadline < earliest:
                earliest = deadline
        if self._timer is None or earliest < self._timer.when():
            self._set_timer(earliest)

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten)

    def discard(self, opaque: int) -> None:
        """Drops a request that has no frame."""
        self._waiting.pop(opaque, None)

    def give_up(self, opaque: int) -> None:
        """Drops a request whose caller has stopped waiting; with a `Flight`, once it is settled."""
        pending = self._waiting.get(opaque)
        if pending is not None:
            if pending.flight is None:
                del self._waiting[opaque]
            else:
                pending.future.cancel()

    def answer(self, reply: Command) -> None:
        """Completes the request that `reply` answers."""
        pending = self._waiting.pop(reply.opaque, None)
        if pending is not None:
            if not pending.future.done():
                pending.future.set_result(reply)
            if pending.flight is not None:
                pending.flight.settled()

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """Fails all requests with new errors from `error`, because the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting, self._unwritten = self._waiting, {}, []
        for pending in waiting.values():
            if not pending.future.done():
                pending.future.set_exception(error())
            _settle(pending)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._due)

    def _due(self) -> None:
        """Lets the loop read what has arrived before a request counts as unanswered: after a long callback, some loops
        run timers first.
        """
        self._timer = self._loop.call_later(_GRACE_S, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        late = [opaque for opaque, pending in self._waiting.items() if pending.deadline <= now]
        for opaque in late:
            pending = self._waiting[opaque]
            if not pending.future.done():
                pending.future.set_exception(NoAnswer(f"{self._peer} did not answer in time"))
            if pending.flight is not None and not pending.is_late:
                pending.is_late, pending.deadline = True, now + SILENT_S
                continue
            del self._waiting[opaque]
            _settle(pending)
        self._timer = None
        earliest = min((pending.deadline for pending in self._waiting.values()), default=math.inf)
        if earliest < math.inf:
            self._set_timer(earliest)


def _settle(pending: _Pending) -> None:
    if pending.flight is not None:
        pending.flight.settled()
