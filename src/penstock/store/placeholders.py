"""Where in the log dispatch has come past placeholders, the records that a repair wrote over damage.

A queue whose offsets leave a gap across a placeholder lost messages there: their units point to it. So queues that are
built anew from a repaired log are those that the repair left. Used by whoever dispatches, under its lock.
"""

from __future__ import annotations

from bisect import bisect_left

from penstock.format.queue_unit import PRE_BLANK, pack_unit


class Placeholders:
    """Their positions and sizes, in log order, as far as the log was walked."""

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self.log_is_whole = False
        """Whether the log begins at 0: only then do the first messages of a queue that are missing lie in it."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, found: list[tuple[int, int]]) -> None:
        """Adds those that are not known yet."""
        for offset, size in found:
            at = bisect_left(self._offsets, offset)
            if at == len(self._offsets) or self._offsets[at] != offset:
                self._offsets.insert(at, offset)
                self._sizes.insert(at, size)

    def first_between(self, begin: int, end: int) -> tuple[int, int] | None:
        """(offset, size) of the first one at or behind `begin` and before `end`."""
        at = bisect_left(self._offsets, begin)
        if at == len(self._offsets) or self._offsets[at] >= end:
            return None
        return self._offsets[at], self._sizes[at]

    def last_before(self, offset: int) -> tuple[int, int] | None:
        """(offset, size) of the last one that begins at a position or before it."""
        at = bisect_left(self._offsets, offset + 1) - 1
        return None if at < 0 else (self._offsets[at], self._sizes[at])

    def ending_at(self, end: int) -> tuple[int, int] | None:
        """(offset, size) of the one that ends at a position."""
        found = self.last_before(end - 1)
        return None if found is None or sum(found) != end else found

    def unit_for_gap(self, begin: int, end: int) -> bytes:
        """The unit of a message lost between two positions of the log; one that points to nothing if none covers it.

        `begin` is where the queue's record before it ends, -1 if there is none. If that is a placeholder itself, and no
        other follows, it stands for this one, too.
        """
        if begin < 0 and not self.log_is_whole:
            return PRE_BLANK
        found = self.first_between(max(begin, 0), end) or self.ending_at(begin)
        return PRE_BLANK if found is None else pack_unit(*found, 0)
