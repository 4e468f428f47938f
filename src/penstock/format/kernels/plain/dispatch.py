"""What dispatch derives from records: tag codes, keys, queue units. Twin of dispatch.pxi.

Rows come from `walk` over the same data; a row outside the data raises ValueError.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

import numpy as np

from penstock.format.constants import MAX_PROPERTIES_LENGTH, MIN_RECORD_SIZE, SCHEDULE_TOPIC
from penstock.format.kernels.parameter_types import Buffer, Ints, Longs, QueuePart, Rows, UnitRun
from penstock.format.kernels.plain.record import (
    TopicTable,
    checked_rows,
    examine,
    java_hash,
    view_of,
    walk,
)
from penstock.format.queue_unit import pack_unit
from penstock.format.record_layout import physical_offset_of
from penstock.format.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)

_DELAY_LEVEL = re.compile(rb"([+-]?)0*([0-9]{1,10})")
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_KEY = struct.Struct("<iqq")  # hash, physical offset, store timestamp
_MAX_LONG = 2**63 - 1
_QueueKey = tuple[int, int]  # topic id, queue id


def find_property(data: Buffer, at: int, name: bytes) -> bytes | None:
    """Returns the value of a property of the record at `at`, or None.

    Raises ValueError if no record with valid lengths starts there.
    """
    view = view_of(data)
    if at < 0 or at + MIN_RECORD_SIZE > len(view):
        raise ValueError(f"no record starts at {at}")
    reason, row = examine(view, at, physical_offset_of(view, at) - at, check_crc=False)
    if row is None:
        raise ValueError(f"no record starts at {at}: {reason.name}")
    properties_at, size = at + row[17], row[6]
    return _last_value(bytes(view[properties_at : at + size]), name)


def tag_codes(data: Buffer, base: int, rows: Rows, delay_levels: tuple[int, ...]) -> None:
    """Fills rows["tags_code"]: the tag's hash, or in the schedule topic the time of delivery in milliseconds."""
    for number, (topic, properties) in enumerate(_texts(data, base, rows)):
        delay = _last_value(properties, b"DELAY") if topic == _SCHEDULE_TOPIC else None
        level = min(_delay_level(delay), len(delay_levels))
        if level > 0:
            code = int(rows["store_timestamp"][number]) + delay_levels[level - 1]
            rows["tags_code"][number] = (code + 2**63) % 2**64 - 2**63
        else:
            rows["tags_code"][number] = _hash_of(_last_value(properties, b"TAGS") or b"")


def _index_keys(data: Buffer, base: int, rows: Rows) -> tuple[Ints, Longs]:
    """Returns (index hash of every key of every row, number of its row)."""
    hashes, numbers = [], []
    for number, (topic, properties) in enumerate(_texts(data, base, rows)):
        if rows["sys_flag"][number] & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            continue
        keys = [_last_value(properties, b"UNIQ_KEY") or b""]
        keys += (_last_value(properties, b"KEYS") or b"").split(b" ")
        for key in keys:
            if key:
                code = abs(_hash_of(topic + b"#" + key))
                hashes.append(0 if code == 2**31 else code)
                numbers.append(number)
    return np.array(hashes, dtype=np.int32), np.array(numbers, dtype=np.int64)


