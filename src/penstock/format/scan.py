"""The walk over a log file: `Scan` yields batches of valid records, fillers, and damage.

Use it wherever records are found by their place in the log. `valid_rows` yields the records alone, `row_at` reads a
single one, `next_valid` finds the next one. Three places walk with a kernel of their own, because they do something
with each record in the same pass: the derivation (`kernels.RangeBuilder`), a start (`log_end_and_damage.py`: only the
end, no rows), and Arrow pages (`kernels.fill_rows`, into Arrow's memory).

A range [start, stop) owns the records that start in it. A file may be split into ranges at arbitrary bytes. Scan all
ranges but the first with `resync`, and all ranges but the last with `overrun`. The scans then yield each record and
each damage exactly once. The range that owns the record before a damage yields the damage.

At an invalid record, the scan searches for the next position with a valid magic, size, lengths, `physicalOffset` and
CRC, and yields the bytes in between as damage. Before that, it checks the invalid position again, because a writer may
have completed the record in the meantime. A copy of a record in the body of another message has a wrong physical
offset, so the scan does not take it for a record.

A scan only reads. It is safe while another process appends. Use `live` to tail a log that is being written. A search
for the next valid record, or for the last byte, skips holes of a file if the scan knows its written ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.format import kernels
from penstock.format.constants import (
    BLANK_HEADER_SIZE,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    MIN_RECORD_SIZE,
    SECTOR_SIZE,
)
from penstock.format.kernel_row_types import Reason
from penstock.format.kernels import Buffer, Rows, Topics
from penstock.format.record_layout import size_and_magic

ROWS_PER_BATCH = 16_384  # 1.7 MB of rows: small enough to stay in the cache
_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


class ScanBatch(NamedTuple):
    """Valid records as ROWs, in log order."""

    rows: Rows


class Blank(NamedTuple):
    """The filler that ends a file. `position` is its physical offset."""

    position: int
    size: int


class Damage(NamedTuple):
    """Bytes between valid records that are not records. `position` is their physical offset."""

    position: int
    size: int
    reason: Reason


Item: TypeAlias = ScanBatch | Blank | Damage


class FedRecords(NamedTuple):
    """A run of valid records that a consumer has taken."""

    position: int
    size: int


RecordConsumer: TypeAlias = Callable[[Buffer, int, int, int], tuple[int, int, int]]
"""A function like `kernels.RangeBuilder.take`, of the data, its physical offset, and the range of record starts."""

WrittenRanges: TypeAlias = Callable[[int], Iterable[tuple[int, int]]]
"""Returns the ranges from a position on that may hold data, such as `FileMap.written_ranges`. All others are zero."""

T = TypeVar("T")


class Scan:
    """One pass over a range of `data`, whose first byte has the physical offset `base`.

    After the pass, `end` is the physical offset up to which all bytes are accounted for. If the pass reached the end of
    the written bytes, `end` is the end of the log.
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
        written: WrittenRanges | None = None,
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
        self._written = written
        self.end = base + start

    def __iter__(self) -> Iterator[Item]:
        return self._pass(self._next_batch)

    def feed(self, consume: RecordConsumer) -> Iterator[FedRecords | Blank | Damage]:
        """Scans like iteration, but passes the records to `consume`, which checks them itself. Yields FedRecords."""
        return self._pass(partial(self._feed_next, consume))

    def _pass(self, walk: Callable[[int, int], tuple[T | None, int, int]]) -> Iterator[T | Blank | Damage]:
        """Yields the results of `walk`, fillers and damage.

        `walk` gets two positions. It returns the valid records between them, the position after these records, and the
        Reason why it stopped.
        """
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
        reached, reason, _ = consume(self._data, self._base, at, stop)
        return FedRecords(self._base + at, reached - at) if reached > at else None, reached, reason

    def _next_batch(self, at: int, stop: int) -> tuple[ScanBatch | None, int, int]:
        rows, reached, reason = kernels.walk(
            self._data, self._base, at, stop, self._check_crc, self._topics, self._rows_per_batch
        )
        return ScanBatch(rows) if len(rows) else None, reached, reason

    def _owns(self, at: int) -> bool:
        """Returns whether this range owns the bytes at `at`. With `overrun`, it also owns damage that follows it."""
        return at < self._stop or (self._overrun and at < self._size and not self._is_valid(at))

    def _classify(self, at: int, reason: Reason) -> tuple[Damage | None, int, bool]:
        """Classifies an invalid position. Returns the damage, or None; the next position; and whether to go on there.

        Does not go on at the end of the log.
        """
        following = self._next_valid(at + 1, self._size)
        unwritten = self._live and following >= 0 and reason is Reason.UNWRITTEN
        if unwritten and unpublished_magic(self._data, self._base, at, following) is not None:
            return None, at, False
        again = Reason(kernels.check_record(self._data, at, self._base, self._check_crc))
        if again in (Reason.STOP, Reason.BLANK):
            return None, at, True
        if following >= 0:
            return Damage(self._base + at, following - at, again), following, True
        if again is Reason.UNWRITTEN:
            return None, at, False
        ranges = ((at, self._size),) if self._written is None else self._written(at)
        end = nonzero_end(kernels.view_of(self._data), ranges, at)
        return Damage(self._base + at, end - at, again), end, False

    def _is_valid(self, at: int) -> bool:
        return kernels.check_record(self._data, at, self._base, True) in (Reason.STOP, Reason.BLANK)

    def _next_valid(self, start: int, stop: int) -> int:
        return next_valid(self._data, self._base, start, stop, self._written)


