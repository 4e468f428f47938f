"""The chains of an index file, for an audit; and sums of rows by a group number.

The plain twin of audit.pxi: the same functions, the same results.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.format.kernels.parameter_types import Buffer, Ints, Longs
from penstock.format.kernels.plain.arrow_out import ints_of, longs_of, texts_of
from penstock.format.kernels.plain.index import check_geometry, item_at
from penstock.format.kernels.plain.record import view_of

_ITEM = struct.Struct(">iqii")


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