def group_rows(rows: Rows) -> list[tuple[int, int, Longs]]:
    """Groups the rows that get a queue unit; returns (topic_id, queue_id, row numbers) by first appearance.

    Prepared and rolled back messages get none.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    types = checked_rows(rows)["sys_flag"] & TRANSACTION_MASK
    for number in np.flatnonzero((types == TRANSACTION_NONE) | (types == TRANSACTION_COMMIT)).tolist():
        key = (int(rows["topic_id"][number]), int(rows["queue_id"][number]))
        groups.setdefault(key, []).append(number)
    return [(*key, np.array(numbers, dtype=np.int64)) for key, numbers in groups.items()]


class RangeBuilder:
    """Walks ranges of the log and builds queue units, keys, and a list of rolled back messages. Not thread-safe.

    topics        numbers the topics
    delay_levels  the delay of each level in milliseconds
    with_keys     whether to collect keys
    since         called once per queue with (topic, queue id): the physical offset from which its records get units;
                  None: all records get units
    slack         a record gets no unit if its queue offset exceeds physical offset / 91 (the smallest record) + slack
    max_runs      a queue with more than this many runs of consecutive queue offsets is dropped
    """

    def __init__(
        self,
        topics: TopicTable,
        delay_levels: tuple[int, ...],
        with_keys: bool,
        since: Callable[[str, int], int] | None,
        slack: int,
        max_runs: int,
    ) -> None:
        self._topics = topics
        self._delay_levels = delay_levels
        self._with_keys = with_keys
        self._ask_since = since
        self._slack = slack
        self._max_runs = max_runs
        self._since: dict[_QueueKey, int] = {}
        self._runs: dict[_QueueKey, list[UnitRun]] = {}
        self._units: dict[_QueueKey, bytearray] = {}
        self._dropped: set[_QueueKey] = set()
        self._keys = bytearray()
        self.rolled_back: list[tuple[int, int, str]] = []
        """(physical offset, size, topic) of the records of type ROLLBACK."""
        self.records = 0
        self.newest = 0
        """Store timestamp of the last record, or 0."""

    def take(
        self, data: Buffer, base: int, start: int, stop: int, checked: bool = True, most: int = _MAX_LONG
    ) -> tuple[int, int, int]:
        """Adds the valid records that start in [start, stop), at most `most` of them.

        Checks their CRC if `checked`. Returns (position after them, Reason to end there, number of records).
        """
        most = min(max(stop - start, 0), most)
        rows, reached, reason = walk(data, base, start, stop, checked, self._topics, most)
        tag_codes(data, base, rows, self._delay_levels)
        for topic_id, queue_id, picks in group_rows(rows):
            for number in picks.tolist():
                self._add_unit((topic_id, queue_id), rows, number)
        for number in np.flatnonzero(rows["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK).tolist():
            row = rows[number]
            topic = self._topics.name(int(row["topic_id"]))
            self.rolled_back.append((int(row["physical_offset"]), int(row["size"]), topic))
        if self._with_keys:
            for key_hash, number in zip(*(each.tolist() for each in _index_keys(data, base, rows)), strict=True):
                row = rows[number]
                self._keys += _KEY.pack(key_hash, int(row["physical_offset"]), int(row["store_timestamp"]))
        self.records += len(rows)
        self.newest = int(rows["store_timestamp"][-1]) if len(rows) else self.newest
        return reached, reason, len(rows)

    def _add_unit(self, name: _QueueKey, rows: Rows, number: int) -> None:
        if name not in self._since:
            ask = self._ask_since
            self._since[name] = 0 if ask is None else ask(self._topics.name(name[0]), name[1])
        offset, position = int(rows["queue_offset"][number]), int(rows["physical_offset"][number])
        is_possible = 0 <= offset <= position // MIN_RECORD_SIZE + self._slack
        if name in self._dropped or position < self._since[name] or not is_possible:
            return
        end = position + int(rows["size"][number])
        runs, units = self._runs.setdefault(name, []), self._units.setdefault(name, bytearray())
        if runs and runs[-1][1] == offset:
            first, _, physical_first, _ = runs[-1]
            runs[-1] = first, offset + 1, physical_first, end
        elif len(runs) < self._max_runs:
            runs.append((offset, offset + 1, position, end))
        else:
            self._dropped.add(name)
            runs.clear()
            units.clear()
            return
        units += pack_unit(position, end - position, int(rows["tags_code"][number]))

    def queues(self) -> list[QueuePart]:
        """Returns (topic, queue id, runs, units) of each queue with records, by first appearance. Moves the units out.

        A run is (first queue offset, end of the queue offsets, physical offset of the first record, physical end of
        the last one). The units of all runs follow each other. A dropped queue has no runs.
        """
        return [
            (self._topics.name(name[0]), name[1], self._runs[name], memoryview(self._units.pop(name)))
            for name in self._since
            if name in self._runs
        ]

    def key_table(self) -> memoryview:
        """Moves the keys out: 20 bytes each in log order, little-endian hash, physical offset and store timestamp."""
        given, self._keys = self._keys, bytearray()
        return memoryview(given)


def _texts(data: Buffer, base: int, rows: Rows) -> Iterator[tuple[bytes, bytes]]:
    """Yields (topic, properties) of each row."""
    view = view_of(data)
    columns = ("physical_offset", "size", "topic_at", "topic_length", "properties_at", "properties_length")
    fields = zip(*(checked_rows(rows)[name].tolist() for name in columns), strict=True)
    for number, (offset, size, topic_at, topic_length, properties_at, properties_length) in enumerate(fields):
        at = offset - base
        if (
            min(at, size, topic_at, topic_length, properties_at, properties_length) < 0
            or max(topic_at + topic_length, properties_at + properties_length) > size
            or at + size > len(view)
            or properties_length > MAX_PROPERTIES_LENGTH
        ):
            raise ValueError(f"row {number} is outside the data")
        topic_at, properties_at = at + topic_at, at + properties_at
        yield (
            bytes(view[topic_at : topic_at + topic_length]),
            bytes(view[properties_at : properties_at + properties_length]),
        )


def _last_value(properties: bytes, name: bytes) -> bytes | None:
    found = None
    for piece in properties.split(b"\x02"):
        piece_name, _, value = piece.partition(b"\x01")
        if piece_name == name and value and name:
            found = value
    return found


def _delay_level(text: bytes | None) -> int:
    """Returns the delay level as Java's parseInt reads it; 0 if it is not a number or is below 1."""
    match = _DELAY_LEVEL.fullmatch(text or b"")
    level = int(match[2]) if match else 0
    return level if level < 2**31 and match and match[1] != b"-" else 0


def _hash_of(text: bytes) -> int:
    return java_hash(text.decode("utf-8", "replace"))
