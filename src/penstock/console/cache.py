"""Answers that are kept for a moment, so that many who look cost as much as one.

What is being asked already is not asked again: who comes meanwhile waits for the same answer. Errors are kept as
briefly as answers are. Belongs to the loop's thread; nothing is refreshed unless somebody asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MOST: Final = 4096


class Cache:
    """By key: the answer, and until when it holds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[T]], seconds: float = 1.0) -> T:
        """What `ask` answers, or answered within the last `seconds`."""
        now = self._clock()
        kept = self._kept.get(key)
        if kept is None or (kept[1].done() and kept[0] <= now):
            if len(self._kept) >= _MOST:
                self._forget_old(now)
            task: asyncio.Future[T] = asyncio.ensure_future(ask())
            task.add_done_callback(lambda done: self._done(key, done, seconds))
            kept = self._kept[key] = (now, task)
        answer: T = await asyncio.shield(kept[1])
        return answer

    def forget(self) -> None:
        """After a change: whoever looks next sees it."""
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[1].done()}

    def _done(self, key: Hashable, done: asyncio.Future[Any], seconds: float) -> None:
        if not done.cancelled():
            done.exception()  # it is told to whoever waits; nobody may be left who does
        kept = self._kept.get(key)
        if kept is not None and kept[1] is done:
            self._kept[key] = (self._clock() + seconds, done)

    def _forget_old(self, now: float) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[1].done() or kept[0] > now}
