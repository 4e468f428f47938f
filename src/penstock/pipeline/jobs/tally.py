"""Counting messages by topic, queue, tag, producer, day and hour: what one piece of a log adds up to, and sums of that.

A tally is small whatever the log's size, so only tallies travel. Sizes of records are counted in classes that are nine
per cent wide, from which percentiles are told to that precision. Pure; needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

COLUMNS: Final = ("topic", "queue_id", "tags", "born_host", "store_timestamp", "store_size")
"""The columns of messages that are counted."""

_PER_OCTAVE: Final = 8
_CLASSES: Final = 32 * _PER_OCTAVE
_HOUR_US: Final = 3_600_000_000

Codes = npt.NDArray[np.int64]


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


def size_class(sizes: npt.NDArray[np.int32]) -> Codes:
    """The class of a size: all up to its end and above the end of the class before."""
    exponents = np.ceil(np.log2(np.maximum(sizes, 1)) * _PER_OCTAVE - 1e-9)
    return np.clip(exponents, 0, _CLASSES - 1).astype(np.int64)


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


def count_batch(store: str, batch: pa.RecordBatch) -> Tally:
    """The tally of some messages; `batch` has COLUMNS."""
    if not batch.num_rows:
        return Tally()
    sizes = batch.column("store_size").to_numpy()
    micros = batch.column("store_timestamp").cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    hours = micros // _HOUR_US
    topics, topic_names = _coded(batch.column("topic"))
    tags, tag_names = _coded(batch.column("tags"))
    hosts, host_names = _coded(batch.column("born_host"))
    host_names = [name.rpartition(":")[0] for name in host_names]
    queues = batch.column("queue_id").to_numpy().astype(np.int64)
    measures = micros // 1000, sizes, size_class(sizes)

    def topic(code: int) -> str:
        return topic_names[code]

    counts = [(Key("topic", store, topic(t)), count) for (t,), count in _grouped([topics], *measures)]
    counts += [(Key("queue", store, topic(t), q), count) for (t, q), count in _grouped([topics, queues], *measures)]
    counts += [
        (Key("tag", store, topic(t), tag=tag_names[g]), count) for (t, g), count in _grouped([topics, tags], *measures)
    ]
    counts += [
        (Key("producer", store, topic(t), host=host_names[h]), count)
        for (t, h), count in _grouped([topics, hosts], *measures)
    ]
    counts += [(Key("hour", store, topic(t), hour=h), count) for (t, h), count in _grouped([topics, hours], *measures)]
    counts += [
        (Key("day", store, topic(t), hour=d * 24), count)
        for (t, d), count in _grouped([topics, hours // 24], *measures)
    ]
    return merge([Tally(counts)])


def _coded(column: pa.Array) -> tuple[Codes, list[str]]:
    """Numbers for texts, and the texts; a text that is not there is empty."""
    encoded = column.fill_null("").dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def _grouped(
    keys: Sequence[Codes], times: Codes, sizes: npt.NDArray[np.int32], classes: Codes
) -> Iterable[tuple[tuple[int, ...], Count]]:
    """The counts of rows with equal keys."""
    order = np.lexsort(tuple(reversed(keys)))
    sorted_keys = [key[order] for key in keys]
    changes = np.zeros(len(order), np.bool_)
    changes[0] = True
    for key in sorted_keys:
        changes[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(changes)
    ends = np.append(starts[1:], len(order))
    times, sizes, classes = times[order], sizes[order], classes[order]
    totals = np.add.reduceat(sizes, starts, dtype=np.int64)
    firsts, lasts = np.minimum.reduceat(times, starts), np.maximum.reduceat(times, starts)
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        found, how_often = np.unique(classes[start:end], return_counts=True)
        yield (
            tuple(int(key[start]) for key in sorted_keys),
            Count(
                end - start,
                int(totals[number]),
                int(firsts[number]),
                int(lasts[number]),
                dict(zip(found.tolist(), how_often.tolist(), strict=True)),
            ),
        )
