"""Bulk comparisons for an audit: queue units, index items, index chains; and sums of rows by a group number.

The plain twin of audit.pxi: the same functions, the same results.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format.kernels.plain.arrow_out import ints_of, longs_of, texts_of
from penstock.format.kernels.plain.index import check_geometry, item_at
from penstock.format.kernels.plain.record import checked_rows, view_of
from penstock.format.kernels.types import Buffer, Ints, Longs, Rows

_UNIT = struct.Struct(">qiq")
_ITEM = struct.Struct(">iqii")
_LONG = struct.Struct(">q")
_MAX_INT = 2**31 - 1


def match_units(data: Buffer, first: int, rows: Rows, picks: Longs, start: int) -> int:
    """Returns the first of picks[start:] whose row does not fit, or len(picks) if all fit.

    The row of a pick fits if its queue offset follows the previous one and its unit is in `data`, which has the units
    of a queue from queue offset `first`.
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
    """Returns how many items, from item `number`, match these keys in this order, including their seconds.

    Times are in milliseconds.
    """
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
        # The seconds of item 1 count from the end of the previous file.
        if (item_hash, item_offset) != (key_hash, offset) or (number > 1 and item_seconds != seconds):
            break
        place += 1
        number += 1
    return place


def check_chains(data: Buffer, slots: int, items: int, start: int, stop: int, newest: Ints) -> tuple[Longs, Longs]:
    """Checks the chains of items start … stop - 1; returns (items with a wrong link, items with a falling offset).

    `newest` has the newest item of each slot so far and is updated. A link is wrong if it does not point to the
    previous item of the slot. An offset falls if it is lower than that of the previous item of the file.
    """
    view = view_of(data)
    _check(newest, np.int32)
    check_geometry(view, slots, items)
    if len(newest) != slots:
        raise ValueError(f"{len(newest)} chains are not those of {slots} slots")
    if not 1 <= start <= items or stop > items:
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


def number_groups(data: Buffer, places: Longs, lengths: Ints, values: Longs) -> tuple[Ints, Longs]:
    """Groups rows by text and value; returns (group of each row, first row of each group), by first appearance.

    A missing text counts as an empty one.
    """
    texts = [text for _, text in texts_of(data, places, lengths)]
    numbers = longs_of(values)
    if len(numbers) != len(texts):
        raise ValueError("texts and values differ in number")
    firsts: dict[tuple[bytes, int], int] = {}
    rows = list(zip(texts, numbers, strict=True))
    for row, each in enumerate(rows):
        firsts.setdefault(each, row)
    known = {each: number for number, each in enumerate(firsts)}
    return np.array([known[each] for each in rows], np.int32), np.array(list(firsts.values()), np.int64)


def sum_groups(numbers: Ints, count: int, times: Longs, sizes: Ints) -> tuple[Longs, Longs, Longs, Longs]:
    """Returns (rows, sum of sizes, first time, last time) of each of `count` groups.

    `numbers` has the group of each row. A group without rows has 0, 0, the largest int64 and the smallest.
    """
    rows = list(ints_of(numbers)), list(longs_of(times)), list(ints_of(sizes))
    if len({len(each) for each in rows}) > 1:
        raise ValueError("numbers, times and sizes differ in length")
    info = np.iinfo(np.int64)
    sums = [0] * count, [0] * count, [int(info.max)] * count, [int(info.min)] * count
    for row, (number, time, size) in enumerate(zip(*rows, strict=True)):
        if not 0 <= number < count:
            raise ValueError(f"row {row} has a number that is not below {count}")
        sums[0][number] += 1
        sums[1][number] += size
        sums[2][number] = min(sums[2][number], time)
        sums[3][number] = max(sums[3][number], time)
    counts, totals, firsts, lasts = (np.array(each, np.int64) for each in sums)
    return counts, totals, firsts, lasts


def _check(array: npt.NDArray[Any], kind: type[np.generic]) -> None:
    if array.dtype != kind or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError("an array has the wrong type or shape")
