"""What an audit checks in bulk: the chains of an index file."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.effort import TWINS, running_on

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = IndexGeometry(slots=7, items=20)


Keys = tuple[kernels.Ints, kernels.Longs, kernels.Longs]


def some_keys(count: int, seed: int = 0) -> Keys:
    chance = random.Random(seed)
    hashes = np.array([chance.randrange(2**31) for _ in range(count)], np.int32)
    return hashes, np.arange(count, dtype=np.int64) * 100, 5_000 + np.arange(count, dtype=np.int64) * 700


def index_of(keys: Keys, geometry: IndexGeometry = SMALL) -> bytearray:
    file = bytearray(geometry.file_size)
    assert kernels.index_put(file, *geometry, *keys) == len(keys[0])
    return file


# -- chains --------------------------------------------------------------------------------------------------------


def chains(file: bytearray, start: int, stop: int, newest: kernels.Ints) -> tuple[list[int], list[int]]:
    wrong, back = kernels.check_chains(file, *SMALL, start, stop, newest)
    return wrong.tolist(), back.tolist()


def test_chains_that_were_put_are_right_and_end_in_the_slots() -> None:
    file, newest = index_of(some_keys(19)), np.zeros(7, np.int32)
    assert chains(file, 1, 8, newest) == ([], [])
    assert chains(file, 8, 20, newest) == ([], [])
    assert newest.tolist() == np.frombuffer(file, ">i4", 7, 40).tolist()


def test_an_item_that_points_elsewhere_is_named_and_the_others_are_not() -> None:
    file, newest = index_of(some_keys(19)), np.zeros(7, np.int32)
    file[SMALL.item_position(9) + 19] ^= 1
    assert chains(file, 1, 20, newest) == ([9], [])


def test_an_item_with_a_negative_hash_is_in_no_chain() -> None:
    file, newest = index_of(some_keys(4)), np.zeros(7, np.int32)
    file[SMALL.item_position(4)] |= 0x80
    assert chains(file, 1, 5, newest)[0] == [4]
    assert 4 not in newest


def test_an_item_that_lies_before_its_predecessor_is_named() -> None:
    hashes, offsets, times = some_keys(10)
    offsets[4] = 1
    file, newest = index_of((hashes, offsets, times)), np.zeros(7, np.int32)
    assert chains(file, 1, 5, newest) == ([], [])
    assert chains(file, 5, 11, newest) == ([], [5])


def test_items_and_slots_that_are_not_there_are_refused() -> None:
    file = index_of(some_keys(3))
    for start, stop in ((0, 3), (1, 21), (21, 3), (2**40, 0), (2**62, 0)):
        with pytest.raises(ValueError, match="has no items"):
            kernels.check_chains(file, *SMALL, start, stop, np.zeros(7, np.int32))
    with pytest.raises(ValueError, match="not those of 7 slots"):
        kernels.check_chains(file, *SMALL, 1, 3, np.zeros(6, np.int32))


def test_both_twins_agree_on_garbage() -> None:
    chance = random.Random(5)
    for _ in range(200):
        file = bytearray(chance.randbytes(SMALL.file_size))
        answers = []
        for twin in TWINS:
            newest = np.zeros(7, np.int32)
            with running_on(twin):
                wrong, back = kernels.check_chains(file, *SMALL, 1, 20, newest)
                answers.append((wrong.tolist(), back.tolist(), newest.tolist()))
        assert all(answer == answers[0] for answer in answers)
