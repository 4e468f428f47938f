"""What an audit compares in bulk: queue units, index items, index chains."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.effort import TWINS, running_on
from support.messages import make_log

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.format.queue_unit import pack_unit

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = IndexGeometry(slots=7, items=20)


def rows_of(count: int, first: int = 0) -> kernels.Rows:
    """Rows of a queue whose offsets begin at `first`."""
    log = make_log([b"x" * number for number in range(count)])
    rows, _, _ = kernels.walk(log, 0, 0, len(log), True, None, count)
    assert len(rows) == count
    rows["queue_offset"] += first
    rows["tags_code"] = np.arange(count) * -(2**40)
    return rows


def units_of(rows: kernels.Rows) -> bytearray:
    fields = zip(*(rows[name].tolist() for name in ("physical_offset", "size", "tags_code")), strict=True)
    return bytearray(b"".join(pack_unit(*unit) for unit in fields))


def every(rows: kernels.Rows) -> kernels.Longs:
    return np.arange(len(rows), dtype=np.int64)


# -- units ---------------------------------------------------------------------------------------------------------


def test_units_that_are_as_they_should_be_match_to_the_end() -> None:
    rows = rows_of(10, first=5)
    assert kernels.match_units(units_of(rows), 5, rows, every(rows), 0) == 10
    assert kernels.match_units(units_of(rows), 5, rows, every(rows), 7) == 10
    assert kernels.match_units(bytes(100) + units_of(rows), 0, rows, every(rows), 0) == 10


@pytest.mark.parametrize("byte", [0, 7, 8, 11, 12, 19])
def test_a_match_ends_at_a_unit_with_any_wrong_byte(byte: int) -> None:
    rows = rows_of(10)
    units = units_of(rows)
    units[4 * 20 + byte] ^= 1
    assert kernels.match_units(units, 0, rows, every(rows), 0) == 4
    assert kernels.match_units(units, 0, rows, every(rows), 4) == 4
    assert kernels.match_units(units, 0, rows, every(rows), 5) == 10


def test_a_match_ends_where_the_units_end_or_have_not_begun() -> None:
    rows = rows_of(10)
    assert kernels.match_units(units_of(rows)[: 6 * 20 + 19], 0, rows, every(rows), 0) == 6
    assert kernels.match_units(units_of(rows)[40:], 2, rows, every(rows), 0) == 0
    assert kernels.match_units(b"", 0, rows, every(rows), 3) == 3


def test_a_match_ends_where_the_queue_offsets_jump() -> None:
    rows = rows_of(10)
    picks = np.array([0, 1, 2, 5, 6], np.int64)
    assert kernels.match_units(units_of(rows), 0, rows, picks, 0) == 3
    assert kernels.match_units(units_of(rows), 0, rows, picks, 3) == 5


def test_a_queue_offset_that_cannot_be_matches_nothing() -> None:
    for offset in (-1, 2**63 - 1, -(2**63)):
        rows = rows_of(1)
        rows["queue_offset"] = offset
        assert kernels.match_units(bytes(100), 0, rows, every(rows), 0) == 0


def test_picks_that_are_no_rows_are_refused() -> None:
    rows = rows_of(2)
    for pick in (-1, 2):
        with pytest.raises(ValueError, match="not the number of a row"):
            kernels.match_units(bytes(100), 0, rows, np.array([pick], np.int64), 0)
    with pytest.raises(ValueError):
        kernels.match_units(bytes(100), 0, rows, every(rows), -1)
    with pytest.raises(ValueError):
        kernels.match_units(bytes(100), 0, rows, np.array([0], np.int32), 0)  # type: ignore[arg-type]


# -- items ---------------------------------------------------------------------------------------------------------

Keys = tuple[kernels.Ints, kernels.Longs, kernels.Longs]


def some_keys(count: int, seed: int = 0) -> Keys:
    chance = random.Random(seed)
    hashes = np.array([chance.randrange(2**31) for _ in range(count)], np.int32)
    return hashes, np.arange(count, dtype=np.int64) * 100, 5_000 + np.arange(count, dtype=np.int64) * 700


def index_of(keys: Keys, geometry: IndexGeometry = SMALL) -> bytearray:
    file = bytearray(geometry.file_size)
    assert kernels.index_put(file, *geometry, *keys) == len(keys[0])
    return file


def test_items_match_the_keys_they_were_made_of() -> None:
    keys = some_keys(19)
    file = index_of(keys)
    assert kernels.match_items(file, *SMALL, 1, *keys) == 19
    assert kernels.match_items(file, *SMALL, 5, *(column[4:9] for column in keys)) == 5


@pytest.mark.parametrize("byte", [0, 3, 4, 11, 12, 15])
def test_a_match_ends_at_an_item_with_another_hash_offset_or_time(byte: int) -> None:
    keys = some_keys(10)
    file = index_of(keys)
    file[SMALL.item_position(4) + byte] ^= 1
    assert kernels.match_items(file, *SMALL, 1, *keys) == 3


def test_the_seconds_of_the_first_item_do_not_count() -> None:
    """They count from the end of the previous file."""
    keys = some_keys(3)
    file = index_of(keys)
    file[SMALL.item_position(1) + 15] = 99
    assert kernels.match_items(file, *SMALL, 1, *keys) == 3


def test_a_match_ends_where_the_file_ends() -> None:
    keys = some_keys(30)
    file = index_of(tuple(column[:19] for column in keys))  # type: ignore[arg-type]
    assert kernels.match_items(file, *SMALL, 1, *keys) == 19
    assert kernels.match_items(file, *SMALL, 20, *keys) == 0


def test_items_that_cannot_be_asked_for_are_refused() -> None:
    keys = some_keys(3)
    with pytest.raises(ValueError, match="not the number of an item"):
        kernels.match_items(index_of(keys), *SMALL, 0, *keys)
    with pytest.raises(ValueError, match="do not fit"):
        kernels.match_items(bytes(100), *SMALL, 1, *keys)
    with pytest.raises(ValueError, match="differ in length"):
        kernels.match_items(index_of(keys), *SMALL, 1, keys[0][:2], keys[1], keys[2])


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
        rows = rows_of(8)
        rows["queue_offset"] = [chance.randrange(-2, 9) for _ in range(8)]
        start, keys = chance.randrange(8), some_keys(8, chance.randrange(99))
        answers = []
        for twin in TWINS:
            newest = np.zeros(7, np.int32)
            with running_on(twin):
                wrong, back = kernels.check_chains(file, *SMALL, 1, 20, newest)
                answers.append(
                    (
                        kernels.match_units(units_of(rows), 0, rows, every(rows), start),
                        kernels.match_items(file, *SMALL, 1 + start, *keys),
                        wrong.tolist(),
                        back.tolist(),
                        newest.tolist(),
                    )
                )
        assert all(answer == answers[0] for answer in answers)
