"""What follows from records of the log: queue units by queue, and keys for the index. The one derivation.

`Deriver` derives consecutive records of one log file with one kernel, `kernels.RangeBuilder`, without the GIL. The
result is a plain value (`DerivedPiece`), so it may come from another thread or process:

- `Dispatcher` derives what was appended, and puts it into queues and index (inline dispatch, recovery)
- `DerivePrefetch` derives ahead on a second thread, for a long recovery
- `scan` derives ranges of the log in workers, for external dispatch; `external_dispatch.packed_units_and_keys` makes
  them small for the way to the driver, and `ScannedPieces` feeds them to a dispatcher
- `store/rebuild` derives ranges with every check, CRC included (`rebuild/ranges.py`)
- `store/audit` derives what a walk has checked, and compares it with queues and index (`audit/ranges.py`)

Nothing here writes a file. Records that were dispatched are not checked again: who appends or recovers the log checks
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from penstock.format import kernels
from penstock.format.damage_placeholder import is_placeholder
from penstock.format.kernel_row_types import Reason
from penstock.format.scan import next_valid
from penstock.store.readonly.view import FilesView
from penstock.store.single_record_reader import max_queue_offset

MAX_RECORDS: Final = 16_384
"""The most records in a piece."""
NO_LIMIT: Final = 2**40
"""For `slack` and `max_runs` of a RangeBuilder."""
KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
"""A key in the key table of a RangeBuilder: its hash, and the physical offset and store time of its record."""


class Keys(NamedTuple):
    """Keys as columns."""

    hashes: kernels.Ints
    offsets: kernels.Longs
    times: kernels.Longs


def key_columns(table: kernels.Buffer, first: int = 0, count: int = -1) -> Keys:
    """Returns copies of `count` keys of a key table from number `first` on; all of them by default."""
    keys = np.frombuffer(table, KEY, count, first * KEY.itemsize) if len(table) else np.empty(0, KEY)
    hashes, offsets, times = (np.ascontiguousarray(keys[name]) for name in ("hash", "offset", "time"))
    return Keys(hashes, offsets, times)


class DerivedPiece(NamedTuple):
    """Consecutive records of one log file, and what follows from them."""

    start: int
    """Physical offset of the first record."""
    stop: int
    """Physical offset before which all of them begin."""
    reached: int
    """Physical offset where deriving stopped."""
    reason: int
    """The Reason why it stopped; FULL if more records may follow at once."""
    newest: int
    """Store time of the last record, or 0."""
    queues: list[kernels.QueuePart]
    keys: memoryview
    """The key table: an array of KEY, in log order."""
    placeholders: list[tuple[int, int]]
    """Offset and size of each placeholder."""


class DeriveSource(Protocol):
    """A supplier of pieces for the steps of a dispatcher."""

    def derive(self, data: memoryview, base: int, start: int, stop: int) -> DerivedPiece:
        """Derives records that begin in [start, stop) of a file that begins at `base`. May return only the first."""
        ...


class Deriver:
    """Derives records on the caller's thread. One thread at a time may use it."""

    def __init__(self, delay_levels: tuple[int, ...], *, with_keys: bool, check_offsets: bool = False) -> None:
        """`check_offsets`: headers may be damaged or forged, so records with an impossible queue offset get no unit."""
        self._delay_levels = delay_levels
        self._with_keys = with_keys
        self._slack = max_queue_offset(0) if check_offsets else NO_LIMIT
        self._topics = kernels.TopicTable()

    def derive(self, data: memoryview, base: int, start: int, stop: int) -> DerivedPiece:
        """Derives the next records, at most MAX_RECORDS."""
        builder = kernels.RangeBuilder(self._topics, self._delay_levels, self._with_keys, None, self._slack, NO_LIMIT)
        reached, reason, _ = builder.take(data, base, start, stop, False, MAX_RECORDS)
        placeholders = [(offset, size) for offset, size, topic in builder.rolled_back if is_placeholder(topic, size)]
        return DerivedPiece(
            base + start,
            base + stop,
            base + reached,
            reason,
            builder.newest,
            builder.queues(),
            builder.key_table(),
            placeholders,
        )


