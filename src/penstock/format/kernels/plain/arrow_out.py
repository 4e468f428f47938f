"""Records into Arrow columns: checked rows of a queue, and texts gathered from the log. Twin of arrow_out.pxi.

`places` and `lengths` are the positions and lengths of a column's texts in the data; a length below 0 is a missing
text. A text outside the data raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.hosts import IPV4_HOST_SIZE, IPV6_HOST_SIZE, decode_host
from penstock.format.kernel_row_types import ROW, Reason
from penstock.format.kernels.parameter_types import Bools, Buffer, Ints, Longs, Rows, WritableBuffer
from penstock.format.kernels.plain.record import (
    checked_rows,
    examine,
    view_of,
    walk,
    without_record_crc,
    writable_view_of,
)
from penstock.format.record_layout import physical_offset_of

_MAX_LONG = 2**63 - 1
_HOST_ROOM = {IPV4_HOST_SIZE: 26, IPV6_HOST_SIZE: 58}  # the most bytes of a host as text


def unit_rows(
    data: Buffer,
    base: int,
    stop: int,
    offsets: Longs,
    sizes: Ints,
    queue_offsets: Longs,
    topic: bytes,
    queue_id: int,
    check_crc: bool,
    out: WritableBuffer,
) -> tuple[Rows, Ints]:
    """Reads the records of queue units; returns (rows of the valid ones, Reason of each unit: STOP if it has a row).

    A record is valid if it ends at or before the position `stop`, passes every check of `walk`, has the unit's size,
    and is the message of this topic, queue and queue offset. Copies the records end to end into `out`, which must have
    room for all, and checks the copies.
    """
    view, target = view_of(data), writable_view_of(out)
    stop = max(0, min(stop, len(view)))
    units = list(zip(longs_of(offsets), ints_of(sizes), longs_of(queue_offsets), strict=True))
    if not 0 <= base <= _MAX_LONG - stop:
        raise ValueError(f"{base} is not the offset of a file")
    room = sum(max(size, 0) for _, size, _ in units)
    if room > len(target):
        raise ValueError(f"{room} bytes of records do not fit into {len(target)}")
    rows, reasons, written = [], [], 0
    for offset, size, queue_offset in units:
        at = offset - base
        reason, row = Reason.UNWRITTEN, None
        if 0 <= at < stop and 0 < size <= stop - at:
            record = target[written : written + size]
            record[:] = view[at : at + size]
            reason, row = examine(record, 0, offset, check_crc)
        if row is not None:
            if row[6] != size:
                reason = Reason.BAD_SIZE
            elif (row[1], row[8]) != (queue_offset, queue_id) or record[row[15] : row[15] + row[16]] != topic:
                reason = Reason.BAD_POSITION
            else:
                rows.append(row)
                written += size
        reasons.append(reason)
    return np.array(rows, ROW), np.array(reasons, np.int32)


def fill_rows(data: Buffer, base: int, start: int, stop: int, check_crc: bool, room: Rows) -> tuple[int, int, int]:
    """As `walk` without topics, into the array `room`; returns (number of rows, position after them, Reason)."""
    rows, reached, reason = walk(data, base, start, stop, check_crc, None, len(checked_rows(room)))
    room[: len(rows)] = rows
    return len(rows), reached, reason


def loose_rows(data: Buffer, start: int, check_crc: bool, room: Rows) -> tuple[int, int, int]:
    """As `fill_rows`, for records outside of their log: does not check their physical offsets."""
    view, rows = view_of(data), checked_rows(room)
    if start < 0:
        raise ValueError(f"{start} is not a position")
    at, count = start, 0
    while at < len(view):
        if count >= len(rows):
            return count, at, Reason.FULL
        physical_offset = physical_offset_of(view, at) if len(view) - at >= MIN_RECORD_SIZE else 0
        reason, row = examine(view, at, max(0, physical_offset) - at, check_crc)
        if row is None:
            return count, at, reason
        rows[count] = row
        at, count = at + row[6], count + 1
    return count, at, Reason.STOP


def row_fields(rows: Rows, names: tuple[str, ...]) -> list[npt.NDArray[Any]]:
    """Returns the named fields of all rows, each as a contiguous array."""
    return [np.ascontiguousarray(checked_rows(rows)[name]) for name in names]


def gather(data: Buffer, places: Longs, lengths: Ints, out: WritableBuffer) -> None:
    """Copies the texts end to end into `out`, which they must fill exactly."""
    _write(out, b"".join(text for _, text in texts_of(data, places, lengths)))


def is_one_of(data: Buffer, places: Longs, lengths: Ints, texts: tuple[bytes, ...]) -> Bools:
    """Returns whether each text in the data is one of `texts`. A missing text is none of them."""
    found = zip(texts_of(data, places, lengths), lengths, strict=True)
    return np.array([length >= 0 and bytes(text) in texts for (_, text), length in found], np.bool_)


def are_utf8(data: Buffer, places: Longs, lengths: Ints) -> Bools:
    """Returns whether each text in the data is UTF-8. A missing text is not."""

    def is_utf8(text: bytes) -> bool:
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        return True

    found = zip(texts_of(data, places, lengths), lengths, strict=True)
    return np.array([length >= 0 and is_utf8(bytes(text)) for (_, text), length in found], np.bool_)


def find_values(data: Buffer, places: Longs, lengths: Ints, names: tuple[bytes, ...]) -> list[tuple[Longs, Ints]]:
    """Returns (places, lengths) of the values of each name in property strings; the length is -1 if it has none."""
    found: list[tuple[Longs, Ints]] = [
        (np.zeros(len(places), np.int64), np.full(len(places), -1, np.int32)) for _ in names
    ]
    for number, (place, text) in enumerate(texts_of(data, places, lengths)):
        for name, value_at, value_length in _pairs(text):
            for wanted, (value_places, value_lengths) in zip(names, found, strict=True):
                if name == wanted:
                    value_places[number], value_lengths[number] = place + value_at, value_length
    return found


def split_keys(data: Buffer, places: Longs, lengths: Ints) -> tuple[Ints, Longs, Ints]:
    """Splits texts at spaces; returns (number of each text's first word and the end, places, lengths of the words)."""
    counts, pieces = [], []
    for place, text in texts_of(data, places, lengths):
        keys = text.split(b" ")
        starts = accumulate([0, *(len(key) + 1 for key in keys[:-1])])
        found = [(place + start, len(key)) for start, key in zip(starts, keys, strict=True) if key]
        counts.append(len(found))
        pieces += found
    return _offsets(counts), *_columns(pieces)


def split_properties(data: Buffer, places: Longs, lengths: Ints) -> tuple[Ints, Longs, Ints, Longs, Ints]:
    """Splits property strings; each name comes once, in the order of first appearance, with its last value.

    Leaves out the CRC of the record. Returns (number of each text's first property and the end, places and lengths of
    the names, places and lengths of the values).
    """
    counts, names, values = [], [], []
    for place, whole in texts_of(data, places, lengths):
        text = without_record_crc(whole)
        found: dict[bytes, tuple[int, tuple[int, int]]] = {}
        for name, value_at, value_length in _pairs(text):
            name_at, _ = found.get(name, (place + value_at - 1 - len(name), (0, 0)))
            found[name] = name_at, (place + value_at, value_length)
        counts.append(len(found))
        names += [(name_at, len(name)) for name, (name_at, _) in found.items()]
        values += [value for _, value in found.values()]
    return _offsets(counts), *_columns(names), *_columns(values)


def message_ids(data: Buffer, places: Longs, lengths: Ints, physical_offsets: Longs, out: WritableBuffer) -> None:
    """Writes the offset message ids of records end to end into `out`: store host and physical offset in hex."""
    numbers = longs_of(physical_offsets)
    hosts = [text for _, text in _hosts(data, places, lengths)]
    ids = [host + number.to_bytes(8, "big", signed=True) for host, number in zip(hosts, numbers, strict=True)]
    _write(out, b"".join(ids).hex().upper().encode())


def host_texts(data: Buffer, places: Longs, lengths: Ints, out: WritableBuffer) -> Ints:
    """Writes hosts as `ip:port` end to end into `out`; returns the offset of each, and the end.

    `out` must have 26 bytes for each IPv4 host and 58 for each IPv6 host.
    """
    view = writable_view_of(out)
    hosts = [host for _, host in _hosts(data, places, lengths)]
    if sum(_HOST_ROOM[len(host)] for host in hosts) > len(view):
        raise ValueError("there is not enough room for the texts of the hosts")
    texts = [decode_host(host).encode() for host in hosts]
    written = b"".join(texts)
    view[: len(written)] = written
    return _offsets([len(text) for text in texts])


def texts_of(data: Buffer, places: Longs, lengths: Ints) -> Iterator[tuple[int, bytes]]:
    """Yields (place, bytes) of each text; no bytes for a missing one."""
    view = view_of(data)
    texts = list(zip(longs_of(places), ints_of(lengths), strict=True))
    for number, (place, length) in enumerate(texts):
        if length >= 0 and not 0 <= place <= len(view) - length:
            raise ValueError(f"text {number} is outside the data")
    for place, length in texts:
        yield place, bytes(view[place : place + length]) if length >= 0 else b""


def _hosts(data: Buffer, places: Longs, lengths: Ints) -> Iterator[tuple[int, bytes]]:
    if any(length not in _HOST_ROOM for length in ints_of(lengths)):
        raise ValueError("a host takes 8 bytes (IPv4) or 20 (IPv6)")
    return texts_of(data, places, lengths)


def _pairs(text: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields (name, position of the value, length of the value) of each property."""
    at = 0
    for piece in text.split(b"\x02"):
        name, _, value = piece.partition(b"\x01")
        if name and value:
            yield name, at + len(name) + 1, len(value)
        at += len(piece) + 1


def _write(out: WritableBuffer, texts: bytes) -> None:
    view = writable_view_of(out)
    if len(view) != len(texts):
        raise ValueError(f"{len(texts)} bytes do not fill {len(view)}")
    view[:] = texts


def _offsets(counts: list[int]) -> Ints:
    return np.array([0, *accumulate(counts)], np.int32)


def _columns(pieces: list[tuple[int, int]]) -> tuple[Longs, Ints]:
    return np.array([place for place, _ in pieces], np.int64), np.array([length for _, length in pieces], np.int32)


def longs_of(values: Longs) -> list[int]:
    if values.dtype != np.int64 or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError("a contiguous array of int64 is needed")
    return list(values.tolist())


def ints_of(values: Ints) -> list[int]:
    if values.dtype != np.int32 or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError("a contiguous array of int32 is needed")
    return list(values.tolist())
