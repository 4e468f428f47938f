"""Reads a log range by range: batches of valid records, fillers, and damage as data.

A range [start, stop) owns the records that start in it. When a file is cut into ranges at arbitrary bytes,
all but the first are scanned with `resync` and all but the last with `overrun`: the records then come out
exactly once, and so does each piece of damage, from the range that owns the record before it.

Where a record is not valid, the scan looks for the next position at which magic, size, lengths,
`physicalOffset` and CRC agree, and reports what lies between. Before it does so it looks at the position
again: a writer may have completed the record meanwhile. Only positions and numbers are taken from the data;
a record's copy inside another's body says that it lies elsewhere and is not taken for a record.

Reads only; safe while another process appends. Tailing a log that is being written takes `live`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from penstock.format import kernels
from penstock.format.kernels import Buffer, Rows, Topics
from penstock.format.rows import Reason

ROWS_PER_BATCH = 16_384  # 1.7 MB of rows: small enough to stay in the cache
_CHUNK = 1 << 20


class ScanBatch(NamedTuple):
    """Valid records, in log order."""

    rows: Rows


class Blank(NamedTuple):
    """The filler that ends a file."""

    position: int
    size: int


class Damage(NamedTuple):
    """Bytes between two valid places that are no records."""

    position: int
    size: int
    reason: Reason


Item: TypeAlias = ScanBatch | Blank | Damage


class Taken(NamedTuple):
    """Valid records that were given away, up to one that has lost a sector, if there is one."""

    position: int
    size: int
    torn: int
    """The size of that one, which is not among them; else 0."""


Take: TypeAlias = Callable[[Buffer, int, int, int], tuple[int, int, int, int]]
"""Gets the data, its base, and where records may start; answers as `kernels.RangeBuilder.take` does."""

T = TypeVar("T")


class Scan:
    """One pass over a range. After it, `end` is the physical offset up to which everything was accounted for.

    At the end of the written part, that is where the log ends.
    """

    def __init__(
        self,
        data: Buffer,
        base: int,
        start: int,
        stop: int,
        *,
        check_crc: bool,
        topics: Topics | None = None,
        resync: bool = False,
        overrun: bool = False,
        live: bool = False,
        rows_per_batch: int = ROWS_PER_BATCH,
    ) -> None:
        self._data = data
        self._size = len(kernels.view_of(data))
        self._base = base
        self._start = start
        self._stop = min(stop, self._size)
        self._check_crc = check_crc
        self._topics = topics
        self._resync = resync
        self._overrun = overrun
        self._live = live
        self._rows_per_batch = rows_per_batch
        self.end = base + start

    def __iter__(self) -> Iterator[Item]:
        return self._pass(self._next_batch)

    def giving(self, take: Take) -> Iterator[Taken | Blank | Damage]:
        """The same, with the records given to `take` instead, which checks them itself."""
        return self._pass(partial(self._give, take))

    def _pass(self, walk: Callable[[int, int], tuple[T | None, int, int]]) -> Iterator[T | Blank | Damage]:
        """`walk` gives the next valid records between two positions, the position after them, and why it ends there."""
        at = self._start
        if self._resync:
            at = self._next_valid(at, self._stop)
            if at < 0:
                self.end = self._base + max(self._start, self._stop)
                return
        while self._owns(at):
            stop = self._stop if at < self._stop else at + 1
            found, at, reason = walk(at, stop)
            if found is not None:
                yield found
            if reason in (Reason.FULL, Reason.STOP):
                continue
            if reason == Reason.BLANK:
                yield Blank(self._base + at, self._size - at)
                at = self._size
                break
            item, at, goes_on = self._judge(at, Reason(reason))
            if item is not None:
                yield item
            if not goes_on:
                break
        self.end = self._base + at

    def _give(self, take: Take, at: int, stop: int) -> tuple[Taken | None, int, int]:
        reached, reason, _, torn = take(self._data, self._base, at, stop)
        found = Taken(self._base + at, reached - at, torn)
        return found if found.size or torn else None, reached, reason

    def _next_batch(self, at: int, stop: int) -> tuple[ScanBatch | None, int, int]:
        rows, reached, reason = kernels.walk(
            self._data, self._base, at, stop, self._check_crc, self._topics, self._rows_per_batch
        )
        return ScanBatch(rows) if len(rows) else None, reached, reason

    def _owns(self, at: int) -> bool:
        """Whether what starts here is this range's: with `overrun`, also what the next one would not begin at."""
        return at < self._stop or (self._overrun and at < self._size and not self._is_valid(at))

    def _judge(self, at: int, reason: Reason) -> tuple[Damage | None, int, bool]:
        """What an invalid position is: damage or the end of the log; where to go on, and whether to."""
        found = self._next_valid(at + 1, self._size)
        unwritten = self._live and found >= 0 and reason is Reason.UNWRITTEN
        if unwritten and is_unpublished(self._data, self._base, at, found):
            return None, at, False
        again = Reason(kernels.check_record(self._data, at, self._base, self._check_crc))
        if again in (Reason.STOP, Reason.BLANK):
            return None, at, True
        if found >= 0:
            return Damage(self._base + at, found - at, again), found, True
        if again is Reason.UNWRITTEN:
            return None, at, False
        end = self._last_written(at)
        return Damage(self._base + at, end - at, again), end, False

    def _is_valid(self, at: int) -> bool:
        return kernels.check_record(self._data, at, self._base, True) in (Reason.STOP, Reason.BLANK)

    def _next_valid(self, start: int, stop: int) -> int:
        return kernels.find_record(self._data, self._base, start, stop, True)

    def _last_written(self, at: int) -> int:
        """The position after the last byte that is not zero."""
        view, end = kernels.view_of(self._data), self._size
        while end > at:
            begin = max(at, end - _CHUNK)
            written = np.flatnonzero(np.frombuffer(bytes(view[begin:end]), dtype=np.uint8))
            if len(written):
                return begin + int(written[-1]) + 1
            end = begin
        return at


def is_unpublished(data: Buffer, base: int, at: int, end: int) -> bool:
    """Whether data[at:end] is a record whose size and magic are still to come: the first of a batch, which hides it."""
    head = bytearray(kernels.view_of(data)[at:end])
    kernels.publish(head, 0, len(head))
    return kernels.check_record(head, 0, base + at, True) == Reason.STOP


scan = Scan  # the verb; the class is there for annotations
