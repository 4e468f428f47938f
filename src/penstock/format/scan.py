"""Scans a log range by range: batches of valid records, fillers, and damage as data.

A range [start, stop) owns the records that start in it. When a file is split into ranges at arbitrary bytes, all but
the first are scanned with `resync` and all but the last with `overrun`: then each record, and each piece of damage,
comes out exactly once, the damage from the range that owns the record before it.

At an invalid record, the scan searches the next position at which magic, size, lengths, `physicalOffset` and CRC agree,
and reports the bytes in between as damage. It checks the invalid position again first, because a writer may have
completed the record in the meantime. A copy of a record inside another's body has the wrong physical offset and is not
taken for a record.

Read-only; safe while another process appends. Use `live` to tail a log that is being written.
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
    """Bytes between valid records that are not records."""

    position: int
    size: int
    reason: Reason


Item: TypeAlias = ScanBatch | Blank | Damage


class FedRecords(NamedTuple):
    """A run of valid records passed to a consumer; it ends early at a record that has lost a sector."""

    position: int
    size: int
    torn: int
    """The size of the record that has lost a sector, which is not part of the run; else 0."""


RecordConsumer: TypeAlias = Callable[[Buffer, int, int, int], tuple[int, int, int, int]]
"""Takes the data, its base, and the range of record starts; returns the same as `kernels.RangeBuilder.take`."""

T = TypeVar("T")


class Scan:
    """One pass over a range. Afterwards `end` is the physical offset up to which all bytes are accounted for.

    If the pass reached the end of the written part, `end` is the end of the log.
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

    def feed(self, consume: RecordConsumer) -> Iterator[FedRecords | Blank | Damage]:
        """Like iteration, but passes the records to `consume`, which checks them itself."""
        return self._pass(partial(self._feed_next, consume))

    def _pass(self, walk: Callable[[int, int], tuple[T | None, int, int]]) -> Iterator[T | Blank | Damage]:
        """`walk` returns the valid records between two positions, the position after them, and why it stopped."""
        at = self._start
        if self._resync:
            at = self._next_valid(at, self._stop)
            if at < 0:
                self.end = self._base + max(self._start, self._stop)
                return
        while self._owns(at):
            stop = self._stop if at < self._stop else at + 1
            records, at, reason = walk(at, stop)
            if records is not None:
                yield records
            if reason in (Reason.FULL, Reason.STOP):
                continue
            if reason == Reason.BLANK:
                yield Blank(self._base + at, self._size - at)
                at = self._size
                break
            damage, at, resumes = self._classify(at, Reason(reason))
            if damage is not None:
                yield damage
            if not resumes:
                break
        self.end = self._base + at

    def _feed_next(self, consume: RecordConsumer, at: int, stop: int) -> tuple[FedRecords | None, int, int]:
        reached, reason, _, torn = consume(self._data, self._base, at, stop)
        fed = FedRecords(self._base + at, reached - at, torn)
        return fed if fed.size or torn else None, reached, reason

    def _next_batch(self, at: int, stop: int) -> tuple[ScanBatch | None, int, int]:
        rows, reached, reason = kernels.walk(
            self._data, self._base, at, stop, self._check_crc, self._topics, self._rows_per_batch
        )
        return ScanBatch(rows) if len(rows) else None, reached, reason

    def _owns(self, at: int) -> bool:
        """Whether this range owns the bytes at `at`: with `overrun`, also those where the next range does not start."""
        return at < self._stop or (self._overrun and at < self._size and not self._is_valid(at))

    def _classify(self, at: int, reason: Reason) -> tuple[Damage | None, int, bool]:
        """Whether an invalid position is damage or the end of the log; where to resume, and whether to."""
        following = self._next_valid(at + 1, self._size)
        unwritten = self._live and following >= 0 and reason is Reason.UNWRITTEN
        if unwritten and is_unpublished(self._data, self._base, at, following):
            return None, at, False
        again = Reason(kernels.check_record(self._data, at, self._base, self._check_crc))
        if again in (Reason.STOP, Reason.BLANK):
            return None, at, True
        if following >= 0:
            return Damage(self._base + at, following - at, again), following, True
        if again is Reason.UNWRITTEN:
            return None, at, False
        end = self._last_written(at)
        return Damage(self._base + at, end - at, again), end, False

    def _is_valid(self, at: int) -> bool:
        return kernels.check_record(self._data, at, self._base, True) in (Reason.STOP, Reason.BLANK)

    def _next_valid(self, start: int, stop: int) -> int:
        return kernels.find_record(self._data, self._base, start, stop, True)

    def _last_written(self, at: int) -> int:
        """The position after the last non-zero byte."""
        view, end = kernels.view_of(self._data), self._size
        while end > at:
            begin = max(at, end - _CHUNK)
            written = np.flatnonzero(np.frombuffer(bytes(view[begin:end]), dtype=np.uint8))
            if len(written):
                return begin + int(written[-1]) + 1
            end = begin
        return at


def is_unpublished(data: Buffer, base: int, at: int, end: int) -> bool:
    """Whether data[at:end] is a record without its size and magic: the unpublished first record of a batch."""
    head = bytearray(kernels.view_of(data)[at:end])
    kernels.publish(head, 0, len(head))
    return kernels.check_record(head, 0, base + at, True) == Reason.STOP


scan = Scan  # the verb; the class is there for annotations
