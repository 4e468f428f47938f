"""The plain twin's counts of rows that are alike. Reference for `_tally.pxi`."""

from __future__ import annotations

import numpy as np

from penstock.format.kernels._plain_arrow_out import ints_of, longs_of, texts_of
from penstock.format.kernels._types import Buffer, Ints, Longs


def number_alike(data: Buffer, places: Longs, lengths: Ints, values: Longs) -> tuple[Ints, Longs]:
    """Numbers rows with the same text and value by first appearance, and the first row of each.

    No text counts as an empty one.
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


def add_up(numbers: Ints, count: int, times: Longs, sizes: Ints) -> tuple[Longs, Longs, Longs, Longs]:
    """Of the rows with each number from 0 to count - 1: how many, the sum of their sizes, their first and last time.

    Where there is none: 0, 0, the latest time there is and the earliest.
    """
    rows = list(ints_of(numbers)), list(longs_of(times)), list(ints_of(sizes))
    if len({len(each) for each in rows}) > 1:
        raise ValueError("numbers, times and sizes differ in length")
    info = np.iinfo(np.int64)
    made = [0] * count, [0] * count, [int(info.max)] * count, [int(info.min)] * count
    for row, (number, time, size) in enumerate(zip(*rows, strict=True)):
        if not 0 <= number < count:
            raise ValueError(f"row {row} has a number that is not below {count}")
        made[0][number] += 1
        made[1][number] += size
        made[2][number] = min(made[2][number], time)
        made[3][number] = max(made[3][number], time)
    counts, totals, firsts, lasts = (np.array(each, np.int64) for each in made)
    return counts, totals, firsts, lasts
