"""Ranges of the log that hold no messages any more, and how many messages each of them cost.

Damage, holes, missing files, and what a repair has put over them. A unit, an index item or a jump of queue offsets that
leads into one of them is explained by it: it counts there and is no finding of its own.


Which records a range of the log has, by queue, and which of them have their unit.

In a sound store that is one stretch for each queue and range, whatever the number of messages: the covers of
neighbouring ranges are joined into one of both. Plain values, so that they can come from another process.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
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


QueueName = tuple[str, int]
"""Topic and queue id."""


class CoveredRun(msgspec.Struct):
    """Records of one queue whose queue offsets follow each other, and where in the log they lie."""

    first: int
    end: int
    physical_first: int
    physical_end: int


class QueueCover(msgspec.Struct):
    """The records of one queue, in log order."""

    records: list[CoveredRun] = []
    """All of them."""
    matched: list[CoveredRun] = []
    """Those whose unit is as it should be."""
    missed: list[CoveredRun] = []
    """The others."""
    unresolved: int = 0
    """Units whose tags code lies in an extension file that is not there."""

    def add(self, first: int, count: int, physical_first: int, physical_end: int, *, matched: bool) -> None:
        """Adds records that follow all those that are there, with queue offsets from `first` on."""
        for stretches in (self.records, self.matched if matched else self.missed):
            _join(stretches, CoveredRun(first, first + count, physical_first, physical_end))

    def extend(self, later: QueueCover) -> None:
        """Adds the records of a later range."""
        self.unresolved += later.unresolved
        for stretches, more in (
            (self.records, later.records),
            (self.matched, later.matched),
            (self.missed, later.missed),
        ):
            for stretch in more:
                _join(stretches, stretch)


def _join(stretches: list[CoveredRun], new: CoveredRun) -> None:
    last = stretches[-1] if stretches else None
    if last is not None and last.end == new.first and last.physical_end <= new.physical_first:
        last.end, last.physical_end = new.end, new.physical_end
    else:
        stretches.append(CoveredRun(new.first, new.end, new.physical_first, new.physical_end))


def union(stretches: Iterable[CoveredRun]) -> list[tuple[int, int]]:
    """The queue offsets of all of them as ranges that neither touch nor overlap, in order."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted((each.first, each.end) for each in stretches):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def without(begin: int, end: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of [begin, end) none of the ranges, which are in order, covers."""
    left = []
    for first, stop in ranges:
        if first > begin:
            left.append((begin, min(first, end)))
        begin = max(begin, stop)
        if begin >= end:
            break
    if begin < end:
        left.append((begin, end))
    return [(first, stop) for first, stop in left if first < stop]
