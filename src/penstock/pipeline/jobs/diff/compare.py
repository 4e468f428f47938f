"""Compares two sides: equality of messages, matching of leftovers, and a worker's task. Pure. Needs pyarrow.

Exact equality compares everything that producer and broker recorded, except the place and time of storing. Loose
equality compares only the data that the producer sent: unpacked body, flag, and properties without those that brokers
and clients add. A replayed copy is therefore equal.

A worker cuts the pages of both sides at common offsets, so that equal offsets align. If whole columns are equal, it
does not compare rows. Its memory is a few pages. A leftover is a message without an equal at its position. Leftovers
are matched per topic: they have moved, are different, or exist on one side only.
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
from penstock.pipeline.offset_ranges import Flaw, ReadTask
from penstock.protocol.compression import inflate_body

# -- equality --------------------------------------------------------------------------------------------------------

POSITION: Final = ("topic", "queue_id", "queue_offset")
EXACT: Final = ("body", "properties", "born_timestamp", "born_host", "flag", "sys_flag", "reconsume_times")
LOOSE: Final = ("body", "properties", "flag", "sys_flag")
_BROKER_PROPERTIES: Final = frozenset(
    {CLUSTER, DELAY, MAX_RECONSUME_TIMES, ORIGIN_MESSAGE_ID, PGROUP, REAL_QID, REAL_TOPIC, RECONSUME_TIME}
    | {RETRY_TOPIC, TRAN_MSG, UNIQ_KEY, WAIT, "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET"}
)


def columns(*, exact: bool) -> tuple[str, ...]:
    """Returns the message columns that are compared."""
    return EXACT if exact else LOOSE


def digests(batch: pa.RecordBatch, *, exact: bool) -> Iterator[tuple[str, bytes]]:
    """Yields each row's unique key, or "", and a digest of 16 bytes. Equal messages have equal digests."""
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
        properties = {name: value for name, value in properties.items() if name not in _BROKER_PROPERTIES}
        try:
            body = inflate_body(body, row["sys_flag"])
        except BadRequest:
            rest.append("packed")  # cannot be unpacked: equal only to a message that cannot be unpacked either
    pairs = [text for pair in sorted(properties.items()) for text in pair]
    digest = blake2b(body, digest_size=16)
    for text in (str(len(pairs)), *pairs, *rest):
        data = text.encode(errors="surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


# -- matching leftovers ----------------------------------------------------------------------------------------------


class Leftover(NamedTuple):
    """A message without an equal at its position on the other side.

    If the message is unreadable, `digest` is empty and `what` has the reason.
    """

    side: str
    """`a` or `b`."""
    edge: bool
    """Whether only this side has messages in that range. Such a message counts only if it has moved."""
    topic: str
    queue_id: int
    queue_offset: int
    unique_key: str
    digest: bytes
    what: str

    @property
    def position(self) -> MessagePosition:
        return MessagePosition(self.queue_id, self.queue_offset)


Leftovers = list[Leftover]
_Key = Callable[[Leftover], Hashable]
"""A function that returns the value by which two messages are paired, or None if the message cannot be paired."""


def _by_key_and_digest(row: Leftover) -> Hashable:
    return (row.unique_key, row.digest) if row.digest else None


def _by_digest(row: Leftover) -> Hashable:
    return row.digest or None


def _by_key(row: Leftover) -> Hashable:
    return row.unique_key or None


def _by_position(row: Leftover) -> Hashable:
    return None if row.edge else row.position


_MATCH_STEPS: tuple[tuple[_Key, str], ...] = (
    (_by_key_and_digest, MOVED),
    (_by_digest, MOVED),
    (_by_key, DIFFERENT),
    (_by_position, DIFFERENT),
)


def pair_up(rows: Iterable[Leftover]) -> list[Difference]:
    """Pairs the leftovers of one topic and returns the differences, sorted by position.

    Works in memory, with about 300 bytes per message.
    """
    ordered = sorted(rows, key=lambda row: row.position)
    a, b = [row for row in ordered if row.side == "a"], [row for row in ordered if row.side == "b"]
    found, a, b = _unreadable(a, b)
    for key, kind in _MATCH_STEPS:
        pairs, a, b = _pairs(a, b, key)
        found += [_difference(kind, *pair) for pair in pairs if not (pair[0].edge and pair[1].edge)]
    found += [_difference(ONLY_A, row, None) for row in a if not row.edge]
    found += [_difference(ONLY_B, None, row) for row in b if not row.edge]
    return sorted(found, key=lambda each: each.order)


def _unreadable(a: Leftovers, b: Leftovers) -> tuple[list[Difference], Leftovers, Leftovers]:
    """Returns a difference for each position with an unreadable message, and the other leftovers of each side.

    The difference also has the other side's message at that position.
    """
    found: list[Difference] = []
    at_a, at_b = {row.position: row for row in a}, {row.position: row for row in b}
    reported: set[MessagePosition] = set()
    for row in (*a, *b):
        if row.digest or row.position in reported or row.edge:
            continue
        reported.add(row.position)
        kind = UNREADABLE_A if row.side == "a" else UNREADABLE_B
        found.append(_difference(kind, at_a.get(row.position), at_b.get(row.position)))
    return (
        found,
        [row for row in a if row.digest and row.position not in reported],
        [row for row in b if row.digest and row.position not in reported],
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
            paired.add(pairs[-1][1].position)
        else:
            rest_a.append(row)
    return pairs, rest_a, [row for row in b if row.position not in paired]


def _difference(kind: str, a: Leftover | None, b: Leftover | None) -> Difference:
    row = a or b
    assert row is not None, "a message is somewhere"
    return Difference(
        kind=kind,
        topic=row.topic,
        a=None if a is None else a.position,
        b=None if b is None else b.position,
        unique_key=(a and a.unique_key) or (b and b.unique_key) or "",
        what=(a and a.what) or (b and b.what) or "",
    )


# -- a worker's task -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queue offsets `start` to `stop` (exclusive) of one queue, on both sides."""

    key: QueueKey
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ComparisonTask:
    """The ranges that one worker compares. `a` or `b` is None if that side has no messages there. Spark pickles it."""

    ranges: tuple[QueueRange, ...]
    a: ReadTask | None
    b: ReadTask | None
    exact: bool
    edge: bool = False
    """Whether only one side has messages in the ranges. They are then read only to find moved messages."""


class QueueComparison(NamedTuple):
    """The outcome for one range of a queue: the number of equal messages, and whether any message differs."""

    range_index: int
    """The position of the range in the task's `ranges`."""
    same: int
    differs: bool


class _Part(NamedTuple):
    """Messages of one range with ascending offsets, and flaws. `batch` is empty if there are only flaws."""

    range_index: int
    batch: pa.RecordBatch
    flaws: tuple[Flaw, ...]

    @property
    def last(self) -> int:
        return int(self.batch.column("queue_offset")[-1].as_py())

    def split(self, last: int) -> tuple[_Part, _Part | None]:
        """Returns the part up to the offset `last` (inclusive), and the part after it, or None if that is empty."""
        count = int(np.searchsorted(self.batch.column("queue_offset").to_numpy(), last, "right"))
        rest = self.batch.slice(count)
        return self._replace(batch=self.batch.slice(0, count)), (
            self._replace(batch=rest, flaws=()) if rest.num_rows else None
        )


def outcomes(task: ComparisonTask) -> list[QueueComparison]:
    """Compares the ranges of a task. Returns the outcome for each range, in order."""
    same = [0] * len(task.ranges)
    differs = [False] * len(task.ranges)
    for a, b in _aligned_parts(task):
        part = a or b
        assert part is not None, "one side is there"
        equal, rest_a, rest_b = _unmatched(a, b, exact=task.exact)
        same[part.range_index] += equal
        if rest_a or rest_b or any(each.flaws for each in (a, b) if each):
            differs[part.range_index] = True
    return [QueueComparison(number, same[number], differs[number]) for number in range(len(same))]


def leftovers(task: ComparisonTask) -> Iterator[Leftover]:
    """Yields the messages without an equal at the same position on the other side, and the unreadable messages."""
    for a, b in _aligned_parts(task):
        _, rest_a, rest_b = _unmatched(a, b, exact=task.exact)
        for side, part, rows in (("a", a, rest_a), ("b", b, rest_b)):
            if part is None:
                continue
            topic, queue_id = task.ranges[part.range_index].key
            for flaw in part.flaws:
                at = -1 if flaw.queue_offset is None else flaw.queue_offset
                yield Leftover(side, task.edge, topic, queue_id, at, "", b"", flaw.what)
            for offset, unique_key, digest in rows:
                yield Leftover(side, task.edge, topic, queue_id, offset, unique_key, digest, "")


_Row = tuple[int, str, bytes]


def _unmatched(a: _Part | None, b: _Part | None, *, exact: bool) -> tuple[int, list[_Row], list[_Row]]:
    """Returns the number of equal messages at equal positions, and the other messages of side a and of side b."""
    if a is not None and b is not None:
        names = ["queue_offset", *columns(exact=exact)]
        if a.batch.num_rows == b.batch.num_rows and a.batch.select(names).equals(b.batch.select(names)):
            return a.batch.num_rows, [], []
    rows_a, rows_b = _rows(a, exact=exact), _rows(b, exact=exact)
    by_offset = {offset: digest for offset, _, digest in rows_b}
    equal = {offset for offset, _, digest in rows_a if by_offset.get(offset) == digest}
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


def _aligned_parts(task: ComparisonTask) -> Iterator[tuple[_Part | None, _Part | None]]:
    """Yields parts of both sides that cover the same offsets. A part is None if its side has no messages there."""
    names = [*POSITION, *columns(exact=task.exact)]
    numbers = {each.key: number for number, each in enumerate(task.ranges)}
    parts_a = _parts(task.a, names, numbers)
    parts_b = _parts(task.b, names, numbers)
    a, b = next(parts_a, None), next(parts_b, None)
    while a is not None or b is not None:
        if a is not None and (b is None or a.range_index < b.range_index or not a.batch.num_rows):
            yield a, None
            a = next(parts_a, None)
        elif b is not None and (a is None or b.range_index < a.range_index or not b.batch.num_rows):
            yield None, b
            b = next(parts_b, None)
        elif a is not None and b is not None:
            last = min(a.last, b.last)
            (part_a, rest_a), (part_b, rest_b) = a.split(last), b.split(last)
            yield part_a, part_b
            a = rest_a or next(parts_a, None)
            b = rest_b or next(parts_b, None)


def _parts(task: ReadTask | None, names: Sequence[str], numbers: dict[QueueKey, int]) -> Iterator[_Part]:
    """Yields a task's pages, split by queue. `numbers` has the number of each queue's range."""
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