class DerivePrefetch:
    """A second thread that derives the next piece, without the GIL, while the caller builds from the current one.

    The log's files must stay mapped, and only one thread may dispatch.
    """

    def __init__(self, pool: ThreadPoolExecutor, deriver: Deriver) -> None:
        self._pool = pool
        self._deriver = deriver
        self._next_range: tuple[int, int, int] | None = None
        self._next: Future[DerivedPiece] | None = None

    def derive(self, data: memoryview, base: int, start: int, stop: int) -> DerivedPiece:
        """Returns the next records of [start, stop). Starts to derive the records after them."""
        piece = None
        if self._next is not None:
            piece = self._next.result()  # also if it is not wanted after all: it uses the deriver until it ends
        if piece is None or self._next_range != (base, start, stop):
            piece = self._deriver.derive(data, base, start, stop)
        self._next_range = self._next = None
        if piece.reason == Reason.FULL:
            self._next_range = (base, piece.reached - base, stop)
            self._next = self._pool.submit(self._deriver.derive, data, *self._next_range)
        return piece


# -- ranges that workers derive -----------------------------------------------------------------------------------


class LogRange(NamedTuple):
    """The input of a scan: a range of a log, from physical offset `start` to `stop`."""

    folder: Path
    file_size: int
    start: int
    stop: int
    exact: bool
    """Whether a record or a filler begins at `start`; if not, the scan searches for the first one after it."""
    delay_levels: tuple[int, ...]


def cut_range(start: int, stop: int, most: int, least_size: int) -> list[tuple[int, int]]:
    """Splits a range into at most `most` equal parts of at least `least_size` bytes; a shorter range is one part."""
    count = max(1, min(most, (stop - start) // max(least_size, 1)))
    borders = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(pairwise(borders))


def scan(log_range: LogRange) -> Iterator[DerivedPiece]:
    """Yields the pieces of a range in order; skips damage, as dispatch does.

    A range may begin and end at any byte; its records are those that begin in it.
    """
    deriver = Deriver(log_range.delay_levels, with_keys=True)
    with closing(FilesView(log_range.folder, log_range.file_size)) as files:
        position = log_range.start
        exact = log_range.exact
        while position < log_range.stop:
            file = files.find(position)
            if file is None:  # deleted since
                position, exact = position + log_range.file_size - position % log_range.file_size, True
                continue
            stop = min(log_range.stop - file.from_offset, file.size)
            yield from _scan_file(deriver, file.map.view, file.from_offset, position - file.from_offset, stop, exact)
            position, exact = file.from_offset + file.size, True


def _scan_file(
    deriver: Deriver, data: memoryview, base: int, start: int, stop: int, exact: bool
) -> Iterator[DerivedPiece]:
    at = start if exact else next_valid(data, base, start, stop)
    while 0 <= at < stop:
        piece = deriver.derive(data, base, at, stop)
        yield piece
        if piece.reason == Reason.BLANK:
            return
        at = piece.reached - base
        if piece.reason not in (Reason.STOP, Reason.FULL):
            at = next_valid(data, base, at + 1, stop)


class ScannedPieces:
    """Supplies pieces that workers have scanned. If no piece begins at the position, derives the records itself."""

    def __init__(self, deriver: Deriver, pieces: Sequence[DerivedPiece]) -> None:
        self._deriver = deriver
        self._pieces = sorted(pieces, key=lambda piece: piece.start)
        self._next = 0
        self.used = 0
        """How many pieces the dispatcher has used."""

    def derive(self, data: memoryview, base: int, start: int, stop: int) -> DerivedPiece:
        pieces = self._pieces
        while self._next < len(pieces) and pieces[self._next].start < base + start:
            self._next += 1
        piece = pieces[self._next] if self._next < len(pieces) else None
        if piece is None or piece.start >= base + stop:
            return self._deriver.derive(data, base, start, stop)
        if piece.start > base + start:
            return self._deriver.derive(data, base, start, piece.start - base)
        if min(piece.stop, piece.reached) > base + stop:  # it goes past the end of this step
            return self._deriver.derive(data, base, start, stop)
        self._next += 1
        self.used += 1
        return piece
