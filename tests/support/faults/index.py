"""Faults in the index: each function plants one in a `SoundStore` and returns the kinds of findings that are due."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry, IndexHeader, IndexItem, pack_item, unpack_item
from support.damage import ITEMS, SLOTS, SoundStore

Kinds = set[str]
GEOMETRY = IndexGeometry(SLOTS, ITEMS)


def _set_header(path: Path, change: Callable[[IndexHeader], IndexHeader]) -> None:
    data = bytearray(path.read_bytes())
    data[:40] = change(IndexHeader.unpack(data)).pack()
    path.write_bytes(data)


def _replace(path: Path, **fields: int) -> None:
    _set_header(path, lambda header: msgspec.structs.replace(header, **fields))


def _item(path: Path, number: int) -> IndexItem:
    return unpack_item(path.read_bytes(), GEOMETRY.item_position(number))


def _set_item(store: SoundStore, path: Path, number: int, **fields: int) -> None:
    store.write(path, GEOMETRY.item_position(number), pack_item(*_item(path, number)._replace(**fields)))


def _chained(path: Path) -> int:
    """An item in the middle that has one before it in its slot, and one after it; its key shares its hash with none."""
    items = {number: _item(path, number) for number in range(1, ITEMS)}
    hashes = Counter(item.key_hash for item in items.values())
    followed = {item.previous for item in items.values()}
    return next(
        number
        for number, item in items.items()
        if number > ITEMS // 3 and number in followed and item.previous and hashes[item.key_hash] == 1
    )


def a_header_that_counts_too_many_items(store: SoundStore) -> Kinds:
    path = store.index_files()[-1]
    _replace(path, index_count=store.header(path).index_count + 1)
    return {"index-count"}


def a_header_that_counts_too_few_items(store: SoundStore) -> Kinds:
    path = store.index_files()[-1]
    _replace(path, index_count=store.header(path).index_count - 3)
    return {"index-count"}


def a_header_that_counts_more_items_than_fit(store: SoundStore) -> Kinds:
    _replace(store.index_files()[0], index_count=2**31 - 1)
    return {"index-count"}


def a_header_that_counts_other_slots(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    _replace(path, hash_slot_count=store.header(path).hash_slot_count - 1)
    return {"index-slot-count"}


def a_header_that_counts_slots_as_4_7_did(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    _replace(path, hash_slot_count=store.header(path).index_count - 1)
    return {"index-old-count"}


def a_header_with_a_wrong_first_time(store: SoundStore) -> Kinds:
    """Every item's seconds count from it."""
    path = store.index_files()[0]
    _replace(path, begin_timestamp=store.header(path).begin_timestamp + 60_000)
    return {"index-times", "index-item-time"}


