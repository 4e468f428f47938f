"""Ranges of the log that hold no messages any more, and how many messages each of them cost.

Damage, holes, missing files, and what a repair has put over them. A unit, an index item or a jump of queue offsets that
leads into one of them is explained by it: it counts there and is no finding of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


class Places:
    """Ranges in order, none of which overlap."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.ranges = sorted(ranges)
        self._begins = np.array([begin for begin, _ in self.ranges], np.int64)
        self._ends = np.array([end for _, end in self.ranges], np.int64)
        self.messages = [0] * len(self.ranges)
        """How many messages each range has cost, as far as queues tell."""

    def find(self, offsets: Longs) -> Longs:
        """For each offset the number of the range that covers it, -1 where none does."""
        numbers = np.searchsorted(self._begins, offsets, side="right") - 1
        if not len(self.ranges):
            return numbers
        return np.where((numbers >= 0) & (offsets < self._ends[numbers]), numbers, -1)

    def between(self, begin: int, end: int) -> int | None:
        """The number of the first range that lies, at least in part, between two positions."""
        number = int(np.searchsorted(self._ends, begin, side="right"))
        return number if number < len(self.ranges) and self.ranges[number][0] < end else None

    def add(self, number: int, messages: int) -> None:
        self.messages[number] += messages
