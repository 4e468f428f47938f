"""What dispatch has to know of the records in a range of the log, found out by whoever is told to.

A range is cut at any byte: its records are those that begin in it. What is found goes to the process that builds queues
and index, as bytes. It need not be believed: where a piece does not begin exactly where the builder stands, the builder
looks for itself. Nothing is owned or changed; safe in any number of processes.
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
    """Bytes of a log."""

    folder: Path
    file_size: int
    start: int
    stop: int
    exact: bool
    """Whether a record, or a filler, begins at `start`; else the first one behind it is looked for."""
    delay_levels: tuple[int, ...]


class DerivedRange(msgspec.Struct, frozen=True):
    """Records that follow each other in one file of the log, as `kernels.derive` finds them."""

    start: int
    """Physical offset of the first one."""
    reached: int
    reason: int
    rows: bytes
    hashes: bytes
    numbers: bytes
    topics: list[bytes]

    def derived(self, base: int, topics: kernels.Topics) -> Derived:
        """The same as a step of dispatch takes it, with the numbers that topics have there."""
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
    """A range of the log in pieces of one size: `most` of them, or fewer that have at least `least_size` bytes."""
    count = max(1, min(most, (stop - start) // max(least_size, 1)))
    borders = [start + (stop - start) * number // count for number in range(count + 1)]
    return list(pairwise(borders))


def scan(place: LogRange) -> Iterator[DerivedRange]:
    """The pieces of a range, in order; what is damaged is passed over, as dispatch does."""
    with closing(FilesView(place.folder, place.file_size)) as files:
        position = place.start
        exact = place.exact
        while position < place.stop:
            file = files.find(position)
            if file is None:  # deleted meanwhile
                position, exact = position + place.file_size - position % place.file_size, True
                continue
            stop = min(place.stop - file.from_offset, file.size)
            yield from _scan_file(file.map.view, file.from_offset, position - file.from_offset, stop, exact, place)
            position, exact = file.from_offset + file.size, True


def _scan_file(
    data: memoryview, base: int, start: int, stop: int, exact: bool, place: LogRange
) -> Iterator[DerivedRange]:
    at = start if exact else kernels.find_record(data, base, start, stop, True)
    while 0 <= at < stop:
        topics = kernels.TopicTable()
        room = np.empty(_BATCH_ROWS, ROW)
        rows, reached, reason, hashes, numbers = kernels.derive(data, base, at, stop, topics, place.delay_levels, room)
        names = [topic.encode("utf-8", "surrogateescape") for topic in topics.names]
        parts = rows.tobytes(), hashes.tobytes(), numbers.tobytes()
        yield DerivedRange(base + at, base + reached, int(reason), *parts, names)
        if reason == Reason.BLANK:
            return
        at = reached
        if reason not in (Reason.STOP, Reason.FULL):
            at = kernels.find_record(data, base, reached + 1, stop, True)


class FromPieces:
    """What others have found, for the steps of a dispatcher; where they found nothing, it looks itself."""

    def __init__(self, dispatcher: Dispatcher, pieces: Sequence[DerivedRange]) -> None:
        self._dispatcher = dispatcher
        self._pieces = sorted(pieces, key=lambda piece: piece.start)
        self._next = 0
        self.used = 0
        """How many pieces were of use."""

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
        if len(rows) and int(rows["physical_offset"][-1]) >= base + stop:  # more than may be dispatched now
            return self._dispatcher.derive_now(data, base, start, stop)
        self._next += 1
        self.used += 1
        return derived
