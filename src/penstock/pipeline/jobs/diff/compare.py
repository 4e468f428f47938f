"""One piece of two sides, read and compared by one worker. Needs pyarrow.

Pages of both sides are cut where the other's end, so that the same offsets lie side by side whatever the pages were.
Columns that are equal as a whole are not looked at row by row. Memory stays at a few pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.pipeline.jobs.diff.content import PLACE, columns, digests
from penstock.pipeline.jobs.diff.pairing import Leftover
from penstock.pipeline.jobs.diff.report import QueueKey
from penstock.pipeline.places import Flaw, Task


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of one queue, on both sides."""

    key: QueueKey
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one worker compares; None where a side has nothing there. Pickled."""

    stretches: tuple[Stretch, ...]
    a: Task | None
    b: Task | None
    exact: bool
    edge: bool = False
    """Whether it lies where only one side has messages: they are looked at only to find those that have moved."""


class Outcome(NamedTuple):
    """How far a stretch of a queue is the same."""

    stretch: int
    """Its number in the piece."""
    same: int
    differs: bool


class _Part(NamedTuple):
    """Messages of one stretch with ascending offsets, none where only flaws came."""

    stretch: int
    batch: pa.RecordBatch
    flaws: tuple[Flaw, ...]

    @property
    def last(self) -> int:
        return int(self.batch.column("queue_offset")[-1].as_py())

    def split(self, last: int) -> tuple[_Part, _Part | None]:
        """What is up to an offset, and what is behind it."""
        count = int(np.searchsorted(self.batch.column("queue_offset").to_numpy(), last, "right"))
        rest = self.batch.slice(count)
        return self._replace(batch=self.batch.slice(0, count)), (
            self._replace(batch=rest, flaws=()) if rest.num_rows else None
        )


def outcomes(piece: Piece) -> list[Outcome]:
    """What came of each stretch."""
    same = [0] * len(piece.stretches)
    differs = [False] * len(piece.stretches)
    for a, b in _side_by_side(piece):
        part = a or b
        assert part is not None, "one side is there"
        equal, rest_a, rest_b = _without_equals(a, b, exact=piece.exact)
        same[part.stretch] += equal
        if rest_a or rest_b or any(each.flaws for each in (a, b) if each):
            differs[part.stretch] = True
    return [Outcome(number, same[number], differs[number]) for number in range(len(same))]


def leftovers(piece: Piece) -> Iterator[Leftover]:
    """What has no equal at the same place of the other side, and what cannot be read."""
    for a, b in _side_by_side(piece):
        _, rest_a, rest_b = _without_equals(a, b, exact=piece.exact)
        for side, part, rows in (("a", a, rest_a), ("b", b, rest_b)):
            if part is None:
                continue
            topic, queue_id = piece.stretches[part.stretch].key
            for flaw in part.flaws:
                at = -1 if flaw.queue_offset is None else flaw.queue_offset
                yield Leftover(side, piece.edge, topic, queue_id, at, "", b"", flaw.what)
            for offset, unique_key, digest in rows:
                yield Leftover(side, piece.edge, topic, queue_id, offset, unique_key, digest, "")


_Row = tuple[int, str, bytes]


def _without_equals(a: _Part | None, b: _Part | None, *, exact: bool) -> tuple[int, list[_Row], list[_Row]]:
    """How many are the same at the same place, and the others of each side."""
    if a is not None and b is not None:
        names = ["queue_offset", *columns(exact=exact)]
        if a.batch.num_rows == b.batch.num_rows and a.batch.select(names).equals(b.batch.select(names)):
            return a.batch.num_rows, [], []
    rows_a, rows_b = _rows(a, exact=exact), _rows(b, exact=exact)
    there = {offset: digest for offset, _, digest in rows_b}
    equal = {offset for offset, _, digest in rows_a if there.get(offset) == digest}
    return (
        len(equal),
        [row for row in rows_a if row[0] not in equal],
        [row for row in rows_b if row[0] not in equal],
    )


def _rows(part: _Part | None, *, exact: bool) -> list[_Row]:
    if part is None or not part.batch.num_rows:
        return []
    offsets = part.batch.column("queue_offset").to_pylist()
    return [(at, key, digest) for at, (key, digest) in zip(offsets, digests(part.batch, exact=exact), strict=True)]


def _side_by_side(piece: Piece) -> Iterator[tuple[_Part | None, _Part | None]]:
    """The same offsets of both sides; None where a side has no messages among them."""
    names = [*PLACE, *columns(exact=piece.exact)]
    numbers = {stretch.key: number for number, stretch in enumerate(piece.stretches)}
    parts_a = _parts(piece.a, names, piece.stretches, numbers)
    parts_b = _parts(piece.b, names, piece.stretches, numbers)
    a, b = next(parts_a, None), next(parts_b, None)
    while a is not None or b is not None:
        if a is not None and (b is None or a.stretch < b.stretch or not a.batch.num_rows):
            yield a, None
            a = next(parts_a, None)
        elif b is not None and (a is None or b.stretch < a.stretch or not b.batch.num_rows):
            yield None, b
            b = next(parts_b, None)
        elif a is not None and b is not None:
            last = min(a.last, b.last)
            (part_a, rest_a), (part_b, rest_b) = a.split(last), b.split(last)
            yield part_a, part_b
            a = rest_a or next(parts_a, None)
            b = rest_b or next(parts_b, None)


def _parts(
    task: Task | None, names: Sequence[str], stretches: Sequence[Stretch], numbers: dict[QueueKey, int]
) -> Iterator[_Part]:
    """What a task reads, cut where another queue begins."""
    for page in task.pages(names) if task is not None else ():
        flaws: dict[int, tuple[Flaw, ...]] = {}
        for flaw in page.flaws:
            number = numbers[QueueKey(flaw.topic or "", flaw.queue_id or 0)]
            flaws[number] = (*flaws.get(number, ()), flaw)
        for number, batch in _by_queue(page.batch, numbers):
            yield _Part(number, batch, flaws.pop(number, ()))
        for number in sorted(flaws):
            yield _Part(number, page.batch.slice(0, 0), flaws[number])


def _by_queue(batch: pa.RecordBatch, numbers: dict[QueueKey, int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    codes, queue_ids = topics.indices.to_numpy(), batch.column("queue_id").to_numpy()
    changes = np.flatnonzero((codes[1:] != codes[:-1]) | (queue_ids[1:] != queue_ids[:-1])) + 1
    starts = [0, *changes.tolist()]
    for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
        key = QueueKey(topics.dictionary[int(codes[start])].as_py(), int(queue_ids[start]))
        yield numbers[key], batch.slice(start, stop - start)
