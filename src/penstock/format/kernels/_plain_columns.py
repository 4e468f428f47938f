"""The plain twin's work on rows: topics, properties, tag codes, keys, queues. Reference for `_columns.pxi`.

Rows are taken from `walk` over the same data; a row that points outside the data is a ValueError.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator

import numpy as np

from penstock.format.constants import MAX_PROPERTIES_LENGTH, MIN_RECORD_SIZE, SCHEDULE_TOPIC
from penstock.format.kernels._plain_log import examine, java_hash, view_of, walk, writable_view_of
from penstock.format.kernels._types import Buffer, Ints, Longs, Rows, WritableBuffer
from penstock.format.queue_unit import UNIT, UNIT_SIZE
from penstock.format.rows import ROW
from penstock.format.sys_flag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)

_LONG = struct.Struct(">q")
_DELAY_LEVEL = re.compile(rb"([+-]?)0*([0-9]{1,10})")
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()


class TopicTable:
    """Numbers topics in the order in which they are first seen. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[bytes, int] = {}
        self._names: list[str] = []

    def intern(self, topic: bytes) -> int:
        """The number of a topic, a new one if it was never seen."""
        with self._lock:
            topic_id = self._ids.setdefault(topic, len(self._ids))
            if topic_id == len(self._names):
                self._names.append(topic.decode("utf-8", "surrogateescape"))
            return topic_id

    def name(self, topic_id: int) -> str:
        """The topic of a number."""
        if not 0 <= topic_id < len(self._names):
            raise IndexError(f"no topic has the number {topic_id}")
        return self._names[topic_id]

    @property
    def names(self) -> list[str]:
        """All topics, by number."""
        return list(self._names)

    def __len__(self) -> int:
        return len(self._names)


def find_property(data: Buffer, at: int, name: bytes) -> bytes | None:
    """The value of a property of the record at `at`; ValueError where no record of sound lengths starts."""
    view = view_of(data)
    if at < 0 or at + MIN_RECORD_SIZE > len(view):
        raise ValueError(f"no record starts at {at}")
    (physical_offset,) = _LONG.unpack_from(view, at + 28)
    reason, row = examine(view, at, physical_offset - at, check_crc=False)
    if row is None:
        raise ValueError(f"no record starts at {at}: {reason.name}")
    properties_at, size = at + row[17], row[6]
    return _last_value(bytes(view[properties_at : at + size]), name)


def tag_codes(data: Buffer, base: int, rows: Rows, delay_levels: tuple[int, ...]) -> None:
    """Fills rows["tags_code"]: the tag's hash, or in the schedule topic the time it is due."""
    for number, (topic, properties) in enumerate(_texts(data, base, rows)):
        delay = _last_value(properties, b"DELAY") if topic == _SCHEDULE_TOPIC else None
        level = min(_delay_level(delay), len(delay_levels))
        if level > 0:
            code = int(rows["store_timestamp"][number]) + delay_levels[level - 1]
            rows["tags_code"][number] = (code + 2**63) % 2**64 - 2**63
        else:
            rows["tags_code"][number] = _hash_of(_last_value(properties, b"TAGS") or b"")


def index_keys(data: Buffer, base: int, rows: Rows) -> tuple[Ints, Longs]:
    """The index hash of every key of every row, and the number of its row."""
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


def derive(
    data: Buffer, base: int, start: int, stop: int, topics: TopicTable, delay_levels: tuple[int, ...], room: Rows
) -> tuple[Rows, int, int, Ints, Longs]:
    """walk, tag_codes and index_keys in one go; the rows are a part of the array `room`."""
    rows, reached, reason = walk(data, base, start, stop, False, topics, len(room))
    room[: len(rows)] = rows
    rows = room[: len(rows)]
    tag_codes(data, base, rows, delay_levels)
    hashes, numbers = index_keys(data, base, rows)
    return rows, reached, reason, hashes, numbers


def group_rows(rows: Rows) -> list[tuple[int, int, Longs]]:
    """(topic_id, queue_id, row numbers) of the rows that belong into a queue; groups by first appearance."""
    groups: dict[tuple[int, int], list[int]] = {}
    types = checked_rows(rows)["sys_flag"] & TRANSACTION_MASK
    for number in np.flatnonzero((types == TRANSACTION_NONE) | (types == TRANSACTION_COMMIT)).tolist():
        key = (int(rows["topic_id"][number]), int(rows["queue_id"][number]))
        groups.setdefault(key, []).append(number)
    return [(*key, np.array(numbers, dtype=np.int64)) for key, numbers in groups.items()]


def append_units(out: WritableBuffer, at: int, rows: Rows, picks: Longs) -> None:
    """Writes the 20-byte queue units of the picked rows at out[at:]."""
    view, rows = writable_view_of(out), checked_rows(rows)
    picks = np.asarray(picks, dtype=np.int64)
    if at < 0 or at + UNIT_SIZE * len(picks) > len(view):
        raise ValueError(f"{len(picks)} units at {at} do not fit into {len(view)} bytes")
    if len(picks) and not (picks.min() >= 0 and picks.max() < len(rows)):
        raise ValueError("a pick is not the number of a row")
    units = np.empty(len(picks), dtype=UNIT)
    units["offset"] = rows["physical_offset"][picks]
    units["size"] = rows["size"][picks]
    units["tags_code"] = rows["tags_code"][picks]
    view[at : at + UNIT_SIZE * len(picks)] = units.tobytes()


def checked_rows(rows: Rows) -> Rows:
    """The same rows, if that is what they are."""
    if rows.dtype != ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
        raise ValueError("rows must be a contiguous array of ROW")
    return rows


def _texts(data: Buffer, base: int, rows: Rows) -> Iterator[tuple[bytes, bytes]]:
    """Topic and properties of each row."""
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
            raise ValueError(f"row {number} does not lie in the data")
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
    """The level as Java's parseInt reads it; 0 where it would refuse."""
    match = _DELAY_LEVEL.fullmatch(text or b"")
    level = int(match[2]) if match else 0
    return level if level < 2**31 and match and match[1] != b"-" else 0


def _hash_of(text: bytes) -> int:
    return java_hash(text.decode("utf-8", "replace"))
