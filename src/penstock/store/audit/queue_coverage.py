"""Sets of ranges: which parts of the log hold no messages, and which records of each queue have their unit.

`RangeTable` looks offsets up in damaged, missing or repaired ranges. Such a range explains each unit, index item or gap
in queue offsets that points into it: these are counted in the range, and are no findings of their own.

`QueueCover` says which records of one queue are in a range of the log, and which of them have their unit. It holds runs
of consecutive queue offsets. In a sound store there is one run per queue and range, whatever the number of messages,
and the runs of adjacent ranges join into one. Covers are plain values, so they can come from another process.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
_MAX_LONG = 2**63 - 1


class RangeTable:
    """Sorted ranges that do not overlap, each with a count of lost messages."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.ranges = sorted(ranges)
        self._begins = np.array([begin for begin, _ in self.ranges], np.int64)
        self._ends = np.array([min(end, _MAX_LONG) for _, end in self.ranges], np.int64)
        self.messages = [0] * len(self.ranges)
        """How many messages were lost in each range, as far as the queues show."""

    def find(self, offsets: Longs) -> Longs:
        """Returns, for each offset, the number of the range that contains it, or -1."""
        numbers = np.searchsorted(self._begins, offsets, side="right") - 1
        if not len(self.ranges):
            return numbers
        return np.where((numbers >= 0) & (offsets < self._ends[numbers]), numbers, -1)

    def first_overlap(self, begin: int, end: int) -> int | None:
        """Returns the number of the first range that overlaps [begin, end), or None."""
        number = int(np.searchsorted(self._ends, begin, side="right"))
        return number if number < len(self.ranges) and self.ranges[number][0] < end else None

    def add(self, number: int, messages: int) -> None:
        self.messages[number] += messages


# -- records of a queue -------------------------------------------------------------------------------------------

QueueName = tuple[str, int]
"""Topic and queue id."""


class CoveredRun(msgspec.Struct):
    """Records of one queue with the queue offsets [first, end), within the log range [physical_first, physical_end)."""

    first: int
    end: int
    physical_first: int
    physical_end: int


class QueueCover(msgspec.Struct):
    """The records of one queue, in log order."""

    records: list[CoveredRun] = []
    """All records."""
    matched: list[CoveredRun] = []
    """Records whose unit has their offset, size and tags code."""
    missed: list[CoveredRun] = []
    """Records whose unit is wrong or missing."""
    unresolved: int = 0
    """Units whose tags code is in an extension file that does not exist."""

    def add(self, first: int, count: int, physical_first: int, physical_end: int, *, matched: bool) -> None:
        """Adds `count` records with queue offsets from `first` on. They must lie after all others in the log."""
        for runs in (self.records, self.matched if matched else self.missed):
            _join(runs, CoveredRun(first, first + count, physical_first, physical_end))

    def extend(self, later: QueueCover) -> None:
        """Adds the records of a later range of the log."""
        self.unresolved += later.unresolved
        for runs, more in (
            (self.records, later.records),
            (self.matched, later.matched),
            (self.missed, later.missed),
        ):
            for run in more:
                _join(runs, run)


def _join(runs: list[CoveredRun], new: CoveredRun) -> None:
    last = runs[-1] if runs else None
    if last is not None and last.end == new.first and last.physical_end <= new.physical_first:
        last.end, last.physical_end = new.end, new.physical_end
    else:
        runs.append(CoveredRun(new.first, new.end, new.physical_first, new.physical_end))


def union(runs: Iterable[CoveredRun]) -> list[tuple[int, int]]:
    """Returns the queue offsets of all runs as sorted ranges that neither touch nor overlap."""
    joined: list[tuple[int, int]] = []
    for first, end in sorted((each.first, each.end) for each in runs):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def without(begin: int, end: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the parts of [begin, end) that are in none of the sorted ranges."""
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
