"""The index file: put, find, rewind."""

from __future__ import annotations

import mmap
import random

import numpy as np
import pytest
from support.messages import G1

from penstock.format import kernels
from penstock.format.index_layout import (
    IndexGeometry,
    IndexHeader,
    IndexItem,
    key_hash,
    pack_item,
    unpack_item,
)
from penstock.store.queue_units_and_keys import key_columns

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL = IndexGeometry(slots=7, items=20)
EVER = 2**62


def put(file: kernels.WritableBuffer, *keys: tuple[int, int, int], geometry: IndexGeometry = SMALL) -> int:
    """Puts (hash, offset, time) triples."""
    hashes, offsets, times = zip(*keys, strict=True) if keys else ((), (), ())
    return kernels.index_put(
        file, *geometry, np.array(hashes, np.int32), np.array(offsets, np.int64), np.array(times, np.int64)
    )


def find(file: kernels.Buffer, hashed: int, begin: int = 0, end: int = EVER, geometry: IndexGeometry = SMALL):
    offsets, item = kernels.index_find(file, *geometry, hashed, begin, end, 0, 1000)
    assert item == 0
    return offsets.tolist()


def empty(geometry: IndexGeometry = SMALL) -> bytearray:
    return bytearray(geometry.file_size)


def test_items_made_apart_are_those_that_would_stand_in_the_file() -> None:
    keys = [(number * 5 % 11, 100 + number, 1000 * number) for number in range(25)]
    columns = [np.array(column, kind) for column, kind in zip(zip(*keys, strict=True), "iqq", strict=True)]
    whole, parted, apart = empty(), empty(), bytearray(20 * 25)
    assert put(whole, *keys) == 19
    assert kernels.index_put(parted, *SMALL, *columns, apart) == 19
    begin = SMALL.item_position(1)
    assert not any(parted[begin:])
    parted[begin : begin + 20 * 19] = apart[: 20 * 19]
    assert parted == whole
    with pytest.raises(ValueError, match="do not fit"):
        kernels.index_put(empty(), *SMALL, *columns, bytearray(20 * 24))


def test_the_golden_record_makes_the_file_that_java_makes() -> None:
    geometry = IndexGeometry()
    assert geometry.file_size == 420_000_040
    file = mmap.mmap(-1, geometry.file_size)
    builder = kernels.RangeBuilder(kernels.TopicTable(), (), True, None, 2**40, 2**40)
    builder.take(G1, 0, 0, 180)
    assert kernels.index_put(file, *geometry, *key_columns(builder.key_table())) == 2
    assert file[:40] == bytes.fromhex(
        "00000174876e84d2 00000174876e84d2 0000000000000000 0000000000000000 00000002 00000003"
    )
    assert file[17_491_668:17_491_672] == bytes.fromhex("00000001")
    assert file[7_061_036:7_061_040] == bytes.fromhex("00000002")
    assert file[20_000_060:20_000_080] == bytes.fromhex("2e27fe2b 0000000000000000 00000000 00000000")
    assert file[20_000_080:20_000_100] == bytes.fromhex("483a1201 0000000000000000 00000000 00000000")
    assert [geometry.item_position(number) for number in (1, 2)] == [20_000_060, 20_000_080]
    assert find(file, key_hash("TopicTest", "order_123"), geometry=geometry) == [0]
    file.close()


def test_header_and_items_are_values() -> None:
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    assert IndexHeader.unpack(header.pack() + b"more") == header
    assert header.with_end(30, 20) == IndexHeader(1, 20, 3, 30, 5, 6)
    item = IndexItem(7, 8, 9, 10)
    assert unpack_item(b"xx" + pack_item(*item), 2) == item


def test_a_put_chains_the_items_of_a_slot_and_keeps_the_header() -> None:
    file = empty()
    assert put(file, (3, 100, 5_000), (10, 200, 7_999), (3, 300, 8_000), (4, 400, 8_500)) == 4
    assert IndexHeader.unpack(file) == IndexHeader(5_000, 8_500, 100, 400, 2, 5)
    items = [unpack_item(file, SMALL.item_position(number)) for number in range(1, 5)]
    assert items == [(3, 100, 0, 0), (10, 200, 2, 1), (3, 300, 3, 2), (4, 400, 3, 0)]
    assert file[SMALL.slot_position(3) : SMALL.slot_position(5)] == bytes.fromhex("00000003 00000004")


