"""When two messages are the same, and a digest of what they are. Pure; needs pyarrow; runs on workers.

Exactly: all that its producer and its broker have said of it, but not where and when it was stored. Loosely: what its
producer meant, so that a copy is the same which was sent once more: body (unpacked), flag, and properties without those
that brokers and clients add.


Messages that have no equal at their place: which have moved, which are different, which are on one side only.

Pure. All leftovers of one topic are matched together, in memory: some 300 bytes each.


One piece of two sides, read and compared by one worker. Needs pyarrow.

Pages of both sides are cut where the other's end, so that the same offsets lie side by side whatever the pages were.
Columns that are equal as a whole are not looked at row by row. Memory stays at a few pages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import BadRequest
from penstock.format.constants import (
    CLUSTER,
    DELAY,
    MAX_RECONSUME_TIMES,
    ORIGIN_MESSAGE_ID,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from penstock.pipeline.jobs.diff.report import (
    DIFFERENT,
    MOVED,
    ONLY_A,
    ONLY_B,
    UNREADABLE_A,
    UNREADABLE_B,
    Difference,
    MessagePosition,
    QueueKey,
)
from penstock.pipeline.ranges import Flaw, ReadTask
from penstock.protocol.compression import inflate_body

PLACE: Final = ("topic", "queue_id", "queue_offset")
EXACT: Final = ("body", "properties", "born_timestamp", "born_host", "flag", "sys_flag", "reconsume_times")
LOOSE: Final = ("body", "properties", "flag", "sys_flag")
_NOT_THE_PRODUCERS: Final = frozenset(
    {CLUSTER, DELAY, MAX_RECONSUME_TIMES, ORIGIN_MESSAGE_ID, PGROUP, REAL_QID, REAL_TOPIC, RECONSUME_TIME}
    | {RETRY_TOPIC, TRAN_MSG, UNIQ_KEY, WAIT, "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET"}
)


def columns(*, exact: bool) -> tuple[str, ...]:
    """The columns of messages that are compared."""
    return EXACT if exact else LOOSE


def digests(batch: pa.RecordBatch, *, exact: bool) -> Iterator[tuple[str, bytes]]:
    """The unique key of each row, empty if it has none, and sixteen bytes that equal messages share."""
    names = columns(exact=exact)
    for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        properties = dict(row["properties"] or ())
        yield properties.get(UNIQ_KEY, ""), _digest(row, properties, exact=exact)


def _digest(row: dict[str, Any], properties: dict[str, str], *, exact: bool) -> bytes:
    body = row["body"]
    if exact:
        rest = [str(row[name]) for name in EXACT[2:]]
    else:
        rest = [str(row["flag"])]
        properties = {name: value for name, value in properties.items() if name not in _NOT_THE_PRODUCERS}
        try:
            body = inflate_body(body, row["sys_flag"])
        except BadRequest:
            rest.append("packed")  # and cannot be unpacked: the same only as another one of this kind
    told = [text for pair in sorted(properties.items()) for text in pair]
    digest = blake2b(body, digest_size=16)
    for text in (str(len(told)), *told, *rest):
        data = text.encode(errors="surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


class Leftover(NamedTuple):
    """A message of one side without an equal at its place; one that cannot be read has no digest, and says why."""

    side: str
    """`a` or `b`."""
    edge: bool
    """Whether it lies where only its side has messages: there it counts only if it has moved."""
    topic: str
    queue_id: int
    queue_offset: int
    unique_key: str
    digest: bytes
    what: str

    @property
    def spot(self) -> MessagePosition:
        return MessagePosition(self.queue_id, self.queue_offset)


Leftovers = list[Leftover]
_Key = Callable[[Leftover], Hashable]
"""What two messages must share to be a pair; None if this one is nobody's."""


def _by_key_and_digest(row: Leftover) -> Hashable:
    return (row.unique_key, row.digest) if row.digest else None


def _by_digest(row: Leftover) -> Hashable:
    return row.digest or None


