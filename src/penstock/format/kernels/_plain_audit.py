"""The plain twin's bulk comparisons of an audit: queue units, index items, index chains. Reference for `_audit.pxi`."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format.kernels._plain_columns import checked_rows
from penstock.format.kernels._plain_index import check_geometry, item_at
from penstock.format.kernels._plain_log import view_of
from penstock.format.kernels._types import Buffer, Ints, Longs, Rows

_UNIT = struct.Struct(">qiq")
_ITEM = struct.Struct(">iqii")
_LONG = struct.Struct(">q")
_MAX_INT = 2**31 - 1


def match_units(data: Buffer, first: int, rows: Rows, picks: Longs, start: int) -> int:
    """How far picks[start:] go on as they should: queue offsets one apart, each row's unit at its place in `data`.

    `data` holds a queue's units from number `first` on. Returns the pick at which that ends.
    """
    view, rows = view_of(data), checked_rows(rows)
    _check(picks, np.int64)
    if start < 0:
        raise ValueError(f"{start} is not the number of a pick")
    last = None
    for number in range(start, len(picks)):
        if not 0 <= picks[number] < len(rows):
            raise ValueError("a pick is not the number of a row")
        row = rows[picks[number]]
        queue_offset = int(row["queue_offset"])
        place = queue_offset - first
        if (last is not None and queue_offset != last + 1) or not 0 <= place < len(view) // _UNIT.size:
            return number
        due = (int(row["physical_offset"]), int(row["size"]), int(row["tags_code"]))
        if _UNIT.unpack_from(view, place * _UNIT.size) != due:
            return number
        last = queue_offset
    return max(start, len(picks))


def match_items(data: Buffer, slots: int, items: int, number: int, hashes: Ints, offsets: Longs, times: Longs) -> int:
    """How many items from `number` on are those of these keys, in this order, with the right seconds."""
    view = view_of(data)
    _check(hashes, np.int32)
    _check(offsets, np.int64)
    _check(times, np.int64)
    check_geometry(view, slots, items)
    if not len(hashes) == len(offsets) == len(times):
        raise ValueError("hashes, offsets and times differ in length")
    if number < 1:
        raise ValueError(f"{number} is not the number of an item")
    (begin,) = _LONG.unpack_from(view, 0)
    place = 0
    for key_hash, offset, time in zip(hashes.tolist(), offsets.tolist(), times.tolist(), strict=True):
        if number >= items:
            break
        item_hash, item_offset, item_seconds, _ = _ITEM.unpack_from(view, item_at(slots, number))
        seconds = min((time - begin) // 1000, _MAX_INT) if time > begin > 0 else 0
        # The first one's seconds count from the end of the file before.
        if (item_hash, item_offset) != (key_hash, offset) or (number > 1 and item_seconds != seconds):
            break
        place += 1
        number += 1
    return place


def check_chains(data: Buffer, slots: int, items: int, start: int, stop: int, newest: Ints) -> tuple[Longs, Longs]:
    """Follows the items start … stop - 1 as they were put; `newest`, by slot, is where the chains stand and moves on.

    Returns the numbers of the items that do not point to the one before them in their slot, and of those whose
    offset is lower than that of the item before them in the file.
    """
    view = view_of(data)
    _check(newest, np.int32)
    check_geometry(view, slots, items)
    if len(newest) != slots:
        raise ValueError(f"{len(newest)} chains are not those of {slots} slots")
    if start < 1 or stop > items:
        raise ValueError(f"a file for {items} has no items {start} to {stop}")
    wrong, back = [], []
    before = _ITEM.unpack_from(view, item_at(slots, start - 1))[1] if start > 1 else None
    for number in range(start, stop):
        key_hash, offset, _, previous = _ITEM.unpack_from(view, item_at(slots, number))
        if before is not None and offset < before:
            back.append(number)
        before = offset
        if key_hash < 0 or previous != newest[key_hash % slots]:
            wrong.append(number)
        if key_hash >= 0:
            newest[key_hash % slots] = number
    return np.array(wrong, dtype=np.int64), np.array(back, dtype=np.int64)


def _check(array: npt.NDArray[Any], kind: type[np.generic]) -> None:
    if array.dtype != kind or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError("an array has another type or shape than is needed")