def test_items_of_a_chain_are_found_newest_first() -> None:
    file = empty()
    put(file, (3, 100, 5_000), (10, 200, 7_999), (3, 300, 8_000))
    assert find(file, 3) == [300, 100]
    assert find(file, 10) == [200]
    assert find(file, 17) == []
    assert find(file, 0) == []


def test_keys_with_equal_hashes_are_found_together() -> None:
    assert key_hash("T", "Aa") == key_hash("T", "BB")
    file = empty()
    put(file, (key_hash("T", "Aa"), 100, 5_000), (key_hash("T", "BB"), 200, 5_000))
    assert find(file, key_hash("T", "Aa")) == [200, 100]


def test_a_full_file_takes_no_more() -> None:
    file = empty()
    keys = [(number, 100 * number, 5_000) for number in range(1, 31)]
    assert put(file, *keys) == 19
    assert put(file, (1, 1, 1)) == 0
    assert IndexHeader.unpack(file).index_count == 20
    assert [find(file, number) for number in (1, 19, 20)] == [[100], [1_900], []]


def test_a_rolled_file_counts_its_first_items_seconds_from_the_old_files_end() -> None:
    file = empty()
    file[:40] = IndexHeader(5_000, 5_000, 100, 100, 0, 0).pack()
    put(file, (3, 200, 9_000), (3, 300, 11_000))
    assert IndexHeader.unpack(file) == IndexHeader(9_000, 11_000, 200, 300, 1, 3)
    assert [unpack_item(file, SMALL.item_position(number)).seconds for number in (1, 2)] == [4, 2]


@pytest.mark.parametrize(
    ("begin", "time", "seconds"),
    [
        (0, 9_000, 0),
        (-5, 9_000, 0),
        (9_000, 5_000, 0),
        (1, 2**62, 2**31 - 1),
        (1_000, 2_999, 1),
        (5, -(2**63), 0),
    ],
)
def test_seconds_are_cut_and_kept_between_zero_and_the_largest_number(begin: int, time: int, seconds: int) -> None:
    file = empty()
    file[:40] = IndexHeader(begin, 0, 0, 0, 1, 2).pack()
    put(file, (3, 200, time))
    assert unpack_item(file, SMALL.item_position(2)).seconds == seconds


@pytest.mark.parametrize("slot", [-1, 3, 19, 2**31 - 1])
def test_a_slot_that_points_nowhere_counts_as_empty(slot: int) -> None:
    file = empty()
    put(file, (1, 100, 5_000))
    file[SMALL.slot_position(3) : SMALL.slot_position(4)] = slot.to_bytes(4, "big", signed=True)
    put(file, (3, 200, 5_000))
    assert unpack_item(file, SMALL.item_position(2)).previous == 0
    assert IndexHeader.unpack(file).hash_slot_count == 2


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [
        (0, EVER, [300, 200, 100]),
        (8_999, EVER, [300, 200]),
        (9_000, EVER, [300]),
        (0, 7_999, [100]),
        (0, 8_000, [200, 100]),
        (0, 4_000, [100]),  # an item of second 0 may be older than the file's begin: keep it
        (2**70, 2**71, []),
        (-(2**70), 2**70, [300, 200, 100]),
    ],
)
def test_the_time_narrows_to_the_seconds_that_may_match(begin: int, end: int, found: list[int]) -> None:
    file = empty()
    put(file, (3, 100, 5_000), (3, 200, 8_500), (3, 300, 15_000))
    assert find(file, 3, begin, end) == found


def test_an_item_of_the_largest_second_may_be_of_any_later_time() -> None:
    file = empty()
    put(file, (3, 100, 1), (3, 200, EVER))
    assert find(file, 3, EVER) == [200]


def test_a_search_goes_on_where_it_stopped() -> None:
    file = empty()
    put(file, *((3, offset, 5_000) for offset in range(100, 110)))
    pages, item = [], 0
    while True:
        offsets, item = kernels.index_find(file, *SMALL, 3, 0, EVER, item, 4)
        pages.append(offsets.tolist())
        if not item:
            break
    assert pages == [[109, 108, 107, 106], [105, 104, 103, 102], [101, 100]]


def test_a_search_for_nothing_says_where_it_would_begin() -> None:
    file = empty()
    put(file, (3, 100, 5_000), (3, 200, 5_000))
    offsets, item = kernels.index_find(file, *SMALL, 3, 0, EVER, 0, 0)
    assert (offsets.tolist(), item) == ([], 2)


