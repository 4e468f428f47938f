"""The requests that one connection has sent and that are not answered yet.

Ids count up and are unique on their connection only. A reply to an id that is not waited for (any more) is ignored.
One timer serves all: it is set to the earliest deadline, and since most requests have the same time limit it is seldom
set anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import NoAnswer, PenstockError
from penstock.protocol.command import Command

_LAST_ID = 2**31 - 1


class Asked:
    """Belongs to the loop's thread."""

    __slots__ = ("_last", "_loop", "_peer", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self._loop = loop
        self._peer = peer
        self._last = 0
        self._waiting: dict[int, tuple[asyncio.Future[Command], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deadline: float) -> tuple[int, asyncio.Future[Command]]:
        """A new id, and what becomes its reply; or NoAnswer at the deadline."""
        opaque = self._last
        while True:
            opaque = opaque + 1 if opaque < _LAST_ID else 1
            if opaque not in self._waiting:
                break
        self._last = opaque
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[opaque] = (future, deadline)
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        return opaque, future

    def forget(self, opaque: int) -> None:
        """Nobody waits for this one any more."""
        self._waiting.pop(opaque, None)

    def answer(self, reply: Command) -> None:
        """Hands a reply to whoever waits for it."""
        found = self._waiting.pop(reply.opaque, None)
        if found is not None and not found[0].done():
            found[0].set_result(reply)

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """The connection is gone: no reply will come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error())

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        late = [opaque for opaque, (_, deadline) in self._waiting.items() if deadline <= now]
        for opaque in late:
            future, _ = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(NoAnswer(f"{self._peer} did not answer in time"))
        self._timer = None
        if self._waiting:
            self._set_timer(min(deadline for _, deadline in self._waiting.values()))
