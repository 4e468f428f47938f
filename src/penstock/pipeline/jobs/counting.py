"""Counts the records of a log into a tally, some at a time.

Records are numbered by what they are counted by, a few thousand at once so that their bytes are still in the cache, and
added up many thousands at once. Memory: that, and the keys there are. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from penstock.format import kernels
from penstock.format.constants import TAGS
from penstock.format.hosts import decode_host
from penstock.format.kernels import Buffer, Ints, Longs, Rows
from penstock.format.sys_flag import BORN_HOST_V6
from penstock.pipeline.jobs.tally import CLASSES, Count, Key, Tally, merge, size_class

_ROWS_ADDED_UP: Final = 1 << 16
_CODES_IN_A_TABLE: Final = 1 << 20
_HOUR_MS: Final = 3_600_000
_MOST_MS: Final = (2**63 - 1) // 1000
_BORN_HOST_AT: Final = 48
_FIELDS: Final = (
    "topic_at",
    "topic_length",
    "queue_id",
    "properties_at",
    "properties_length",
    "sys_flag",
    "store_timestamp",
    "size",
)

Texts = tuple[Longs, Ints]
"""Where texts lie in the data, and how long they are."""


class Counting:
    """`add` records, in any order; then ask for their `tally`."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._topics: dict[bytes, int] = {}
        self._queues, self._tags, self._hosts, self._hours = (_Groups() for _ in range(4))
        self._times: list[Longs] = []
        self._sizes: list[Ints] = []
        self._waiting = 0

    def add(self, data: Buffer, starts: Longs, rows: Rows) -> None:
        """Takes records: the bytes of a log file, where in them the records begin, and their rows."""
        if not len(rows):
            return
        field: dict[str, Any] = dict(zip(_FIELDS, kernels.row_fields(rows, _FIELDS), strict=True))
        view, nothing = kernels.view_of(data), np.zeros(len(rows), np.int64)
        none: Texts = nothing, np.zeros(len(rows), np.int32)
        times = _moments(field["store_timestamp"])

        names: Texts = starts + field["topic_at"], field["topic_length"]
        numbers, firsts = kernels.number_groups(data, *names, nothing)
        known = [self._topics.setdefault(_bytes(view, names, row), len(self._topics)) for row in firsts.tolist()]
        topics = np.array(known, np.int64)[numbers]
        shifted = topics << 32

        queues = field["queue_id"]
        self._queues.add(b"", none, shifted | queues.view(np.uint32), topics, lambda row: int(queues[row]))
        properties = starts + field["properties_at"], field["properties_length"]
        tags = kernels.find_values(data, *properties, (TAGS.encode(),))[0]
        self._tags.add(data, tags, topics, topics, lambda row: _bytes(view, tags, row))
        wide = field["sys_flag"] & BORN_HOST_V6
        hosts: Texts = starts + _BORN_HOST_AT, np.where(wide, np.int32(16), np.int32(4))
        self._hosts.add(data, hosts, topics, topics, lambda row: _bytes(view, hosts, row))
        hours = times // _HOUR_MS
        self._hours.add(b"", none, shifted | _numbered(hours, none), topics, lambda row: int(hours[row]))

        self._times.append(times)
        self._sizes.append(field["size"])
        self._waiting += len(rows)
        if self._waiting >= _ROWS_ADDED_UP:
            self._add_up()

    def tally(self) -> Tally:
        """What has been counted so far."""
        self._add_up()
        store, names = self._store, [name.decode("utf-8", "replace") for name in self._topics]
        counts = [(Key("queue", store, names[topic], queue), each) for topic, queue, each in self._queues.counts()]
        counts += [
            (Key("tag", store, names[topic], tag=tag.decode("utf-8", "replace")), each)
            for topic, tag, each in self._tags.counts()
        ]
        counts += [
            (Key("producer", store, names[topic], host=_address(host)), each)
            for topic, host, each in self._hosts.counts()
        ]
        for topic, hour, each in self._hours.counts():
            counts += [
                (Key("topic", store, names[topic]), each),
                (Key("hour", store, names[topic], hour=hour), each),
                (Key("day", store, names[topic], hour=hour - hour % 24), each),
            ]
        return merge([Tally(counts)])

    def _add_up(self) -> None:
        if not self._waiting:
            return
        times, sizes = np.concatenate(self._times), np.concatenate(self._sizes)
        classes = size_class(sizes)
        for groups in (self._queues, self._tags, self._hosts, self._hours):
            groups.add_up(times, sizes, classes)
        self._times, self._sizes, self._waiting = [], [], 0


class _Groups:
    """Records counted together: those with the same topic and the same queue, tag, host or hour."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any], int] = {}
        self._numbers: list[Ints] = []
        self._sums: list[Count] = []

    def add(self, data: Buffer, texts: Texts, values: Longs, topics: Longs, key: Callable[[int], Any]) -> None:
        """Takes records that are alike where text and value are; `key` is what the one of a row is known by."""
        numbers, firsts = kernels.number_groups(data, *texts, values)
        known = [
            self._known.setdefault((topic, key(row)), len(self._known))
            for topic, row in zip(topics[firsts].tolist(), firsts.tolist(), strict=True)
        ]
        self._numbers.append(np.array(known, np.int32)[numbers])

    def add_up(self, times: Longs, sizes: Ints, classes: Longs) -> None:
        """Adds up all that was taken since the last time."""
        numbers, count = np.concatenate(self._numbers), len(self._known)
        self._numbers = []
        self._sums += [Count(classes={}) for _ in range(count - len(self._sums))]
        columns = (each.tolist() for each in kernels.sum_groups(numbers, count, times, sizes))
        for known, messages, size, first_ms, last_ms in zip(self._sums, *columns, strict=True):
            if messages:
                known.add(Count(messages, size, first_ms, last_ms, {}))
        for number, size_number, messages in _class_counts(numbers, count, classes):
            of_sizes = self._sums[number].classes
            of_sizes[size_number] = of_sizes.get(size_number, 0) + messages

    def counts(self) -> Iterator[tuple[int, Any, Count]]:
        """The topic's number, the key and the count of each group."""
        for (topic, key), each in zip(self._known, self._sums, strict=True):
            yield topic, key, each


def _class_counts(numbers: Ints, count: int, classes: Longs) -> Iterator[tuple[int, int, int]]:
    """How many records of each group have sizes of each class."""
    codes = numbers * np.int64(CLASSES) + classes
    if count * CLASSES <= _CODES_IN_A_TABLE:
        table = np.bincount(codes)
        found = np.flatnonzero(table)
        often = table[found]
    else:
        found, often = np.unique(codes, return_counts=True)
    for code, messages in zip(found.tolist(), often.tolist(), strict=True):
        yield code // CLASSES, code % CLASSES, messages


def _moments(times: Longs) -> Longs:
    """Times in milliseconds; one that no clock can have shown counts as the first."""
    if times.min() >= -_MOST_MS and times.max() <= _MOST_MS:
        return times
    return np.where((times >= -_MOST_MS) & (times <= _MOST_MS), times, np.int64(0))


def _numbered(hours: Longs, none: Texts) -> Longs:
    """Small numbers for hours; as a rule there is one."""
    if hours.min() == hours.max():
        return none[0]
    return kernels.number_groups(b"", *none, hours)[0].astype(np.int64)


def _bytes(view: memoryview, texts: Texts, row: int) -> bytes:
    place, length = int(texts[0][row]), int(texts[1][row])
    return bytes(view[place : place + length]) if length > 0 else b""


def _address(host: bytes) -> str:
    """An address as text, without a port."""
    return decode_host(host + bytes(4)).rpartition(":")[0]
