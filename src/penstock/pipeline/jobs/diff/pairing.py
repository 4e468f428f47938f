"""Messages that have no equal at their place: which have moved, which are different, which are on one side only.

Pure. All leftovers of one topic are matched together, in memory: some 300 bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from penstock.pipeline.jobs.diff.report import (
    DIFFERENT,
    MOVED,
    ONLY_A,
    ONLY_B,
    UNREADABLE_A,
    UNREADABLE_B,
    Difference,
    Spot,
)


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
    def spot(self) -> Spot:
        return Spot(self.queue_id, self.queue_offset)


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
    told: set[Spot] = set()
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
