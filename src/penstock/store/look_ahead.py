"""Walks the log one step ahead of who builds queues and index from it, so that two cores share the work.

The kernel that walks runs without the GIL. What it finds lies in one of two arrays: the one that is being built from,
and the one that is being filled. The log's files must stay mapped meanwhile, and nobody else may dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeAlias

from penstock.format import kernels
from penstock.format.rows import Reason

Derived: TypeAlias = tuple[kernels.Rows, int, int, kernels.Ints, kernels.Longs]
"""What `kernels.derive` returns: rows, where it stopped, why, and the hashes of the keys with their rows."""
Derive: TypeAlias = Callable[[memoryview, int, int, int, kernels.Rows], Derived]
_Place: TypeAlias = tuple[int, int, int]


class Ahead(Protocol):
    """Who knows what the next records are before they are asked for."""

    def take(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        """The records of [start, stop) of a file that begins at `base`, or the first of them."""
        ...


class LookAhead:
    """The step that is being looked at, if any."""

    def __init__(self, pool: ThreadPoolExecutor, derive: Derive, rooms: tuple[kernels.Rows, kernels.Rows]) -> None:
        self._pool = pool
        self._derive = derive
        self._rooms = rooms
        self._turn = 0
        self._place: _Place | None = None
        self._coming: Future[Derived] | None = None

    def take(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        """The records of [start, stop), as many as an array holds; those behind them are looked at from now on."""
        if self._coming is not None and self._place == (base, start, stop):
            found = self._coming.result()
        else:
            if self._coming is not None:
                self._coming.result()  # of a place that is not wanted after all; its array is in use until then
            found = self._derive(data, base, start, stop, self._rooms[self._turn])
        self._turn = 1 - self._turn
        self._place = self._coming = None
        _, reached, reason, _, _ = found
        if reason == Reason.FULL:
            self._place = (base, reached, stop)
            self._coming = self._pool.submit(self._derive, data, base, reached, stop, self._rooms[self._turn])
        return found