def _by_key(row: Leftover) -> Hashable:
    return row.unique_key or None


def _by_place(row: Leftover) -> Hashable:
    return None if row.edge else row.spot


_STEPS: tuple[tuple[_Key, str], ...] = (
    (_by_key_and_digest, MOVED),
    (_by_digest, MOVED),
    (_by_key, DIFFERENT),
    (_by_place, DIFFERENT),
)


def pair_up(rows: Iterable[Leftover]) -> list[Difference]:
    """The differences of one topic, by place."""
    ordered = sorted(rows, key=lambda row: row.spot)
    a, b = [row for row in ordered if row.side == "a"], [row for row in ordered if row.side == "b"]
    found, a, b = _unreadable(a, b)
    for key, kind in _STEPS:
        pairs, a, b = _pairs(a, b, key)
        found += [_difference(kind, *pair) for pair in pairs if not (pair[0].edge and pair[1].edge)]
    found += [_difference(ONLY_A, row, None) for row in a if not row.edge]
    found += [_difference(ONLY_B, None, row) for row in b if not row.edge]
    return sorted(found, key=lambda each: each.order)


def _unreadable(a: Leftovers, b: Leftovers) -> tuple[list[Difference], Leftovers, Leftovers]:
    """What cannot be read is told once, with what the other side has at its place."""
    found: list[Difference] = []
    there_a, there_b = {row.spot: row for row in a}, {row.spot: row for row in b}
    told: set[MessagePosition] = set()
    for row in (*a, *b):
        if row.digest or row.spot in told or row.edge:
            continue
        told.add(row.spot)
        kind = UNREADABLE_A if row.side == "a" else UNREADABLE_B
        found.append(_difference(kind, there_a.get(row.spot), there_b.get(row.spot)))
    return (
        found,
        [row for row in a if row.digest and row.spot not in told],
        [row for row in b if row.digest and row.spot not in told],
    )


def _pairs(a: Leftovers, b: Leftovers, key: _Key) -> tuple[list[tuple[Leftover, Leftover]], Leftovers, Leftovers]:
    waiting: dict[Hashable, Leftovers] = {}
    for row in reversed(b):
        if (wanted := key(row)) is not None:
            waiting.setdefault(wanted, []).append(row)
    pairs, rest_a, paired = [], [], set()
    for row in a:
        candidates = waiting.get(wanted) if (wanted := key(row)) is not None else None
        if candidates:
            pairs.append((row, candidates.pop()))
            paired.add(pairs[-1][1].spot)
        else:
            rest_a.append(row)
    return pairs, rest_a, [row for row in b if row.spot not in paired]


def _difference(kind: str, a: Leftover | None, b: Leftover | None) -> Difference:
    row = a or b
    assert row is not None, "a message is somewhere"
    return Difference(
        kind=kind,
        topic=row.topic,
        a=None if a is None else a.spot,
        b=None if b is None else b.spot,
        unique_key=(a and a.unique_key) or (b and b.unique_key) or "",
        what=(a and a.what) or (b and b.what) or "",
    )


@dataclass(frozen=True, slots=True)
class QueueRange:
    """A range of one queue, on both sides."""

    key: QueueKey
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ComparisonTask:
    """What one worker compares; None where a side has nothing there. Pickled."""

    stretches: tuple[QueueRange, ...]
    a: ReadTask | None
    b: ReadTask | None
    exact: bool
    edge: bool = False
    """Whether it lies where only one side has messages: they are looked at only to find those that have moved."""


class QueueComparison(NamedTuple):
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


def outcomes(piece: ComparisonTask) -> list[QueueComparison]:
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
    return [QueueComparison(number, same[number], differs[number]) for number in range(len(same))]


def leftovers(piece: ComparisonTask) -> Iterator[Leftover]:
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


def _side_by_side(piece: ComparisonTask) -> Iterator[tuple[_Part | None, _Part | None]]:
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
    task: ReadTask | None, names: Sequence[str], stretches: Sequence[QueueRange], numbers: dict[QueueKey, int]
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
