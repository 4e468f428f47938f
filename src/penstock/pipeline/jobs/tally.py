"""Counting messages by topic, queue, tag, producer, day and hour: what one piece of a log adds up to, and sums of that.

A tally is small whatever the log's size, so only tallies travel. Sizes of records are counted in classes that are nine
per cent wide, from which percentiles are told to that precision. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from penstock.format.kernels import Ints, Longs

_PER_OCTAVE: Final = 8
CLASSES: Final = 32 * _PER_OCTAVE
"""How many classes of sizes there are."""


class Key(msgspec.Struct, frozen=True, order=True):
    """What was counted together; what a kind of count does not tell apart is empty."""

    by: str
    store: str
    topic: str = ""
    queue_id: int = -1
    tag: str = ""
    host: str = ""
    hour: int = -1
    """Hours since 1970, in UTC; of a day, its first hour."""


class Count(msgspec.Struct):
    """How many messages, how many bytes in the log, from when to when, and how large."""

    messages: int = 0
    size: int = 0
    first_ms: int = 2**63 - 1
    last_ms: int = -(2**63)
    classes: dict[int, int] = {}

    def add(self, other: Count) -> None:
        self.messages += other.messages
        self.size += other.size
        self.first_ms = min(self.first_ms, other.first_ms)
        self.last_ms = max(self.last_ms, other.last_ms)
        for number, count in other.classes.items():
            self.classes[number] = self.classes.get(number, 0) + count

    def percentile(self, share: float) -> int:
        """A size that this share of the messages does not exceed, at most nine per cent too large."""
        wanted, seen = share * self.messages, 0
        for number in sorted(self.classes):
            seen += self.classes[number]
            if seen >= wanted:
                return class_end(number)
        return 0


class Tally(msgspec.Struct):
    """Counts by key. Adding is commutative, so pieces may come in any order."""

    counts: list[tuple[Key, Count]] = []
    flaws: int = 0
    """Places where no record could be read."""


def _class_of(sizes: Ints) -> Longs:
    exponents = np.ceil(np.log2(np.maximum(sizes, 1)) * _PER_OCTAVE - 1e-9)
    return np.clip(exponents, 0, CLASSES - 1).astype(np.int64)


_CLASS_OF_SMALL: Final = _class_of(np.arange(1 << 16, dtype=np.int32))


def size_class(sizes: Ints) -> Longs:
    """The class of a size: all up to its end and above the end of the class before."""
    if len(sizes) and sizes.min() >= 0 and sizes.max() < len(_CLASS_OF_SMALL):
        return np.asarray(_CLASS_OF_SMALL[sizes])
    return _class_of(sizes)


def class_end(number: int) -> int:
    """The largest size of a class."""
    return int(2 ** (number / _PER_OCTAVE) + 1e-6)


def merge(tallies: Iterable[Tally]) -> Tally:
    """The sum, sorted by key."""
    sums: dict[Key, Count] = {}
    flaws = 0
    for tally in tallies:
        flaws += tally.flaws
        for key, count in tally.counts:
            sums.setdefault(key, Count(classes={})).add(count)
    return Tally(sorted(sums.items(), key=lambda each: each[0]), flaws)