def test_a_long_chain_is_followed_to_its_end() -> None:
    geometry = IndexGeometry(1, 5_000)
    file = empty(geometry)
    put(file, *((number % 3, number, 5_000) for number in range(4_999)), geometry=geometry)
    offsets, item = kernels.index_find(file, *geometry, 1, 0, EVER, 0, 10_000)
    assert (offsets.tolist(), item) == (list(range(4_996, 0, -3)), 0)


@pytest.mark.parametrize("previous", [2, 3, 19, 20, 2**31 - 1, -1])
def test_a_chain_never_leads_upwards_or_outside(previous: int) -> None:
    file = empty()
    put(file, (3, 100, 5_000), (3, 200, 5_000))
    position = SMALL.item_position(2)
    file[position : position + 20] = pack_item(3, 200, 0, previous)
    assert find(file, 3) == [200]


@pytest.mark.parametrize("item", [-1, 20, 2**31, 2**60])
def test_a_search_cannot_be_started_outside(item: int) -> None:
    offsets, following = kernels.index_find(empty(), *SMALL, 3, 0, EVER, item, 10)
    assert (offsets.tolist(), following) == ([], 0)


def test_a_search_in_garbage_ends() -> None:
    chance = random.Random(20_240_607)
    for _ in range(50):
        file = bytearray(chance.randbytes(SMALL.file_size))
        for slot in range(SMALL.slots):
            file[SMALL.slot_position(slot) : SMALL.slot_position(slot + 1)] = chance.randrange(25).to_bytes(4, "big")
        for number in range(SMALL.items):
            position = SMALL.item_position(number)
            file[position : position + 20] = pack_item(
                chance.randrange(9), number, chance.randrange(-3, 3), chance.randrange(-2, 25)
            )
        for hashed in range(9):
            found = find(file, hashed, -EVER)
            assert found == sorted(set(found), reverse=True)


def test_a_rewind_undoes_puts_to_the_byte() -> None:
    chance = random.Random(5)
    keys = [(chance.randrange(30), 100 * number, 5_000 + number * 700) for number in range(19)]
    for kept in range(1, 20):
        file, expected = empty(), empty()
        put(file, *keys)
        put(expected, *keys[: kept - 1])
        kernels.index_rewind(file, *SMALL, 20, kept)
        header = IndexHeader.unpack(file)
        assert header.index_count == kept
        if kept > 1:
            last = keys[kept - 2]
            file[:40] = header.with_end(last[1], last[2]).pack()
            assert file == expected
        else:
            assert header.hash_slot_count == 0
            assert not any(file[40:])


def test_a_rewind_leaves_a_slot_alone_whose_put_was_cut_off_before_it() -> None:
    file = empty()
    put(file, (3, 100, 5_000))
    position = SMALL.item_position(2)
    file[position : position + 20] = pack_item(3, 200, 0, 1)
    before = bytes(file[:position]), IndexHeader.unpack(file)
    kernels.index_rewind(file, *SMALL, 3, 2)
    assert (bytes(file[:position]), IndexHeader.unpack(file)) == before
    assert not any(file[position:])


@pytest.mark.parametrize(("count", "new_count"), [(3, 0), (3, 4), (21, 3), (0, 0), (-1, -1)])
def test_a_rewind_to_nowhere_is_refused(count: int, new_count: int) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        kernels.index_rewind(empty(), *SMALL, count, new_count)


@pytest.mark.parametrize("geometry", [(0, 20), (7, 0), (8, 20), (7, 21), (-1, 20), (2**61, 1), (7, 2**60)])
def test_a_geometry_that_does_not_fit_the_file_is_refused(geometry: tuple[int, int]) -> None:
    file, none = empty(), np.empty(0, np.int64)
    for call in (
        lambda: kernels.index_put(file, *geometry, np.empty(0, np.int32), none, none),
        lambda: kernels.index_find(file, *geometry, 0, 0, 0, 0, 1),
        lambda: kernels.index_rewind(file, *geometry, 1, 1),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            call()


def test_columns_of_different_lengths_and_negative_hashes_are_refused() -> None:
    file, one, two = empty(), np.ones(1, np.int64), np.ones(2, np.int64)
    with pytest.raises(ValueError, match="differ in length"):
        kernels.index_put(file, *SMALL, np.ones(1, np.int32), one, two)
    with pytest.raises(ValueError, match="never negative"):
        put(file, (1, 1, 1), (-1, 1, 1))
    with pytest.raises(ValueError, match="never negative"):
        find(file, -1)
    assert not any(file)
