"""Arrow columns of messages into the log: property strings, queues, records. Twin of arrow_in.pxi.

A planned batch is a table of PUT_ROW; see `penstock.format.put_rows`. Inconsistent columns raise ValueError before
anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from penstock.format.constants import (
    CRC32,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH,
    MAX_ZEROS,
    MIN_RECORD_SIZE,
    RECORD_CRC,
)
from penstock.format.hosts import IPV4_HOST_SIZE
from penstock.format.kernel_row_types import PUT_ROW
from penstock.format.kernels.parameter_types import (
    Bools,
    Buffer,
    Ints,
    ListColumn,
    Longs,
    MapColumn,
    PutTable,
    TextColumn,
    WritableBuffer,
)
from penstock.format.kernels.plain.record import check_room, encode_record, view_of, writable_view_of
from penstock.format.sys_flag import host_sizes

_LEVEL = re.compile(rb"-?[0-9]{1,10}")
_SEPARATOR = re.compile(rb"[\x01\x02]")
_CRC32 = CRC32.encode()


def property_texts(
    rows: PutTable,
    keys: ListColumn | None,
    tags: TextColumn | None,
    properties: MapColumn | None,
    delay_levels: Longs | None,
    topics: TextColumn,
    schedule_topic: int,
    level_count: int,
    has_record_crc: bool,
) -> tuple[npt.NDArray[np.uint8], int, int]:
    """Builds the property strings of all rows; returns (the strings end to end, rows that wait for a flush, bad row).

    With `has_record_crc` each string ends with RECORD_CRC, whose digits `encode_puts` will set. Fills properties_at and
    properties_length, and moves delayed rows to the queues of the schedule topic. The bad row is the first that cannot
    be stored, or -1; with a bad row the other results are meaningless.
    """
    count, names = len(_checked(rows)), _all_texts(topics)
    if not 0 <= schedule_topic < len(names) or (count and not _are_numbers_of(rows["topic"], names)):
        raise ValueError("the topic of a row is not one of the topics")
    columns = zip(
        _maps_of(properties, count),
        _lists_of(keys, count),
        [None] * count if tags is None else _texts_of(tags, count),
        [0] * count if delay_levels is None else _longs_of(delay_levels, count),
        strict=True,
    )
    texts: list[bytes] = []
    at = waiting = 0
    for row, given in zip(rows, columns, strict=True):
        found = _collect(*given)
        if found is None:
            return np.empty(0, np.uint8), 0, len(texts)
        waiting += found.get(b"WAIT") != b"false"
        level = min(int(found.get(b"DELAY", b"0")), level_count)
        if level > 0 and row["topic"] != schedule_topic:
            found |= {b"DELAY": b"%d" % level, b"REAL_TOPIC": names[row["topic"]], b"REAL_QID": b"%d" % row["queue_id"]}
            row["topic"], row["queue_id"] = schedule_topic, level - 1
        text = b"\x02".join(b"%b\x01%b" % pair for pair in found.items() if pair[1])
        if text.endswith(b"\0") or bytes(MAX_ZEROS) in text:
            return np.empty(0, np.uint8), 0, len(texts)
        if has_record_crc:
            text = text + b"\x02" + RECORD_CRC if text else RECORD_CRC
        if len(text) > MAX_PROPERTIES_LENGTH:
            return np.empty(0, np.uint8), 0, len(texts)
        row["properties_at"], row["properties_length"] = at, len(text)
        at += len(text)
        texts.append(text)
    return np.frombuffer(b"".join(texts), np.uint8), waiting, -1


def number_texts(texts: TextColumn) -> tuple[Ints, Longs]:
    """Numbers distinct texts by first appearance; returns (number of each row, -1 for null; first row of each text)."""
    found = _texts_of(texts, len(texts.offsets) - 1)
    firsts: dict[bytes, int] = {}
    for row, text in enumerate(found):
        if text is not None:
            firsts.setdefault(text, row)
    numbers = {text: number for number, text in enumerate(firsts)}
    return (
        np.array([-1 if text is None else numbers[text] for text in found], np.int32),
        np.array(list(firsts.values()), np.int64),
    )


def number_queues(rows: PutTable) -> Longs:
    """Numbers the queues of the rows by first appearance in rows["queue"]; returns the first row of each queue."""
    numbers: dict[tuple[int, int], int] = {}
    firsts: list[int] = []
    for row, key in enumerate(zip(_checked(rows)["topic"].tolist(), rows["queue_id"].tolist(), strict=True)):
        if key not in numbers:
            numbers[key] = len(firsts)
            firsts.append(row)
        rows["queue"][row] = numbers[key]
    return np.array(firsts, np.int64)


def encode_puts(
    out: WritableBuffer,
    at: int,
    physical_offset: int,
    rows: PutTable,
    topics: TextColumn,
    bodies: Buffer,
    properties: Buffer,
    next_offsets: Longs,
    store_timestamp: int,
    sys_flag: int,
    born_host: bytes,
    store_host: bytes,
) -> int:
    """Writes the records of the rows at out[at:] and returns their bytes. Publishes all records but the first.

    `next_offsets` has the next queue offset of each queue and is advanced. `store_timestamp` is in milliseconds. Raises
    ValueError before anything is written.
    """
    view = writable_view_of(out)
    if (len(born_host), len(store_host)) != host_sizes(sys_flag):
        raise ValueError("the hosts' lengths contradict the IPv6 bits of sys_flag")
    if len(_checked(rows)) and not _are_numbers_of(rows["queue"], _longs_of(next_offsets, len(next_offsets))):
        raise ValueError("a row's queue has no next offset")
    fixed = MIN_RECORD_SIZE - 2 * IPV4_HOST_SIZE + len(born_host) + len(store_host)
    pieces = list(_pieces_of(rows, fixed, _all_texts(topics), view_of(bodies), view_of(properties)))
    total = int(rows["size"].sum(dtype=np.int64))
    check_room(view, at, total)
    position = at
    for number, (row, (body, topic, text)) in enumerate(zip(rows, pieces, strict=True)):
        queue_offset = int(next_offsets[row["queue"]])
        row["queue_offset"], row["physical_offset"] = queue_offset, physical_offset + position - at
        next_offsets[row["queue"]] = queue_offset + 1
        position += encode_record(
            view,
            position,
            physical_offset + position - at,
            queue_offset,
            store_timestamp,
            int(row["queue_id"]),
            int(row["flag"]),
            sys_flag,
            int(row["born_timestamp"]) or store_timestamp,
            born_host,
            store_host,
            0,
            0,
            body,
            topic,
            text,
            number > 0,
        )
    return total


def _pieces_of(
    rows: PutTable, fixed: int, topics: list[bytes], bodies: memoryview, properties: memoryview
) -> Iterator[tuple[memoryview, bytes, bytes]]:
    """Yields (body, topic, properties) of each row; raises ValueError if a row does not fit the columns."""
    fields = ("body_at", "body_length", "properties_at", "properties_length", "topic", "size")
    for number, row in enumerate(zip(*(rows[name].tolist() for name in fields), strict=True)):
        body_at, body_length, properties_at, properties_length, topic_number, size = row
        topic = topics[topic_number] if 0 <= topic_number < len(topics) else b""
        if (
            min(body_at, body_length, properties_at, properties_length, topic_number) < 0
            or body_at + body_length > len(bodies)
            or properties_at + properties_length > len(properties)
            or properties_length > MAX_PROPERTIES_LENGTH
            or topic_number >= len(topics)
            or len(topic) > MAX_TOPIC_LENGTH
            or size != fixed + body_length + len(topic) + properties_length
        ):
            raise ValueError(f"row {number} does not fit the columns")
        text = properties[properties_at : properties_at + properties_length]
        yield bodies[body_at : body_at + body_length], topic, bytes(text)


def _collect(
    pairs: list[tuple[bytes | None, bytes | None]], keys: list[bytes], tags: bytes | None, delay_level: int
) -> dict[bytes, bytes] | None:
    """Returns the properties of a row, or None if they cannot be stored. A column wins over a map entry of its name."""
    found = {name or b"": value for name, value in pairs if value is not None and name != _CRC32}
    if keys:
        found[b"KEYS"] = b" ".join(keys)
    if tags:
        found[b"TAGS"] = tags
    if delay_level:
        found[b"DELAY"] = b"%d" % delay_level
    for name, value in found.items():
        if not name or _SEPARATOR.search(name) or b"\x02" in value:
            return None
    return found if _LEVEL.fullmatch(found.get(b"DELAY", b"0")) else None


def _all_texts(column: TextColumn) -> list[bytes]:
    return [text or b"" for text in _texts_of(column, len(column.offsets) - 1)]


def _texts_of(column: TextColumn, count: int) -> list[bytes | None]:
    """Returns the texts, None for null."""
    data = view_of(column.data)
    _check_offsets(column.offsets, count, len(data))
    ends = column.offsets.tolist()
    texts = [bytes(data[start:end]) for start, end in pairwise(ends)]
    return [text if valid else None for text, valid in zip(texts, _valid_of(column.valid, count), strict=True)]


def _lists_of(column: ListColumn | None, count: int) -> list[list[bytes]]:
    """Returns the lists without null items; empty for null."""
    if column is None:
        return [[]] * count
    items = _texts_of(column.items, len(column.items.offsets) - 1)
    ranges = _ranges_of(column.offsets, count, len(items), column.valid)
    return [[item for item in items[start:end] if item is not None] for start, end in ranges]


def _maps_of(column: MapColumn | None, count: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    if column is None:
        return [[]] * count
    names = _texts_of(column.names, len(column.names.offsets) - 1)
    pairs = list(zip(names, _texts_of(column.values, len(names)), strict=True))
    return [pairs[start:end] for start, end in _ranges_of(column.offsets, count, len(pairs), column.valid)]


def _ranges_of(offsets: Ints, count: int, length: int, valid: Bools | None) -> list[tuple[int, int]]:
    _check_offsets(offsets, count, length)
    ranges = pairwise(offsets.tolist())
    return [
        (start, end if there else start) for (start, end), there in zip(ranges, _valid_of(valid, count), strict=True)
    ]


def _check_offsets(offsets: Ints, count: int, length: int) -> None:
    if offsets.dtype != np.int32 or offsets.ndim != 1 or not offsets.flags.c_contiguous or len(offsets) != count + 1:
        raise ValueError(f"a column of {count} rows needs {count + 1} offsets of 32 bits")
    if offsets[0] < 0 or offsets[-1] > length or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("the offsets of a column are outside its data")


def _valid_of(valid: Bools | None, count: int) -> list[bool]:
    if valid is None:
        return [True] * count
    if valid.dtype != np.bool_ or valid.shape != (count,) or not valid.flags.c_contiguous:
        raise ValueError(f"a column of {count} rows needs {count} marks")
    return list(valid.tolist())


def _longs_of(values: Longs, count: int) -> list[int]:
    if values.dtype != np.int64 or values.shape != (count,) or not values.flags.c_contiguous:
        raise ValueError(f"{count} numbers of 64 bits are needed")
    return list(values.tolist())


def _are_numbers_of(numbers: npt.NDArray[np.int32], things: list[bytes] | list[int]) -> bool:
    return bool(numbers.min() >= 0 and numbers.max() < len(things))


def _checked(rows: PutTable) -> PutTable:
    if rows.dtype != PUT_ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
        raise ValueError("rows must be a contiguous array of PUT_ROW")
    return rows
