"""Calls at given times of the wall clock, on the loop.

A call is never early by the wall clock. It is late by the loop's own delay; and by up to a second after the clock was
set forward, because the clock is read at least that often while a call is due. After the clock was set back, calls
wait for their time again. A caller that should not wait that long listens to `on_set_back`.

Nothing here is kept over a restart. Use it from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final

from penstock.clock import now_ms

log = logging.getLogger("penstock.broker")

_LONGEST_SLEEP_S: Final = 1.0
"""Seconds after which the clock is read again, because it may have been set."""
_SET_BACK_MS: Final = 500
"""The clock counts as set back if it went this much less far than the loop's clock."""


class ScheduledCall:
    """A call that is due at `due_ms`, unless it is cancelled before."""

    __slots__ = ("callback", "due_ms")

    def __init__(self, due_ms: int, callback: Callable[[], object]) -> None:
        self.due_ms = due_ms
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Drops the call. Does nothing if it was made already."""
        self.callback = None


class Scheduler:
    """All scheduled calls of a broker, with one timer. Create it within the running loop."""

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        """`clock` returns epoch ms."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._calls: list[tuple[int, int, ScheduledCall]] = []
        """A heap: due time, serial number, call. Calls of the same ms are made in the order of their numbers."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._last_look = self._loop.time(), clock()
        """When the clock was last read: the loop's time in seconds, and the clock's in ms."""
        self.on_set_back: list[Callable[[], object]] = []
        """Called after the clock was set back, if calls were due then."""

    def __len__(self) -> int:
        return sum(call.callback is not None for _, _, call in self._calls)

    def call_at(self, due_ms: int, callback: Callable[[], object]) -> ScheduledCall:
        """Calls `callback` once the clock shows `due_ms`, in a later turn of the loop. Logs its errors."""
        call = ScheduledCall(due_ms, callback)
        if not self._calls:
            self._last_look = self._loop.time(), self._clock()
        heapq.heappush(self._calls, (due_ms, next(self._numbers), call))
        if self._calls[0][2] is call:
            self._set_timer()
        return call

    def stop(self) -> None:
        """Drops all calls."""
        self._calls.clear()
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            wait_s = (self._calls[0][0] - self._clock()) / 1000
            self._timer = self._loop.call_later(min(max(wait_s, 0.0), _LONGEST_SLEEP_S), self._run)

    def _run(self) -> None:
        now, last_s, last_ms = self._clock(), *self._last_look
        self._last_look = self._loop.time(), now
        if (self._last_look[0] - last_s) * 1000 - (now - last_ms) > _SET_BACK_MS:
            for listener in self.on_set_back:
                _call(listener)
        due: list[ScheduledCall] = []
        while self._calls and self._calls[0][0] <= now:
            due.append(heapq.heappop(self._calls)[2])
        for call in due:
            if call.callback is not None:
                _call(call.callback)
        self._set_timer()


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        log.exception("a scheduled call failed")
