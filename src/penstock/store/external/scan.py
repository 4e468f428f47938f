"""Scans ranges of the log in parallel for the builder of queues and index.

A range may begin and end at any byte; its records are those that begin in it. Workers send the results as bytes to the
process that builds. The builder uses a piece only if it begins exactly at the builder's position, and scans the log
itself otherwise. Read-only; any number of processes may scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.rows import ROW, Reason
from penstock.store.dispatch import Derived, Dispatcher
from penstock.store.readonly.view import FilesView

_BATCH_ROWS = 16_384


class LogRange(NamedTuple):
    """A range of a log, and what is needed to scan it."""

    folder: Path
    file_size: int
    start: int
    stop: int
    exact: bool
    """Whether a record or a filler begins at `start`; if not, the scan searches for the first one after it."""
    delay_levels: tuple[int, ...]


class DerivedRange(msgspec.Struct, frozen=True):
    """Consecutive records of one log file, as `kernels.derive` returns them."""

    start: int
    """Physical offset of the first one."""
    reached: int
    reason: int
    rows: bytes
    hashes: bytes
    numbers: bytes
    topics: list[bytes]

    def derived(self, base: int, topics: kernels.Topics) -> Derived:
        """The input of a dispatch step, with topic ids of that dispatcher."""
        rows = np.frombuffer(self.rows, ROW).copy()
        numbers = np.array([topics.intern(topic) for topic in self.topics], np.int32)
        rows["topic_id"] = numbers[rows["topic_id"]]
        hashes, picks = np.frombuffer(self.hashes, np.int32), np.frombuffer(self.numbers, np.int64)
        return rows, self.reached - base, self.reason, hashes.copy(), picks.copy()


def encode_piece(piece: DerivedRange) -> bytes:
    return msgspec.msgpack.encode(piece)


def decode_piece(data: bytes) -> DerivedRange:
    return msgspec.msgpack.decode(data, type=DerivedRange)


def cut_range(start: int, stop: int, most: int, least_size: int) -> list[tuple[int, int]]:
    """Splits a range into equal pieces: at most `most`, each of at least `least_size` bytes."""
    count = max(1, min(most, (stop - start) // max(least_size, 1)))
    borders = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(pairwise(borders))


def scan(log_range: LogRange) -> Iterator[DerivedRange]:
    """Yields the pieces of a range in order; skips damage, as dispatch does."""
    with closing(FilesView(log_range.folder, log_range.file_size)) as files:
        position = log_range.start
        exact = log_range.exact
        while position < log_range.stop:
            file = files.find(position)
            if file is None:  # deleted since
                position, exact = position + log_range.file_size - position % log_range.file_size, True
                continue
            stop = min(log_range.stop - file.from_offset, file.size)
            yield from _scan_file(file.map.view, file.from_offset, position - file.from_offset, stop, exact, log_range)
            position, exact = file.from_offset + file.size, True


def _scan_file(
    data: memoryview, base: int, start: int, stop: int, exact: bool, log_range: LogRange
) -> Iterator[DerivedRange]:
    at = start if exact else kernels.find_record(data, base, start, stop, True)
    while 0 <= at < stop:
        topics = kernels.TopicTable()
        room = np.empty(_BATCH_ROWS, ROW)
        rows, reached, reason, hashes, numbers = kernels.derive(
            data, base, at, stop, topics, log_range.delay_levels, room
        )
        names = [topic.encode("utf-8", "surrogateescape") for topic in topics.names]
        parts = rows.tobytes(), hashes.tobytes(), numbers.tobytes()
        yield DerivedRange(base + at, base + reached, int(reason), *parts, names)
        if reason == Reason.BLANK:
            return
        at = reached
        if reason not in (Reason.STOP, Reason.FULL):
            at = kernels.find_record(data, base, reached + 1, stop, True)


class ScannedPieces:
    """Feeds scanned pieces to a dispatcher, which scans the log itself where no piece fits."""

    def __init__(self, dispatcher: Dispatcher, pieces: Sequence[DerivedRange]) -> None:
        self._dispatcher = dispatcher
        self._pieces = sorted(pieces, key=lambda piece: piece.start)
        self._next = 0
        self.used = 0
        """How many pieces the dispatcher has used."""

    def derive(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        pieces = self._pieces
        while self._next < len(pieces) and pieces[self._next].start < base + start:
            self._next += 1
        piece = pieces[self._next] if self._next < len(pieces) else None
        if piece is None or piece.start >= base + stop:
            return self._dispatcher.derive_now(data, base, start, stop)
        if piece.start > base + start:
            return self._dispatcher.derive_now(data, base, start, piece.start - base)
        derived = piece.derived(base, self._dispatcher.topics)
        rows = derived[0]
        if len(rows) and int(rows["physical_offset"][-1]) >= base + stop:  # it goes past the end of this step
            return self._dispatcher.derive_now(data, base, start, stop)
        self._next += 1
        self.used += 1
        return derived
