"""Which records a range of the log has, by queue, and which of them have their unit.

In a sound store that is one stretch for each queue and range, whatever the number of messages: the covers of
neighbouring ranges are joined into one of both. Plain values, so that they can come from another process.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

QueueName = tuple[str, int]
"""Topic and queue id."""


class Stretch(msgspec.Struct):
    """Records of one queue whose queue offsets follow each other, and where in the log they lie."""

    first: int
    end: int
    physical_first: int
    physical_end: int


class QueueCover(msgspec.Struct):
    """The records of one queue, in log order."""

    records: list[Stretch] = []
    """All of them."""
    matched: list[Stretch] = []
    """Those whose unit is as it should be."""
    missed: list[Stretch] = []
    """The others."""
    unresolved: int = 0
    """Units whose tags code lies in an extension file that is not there."""

    def add(self, first: int, count: int, physical_first: int, physical_end: int, *, matched: bool) -> None:
        """Adds records that follow all those that are there, with queue offsets from `first` on."""
        for stretches in (self.records, self.matched if matched else self.missed):
            _join(stretches, Stretch(first, first + count, physical_first, physical_end))

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


def _join(stretches: list[Stretch], new: Stretch) -> None:
    last = stretches[-1] if stretches else None
    if last is not None and last.end == new.first and last.physical_end <= new.physical_first:
        last.end, last.physical_end = new.end, new.physical_end
    else:
        stretches.append(Stretch(new.first, new.end, new.physical_first, new.physical_end))


def union(stretches: Iterable[Stretch]) -> list[tuple[int, int]]:
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
