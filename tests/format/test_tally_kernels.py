"""Groups of equal rows and their sums: on both twins."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.effort import TWINS, running_on

from penstock.format import kernels

pytestmark = pytest.mark.usefixtures("kernels_name")


def laid_out(texts: list[bytes | None]) -> tuple[bytes, kernels.Longs, kernels.Ints]:
    """Concatenated texts, their positions and lengths; -1 for a missing text."""
    data = b"".join(text or b"" for text in texts)
    lengths = np.array([-1 if text is None else len(text) for text in texts], np.int32)
    sizes = np.maximum(lengths, 0).astype(np.int64)
    return data, np.cumsum(sizes) - sizes, lengths


def longs(*values: int) -> kernels.Longs:
    return np.array(values, np.int64)


def ints(*values: int) -> kernels.Ints:
    return np.array(values, np.int32)


def test_rows_with_the_same_text_and_value_get_the_same_number() -> None:
    texts = laid_out([b"a", b"b", b"a", b"a", b"", None, b"ab", b"b"])
    numbers, firsts = kernels.number_groups(*texts, longs(1, 1, 1, 2, 1, 1, 1, -1))
    assert numbers.tolist() == [0, 1, 0, 2, 3, 3, 4, 5]
    assert firsts.tolist() == [0, 1, 3, 4, 6, 7]
    assert (numbers.dtype, firsts.dtype) == (np.int32, np.int64)


def test_no_rows_have_no_numbers() -> None:
    numbers, firsts = kernels.number_groups(b"", longs(), ints(), longs())
    assert (len(numbers), len(firsts)) == (0, 0)


def test_what_does_not_fit_together_is_refused() -> None:
    for data, places, lengths, values in (
        (b"abc", longs(0), ints(4), longs(1)),
        (b"abc", longs(-1), ints(1), longs(1)),
        (b"abc", longs(4), ints(0), longs(1)),
        (b"abc", longs(0), ints(1), longs(1, 2)),
        (b"abc", longs(0, 1), ints(1), longs(1, 2)),
        (b"abc", longs(0), ints(1), np.array([1], np.int32)),
    ):
        with pytest.raises(ValueError):
            kernels.number_groups(data, places, lengths, values)


def test_sums_are_those_of_the_rows_with_a_number() -> None:
    found = kernels.sum_groups(ints(2, 0, 2, 2), 4, longs(50, -7, 40, 60), ints(10, 2**31 - 1, 20, 30))
    counts, sizes, first, last = (each.tolist() for each in found)
    assert counts == [1, 0, 3, 0]
    assert sizes == [2**31 - 1, 0, 60, 0]
    assert first == [-7, 2**63 - 1, 40, 2**63 - 1]
    assert last == [-7, -(2**63), 60, -(2**63)]


def test_numbers_out_of_range_and_columns_of_other_lengths_are_refused() -> None:
    for number in (-1, 2):
        with pytest.raises(ValueError, match="row 1 has a number"):
            kernels.sum_groups(ints(0, number), 2, longs(1, 1), ints(1, 1))
    with pytest.raises(ValueError):
        kernels.sum_groups(ints(0), 1, longs(1, 2), ints(1))
    with pytest.raises(ValueError):
        kernels.sum_groups(ints(0), 1, longs(1), ints(1, 2))


def test_both_twins_say_the_same_of_anything() -> None:
    chance = random.Random(5)
    texts = [chance.choice((None, b"", chance.randbytes(chance.randrange(1, 40)), b"same")) for _ in range(400)]
    values = longs(*(chance.choice((0, 1, 2**62, -(2**63))) for _ in texts))
    times = longs(*(chance.randrange(-(2**63), 2**63) for _ in texts))
    sizes = ints(*(chance.randrange(2**31) for _ in texts))
    said = []
    for twin in TWINS:
        with running_on(twin):
            numbers, firsts = kernels.number_groups(*laid_out(texts), values)
            sums = kernels.sum_groups(numbers, len(firsts), times, sizes)
            said.append([each.tolist() for each in (numbers, firsts, *sums)])
    assert said[0] == said[-1]