def unpublished_magic(
    data: Buffer, base: int, at: int, end: int, doubted_from: int = 2**63 - 1, doubted_since: int = 0
) -> int | None:
    """Returns the magic with which data[at:end] becomes a valid record; None if it is not an unpublished record.

    An unpublished record lacks nothing but its size and magic, which are zero. The first record of a batch is
    unpublished until the whole batch is written. Because the size is stored before the magic, the size may be there
    already, and some bytes of the magic; not all of them, because then it is published, and a wrong size is damage.

    A doubted record that lost a sector is none: see `kernels.find_valid_end`. For that, `data` must begin where a
    sector of the file begins.
    """
    if end - at < MIN_RECORD_SIZE:
        return None
    start = at - at % SECTOR_SIZE
    record, place = bytearray(kernels.view_of(data)[start:end]), at % SECTOR_SIZE
    size, found = size_and_magic(record, place)
    if size not in (0, end - at):
        return None
    for magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
        kernels.publish(record, place, end - at, magic)
        if _is_incomplete(found, magic):
            reached, reason, _ = kernels.find_valid_end(
                record, base + start, place, place + 1, True, doubted_from, doubted_since
            )
            if (reached, reason) == (len(record), Reason.STOP):
                return magic
    return None


def _is_incomplete(found: int, magic: int) -> bool:
    """Whether some bytes of a magic are still zero, perhaps all, and the others are right."""
    pairs = zip(found.to_bytes(4, "big"), magic.to_bytes(4, "big"), strict=True)
    return found != magic and all(byte in (0, due) for byte, due in pairs)


scan = Scan  # the verb, for calls; use the class name in annotations


def valid_rows(
    data: Buffer,
    base: int,
    start: int,
    stop: int,
    *,
    check_crc: bool = False,
    topics: Topics | None = None,
    written: WrittenRanges | None = None,
) -> Iterator[Rows]:
    """Yields the valid records that begin in [start, stop), in batches. Skips damage."""
    for item in Scan(data, base, start, stop, check_crc=check_crc, topics=topics, written=written):
        if isinstance(item, ScanBatch):
            yield item.rows


def row_at(data: Buffer, base: int, at: int, *, check_crc: bool = False, topics: Topics | None = None) -> Rows:
    """Returns the record that begins at `at` as an array of one row; an empty array if no valid record begins there."""
    return kernels.walk(data, base, at, at + 1, check_crc, topics, 1)[0]


def next_valid(data: Buffer, base: int, start: int, stop: int, written: WrittenRanges | None = None) -> int:
    """Returns the first position in [start, stop) where a valid record or filler begins; -1 if there is none."""
    for begin, end in ((start, stop),) if written is None else written(start):
        begin = max(begin - BLANK_HEADER_SIZE, start)  # the first bytes of a size may be zeros at the end of a hole
        found = kernels.find_record(data, base, begin, min(end, stop), True)
        if found >= 0 or end >= stop:
            return found
    return -1


def hidden_record(data: Buffer, base: int, filler: Blank) -> int:
    """Returns the position of the first valid record inside a filler; -1 if there is none."""
    return next_valid(data, base, filler.position - base + BLANK_HEADER_SIZE, len(kernels.view_of(data)))


def nonzero_end(view: memoryview, ranges: Iterable[tuple[int, int]], otherwise: int) -> int:
    """Returns the position after the last nonzero byte of the ranges, which are sorted; `otherwise` if all are zero."""
    for begin, end in reversed(list(ranges)):
        end = min(end, len(view))
        while end > begin:
            start = max(begin, end - _CHUNK)
            piece = bytes(view[start:end])  # a copy: another process may be writing here
            if piece != _ZEROS[: len(piece)]:
                return start + len(piece.rstrip(b"\0"))
            end = start
    return otherwise