def a_header_with_a_wrong_last_time(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    _replace(path, end_timestamp=store.header(path).end_timestamp + 60_000)
    return {"index-times"}


def a_header_with_wrong_offsets(store: SoundStore) -> Kinds:
    """Its times are then those of no record either."""
    path = store.index_files()[0]
    header = store.header(path)
    _replace(path, begin_physical_offset=header.begin_physical_offset + 1, end_physical_offset=7)
    return {"index-offsets"}


def an_item_that_points_to_itself(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    _set_item(store, path, number, previous=number)
    return {"index-cycle"}


def an_item_that_points_to_a_later_one(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    later = next(each for each in range(number + 1, ITEMS) if _item(path, each).previous == number)
    _set_item(store, path, number, previous=later)
    return {"index-cycle"}


def a_chain_that_leaves_an_item_out(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    _set_item(store, path, number, previous=0)
    return {"index-chain"}


def a_slot_that_points_to_another_item(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    slot = GEOMETRY.slot_of(_item(path, number).key_hash)
    store.write(path, GEOMETRY.slot_position(slot), (number).to_bytes(4, "big"))
    return {"index-slot"}


def a_slot_that_was_lost(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    slot = GEOMETRY.slot_of(_item(path, number).key_hash)
    store.write(path, GEOMETRY.slot_position(slot), bytes(4))
    return {"index-slot"}


def an_item_in_the_wrong_slot(store: SoundStore) -> Kinds:
    """Another hash: the chains of both slots are wrong, the key is not found, and the item belongs to no key."""
    path = store.index_files()[0]
    number = _chained(path)
    later = [_item(path, each) for each in range(number + 1, ITEMS)]
    other = next(item for item in later if 0 < item.previous < number)
    _set_item(store, path, number, key_hash=_item(path, other.previous).key_hash)
    return {"index-chain", "index-dangling", "index-key-missing"}


def an_item_with_a_wrong_hash(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    _set_item(store, path, number, key_hash=_item(path, number).key_hash + SLOTS)
    return {"index-dangling", "index-key-missing"}


def an_item_that_points_to_another_place(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    _set_item(store, path, number, physical_offset=_item(path, number).physical_offset + 1)
    return {"index-dangling", "index-key-missing"}


def an_item_that_points_past_the_log(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    _set_item(store, path, number, physical_offset=2**40)
    return {"index-past-log", "index-key-missing"}


def an_item_with_a_wrong_time(store: SoundStore) -> Kinds:
    path = store.index_files()[0]
    number = _chained(path)
    _set_item(store, path, number, seconds=_item(path, number).seconds + 5)
    return {"index-item-time"}


def an_item_for_a_key_that_no_record_has(store: SoundStore) -> Kinds:
    _put(store, [4711], [store.header(store.index_files()[-1]).end_physical_offset])
    return {"index-dangling"}


def a_record_that_rocketmq_indexed_twice(store: SoundStore) -> Kinds:
    path = store.index_files()[-1]
    header = store.header(path)
    again = [
        item.key_hash
        for item in (_item(path, number) for number in range(1, header.index_count))
        if item.physical_offset == header.end_physical_offset
    ]
    _put(store, again, [header.end_physical_offset] * len(again))
    return {"index-repeated"}


def a_key_that_is_not_in_the_index(store: SoundStore) -> Kinds:
    path = store.index_files()[-1]
    header = store.header(path)
    data = bytearray(path.read_bytes())
    kernels.index_rewind(data, *GEOMETRY, header.index_count, header.index_count - 1)
    path.write_bytes(data)
    assert _item(path, header.index_count - 2).physical_offset == header.end_physical_offset
    return {"index-key-missing"}


def no_index_at_all(store: SoundStore) -> Kinds:
    shutil.rmtree(store.folder / "index")
    return {"index-key-missing"}


def a_missing_index_file(store: SoundStore) -> Kinds:
    store.index_files()[1].unlink()
    return {"index-key-missing"}


def an_empty_index_file(store: SoundStore) -> Kinds:
    store.index_files()[1].write_bytes(b"")
    return {"index-file-empty", "index-key-missing"}


def an_index_file_of_another_size(store: SoundStore) -> Kinds:
    path = store.index_files()[1]
    path.write_bytes(path.read_bytes() + bytes(4))
    return {"index-file-size", "index-key-missing"}


def a_foreign_file_in_the_index(store: SoundStore) -> Kinds:
    (store.folder / "index" / "notes.txt").write_text("mine")
    return {"foreign-file"}


def _put(store: SoundStore, hashes: list[int], offsets: list[int]) -> None:
    """Adds items as a store would."""
    path = store.index_files()[-1]
    header, data = store.header(path), bytearray(path.read_bytes())
    times = np.full(len(hashes), header.end_timestamp, np.int64)
    assert kernels.index_put(data, *GEOMETRY, np.array(hashes, np.int32), np.array(offsets, np.int64), times) == len(
        hashes
    )
    path.write_bytes(data)


INDEX_FAULTS = [
    a_header_that_counts_too_many_items,
    a_header_that_counts_too_few_items,
    a_header_that_counts_more_items_than_fit,
    a_header_that_counts_other_slots,
    a_header_that_counts_slots_as_4_7_did,
    a_header_with_a_wrong_first_time,
    a_header_with_a_wrong_last_time,
    a_header_with_wrong_offsets,
    an_item_that_points_to_itself,
    an_item_that_points_to_a_later_one,
    a_chain_that_leaves_an_item_out,
    a_slot_that_points_to_another_item,
    a_slot_that_was_lost,
    an_item_in_the_wrong_slot,
    an_item_with_a_wrong_hash,
    an_item_that_points_to_another_place,
    an_item_that_points_past_the_log,
    an_item_with_a_wrong_time,
    an_item_for_a_key_that_no_record_has,
    a_record_that_rocketmq_indexed_twice,
    a_key_that_is_not_in_the_index,
    no_index_at_all,
    a_missing_index_file,
    an_empty_index_file,
    an_index_file_of_another_size,
    a_foreign_file_in_the_index,
]
