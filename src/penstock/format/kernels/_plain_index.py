"""The plain twin's index file: put, find, rewind. The reference for `_index.pxi`.

One writer at a time. A put stores the item, then the slot, then the header, so that whoever is cut off in
between leaves at most one slot that points at an item the header does not count.
"""

from __future__ import annotations

import struct

import numpy as np

from penstock.format.kernels._plain_log import check_room, view_of, writable_view_of
from penstock.format.kernels._types import Buffer, Ints, Longs, WritableBuffer

_HEADER_SIZE, _SLOT_SIZE, _ITEM_SIZE = 40, 4, 20
_BEGIN_TIMESTAMP, _END_TIMESTAMP, _BEGIN_OFFSET, _END_OFFSET, _SLOT_COUNT, _COUNT = 0, 8, 16, 24, 32, 36
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_ITEM = struct.Struct(">iqii")
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1


def index_put(
    out: WritableBuffer,
    slots: int,
    items: int,
    hashes: Ints,
    offsets: Longs,
    times: Longs,
    apart: bytearray | None = None,
) -> int:
    """Puts keys until the file is full; returns how many were put.

    With `apart` the new items, 20 bytes each, go there instead of into the file: the caller writes them to their place.
    """
    view = writable_view_of(out)
    check_geometry(view, slots, items)
    hashes = np.asarray(hashes, dtype=np.int32)
    offsets, times = np.asarray(offsets, dtype=np.int64), np.asarray(times, dtype=np.int64)
    if not len(hashes) == len(offsets) == len(times):
        raise ValueError("hashes, offsets and times differ in length")
    if len(hashes) and hashes.min() < 0:
        raise ValueError("a key's hash is never negative")
    if apart is not None:
        check_room(memoryview(apart), 0, _ITEM.size * len(hashes))
    done = 0
    for key_hash, offset, time in zip(hashes.tolist(), offsets.tolist(), times.tolist(), strict=True):
        count = max(1, _int(view, _COUNT))
        if count >= items:
            break
        slot_at = _HEADER_SIZE + _SLOT_SIZE * (key_hash % slots)
        previous = _int(view, slot_at)
        if not 0 < previous <= count:
            previous = 0
        begin = _long(view, _BEGIN_TIMESTAMP)
        seconds = min((time - begin) // 1000, _MAX_INT) if time > begin > 0 else 0
        target, at = (view, item_at(slots, count)) if apart is None else (apart, _ITEM.size * done)
        _ITEM.pack_into(target, at, key_hash, offset, seconds, previous)
        _INT.pack_into(view, slot_at, count)
        if count == 1:
            _LONG.pack_into(view, _BEGIN_OFFSET, offset)
            _LONG.pack_into(view, _BEGIN_TIMESTAMP, time)
        if previous == 0:
            _add_slots(view, 1)
        _INT.pack_into(view, _COUNT, count + 1)
        _LONG.pack_into(view, _END_OFFSET, offset)
        _LONG.pack_into(view, _END_TIMESTAMP, time)
        done += 1
    return done


def index_find(
    data: Buffer, slots: int, items: int, key_hash: int, begin: int, end: int, item: int, limit: int
) -> tuple[Longs, int]:
    """Offsets of the items with this hash whose second may hold a time in [begin, end], newest first.

    `item` is where to go on (0: from the slot). Returns the offsets and where to go on, 0 at the chain's end.
    Every step goes to a smaller number, so garbage cannot make it run in circles.
    """
    view = view_of(data)
    check_geometry(view, slots, items)
    if key_hash < 0:
        raise ValueError("a key's hash is never negative")
    begin, end = _clamp_long(begin), _clamp_long(end)
    number = item if item else _int(view, _HEADER_SIZE + _SLOT_SIZE * (key_hash % slots))
    first = _long(view, _BEGIN_TIMESTAMP)
    found: list[int] = []
    while 0 < number < items and len(found) < limit:
        item_hash, offset, seconds, previous = _ITEM.unpack_from(view, item_at(slots, number))
        if number == 1:
            seconds = 0  # the header's begin is its time; its own seconds count from the end of the file before
        time = first + seconds * 1000
        if item_hash == key_hash and (seconds == 0 or time <= end) and (time + 999 >= begin or seconds == _MAX_INT):
            found.append(offset)
        number = previous if previous < number else 0
    return np.array(found, dtype=np.int64), number if 0 < number < items else 0


def index_rewind(out: WritableBuffer, slots: int, items: int, count: int, new_count: int) -> None:
    """Undoes the puts of items new_count … count - 1 and zeroes them. The end fields are the caller's."""
    view = writable_view_of(out)
    check_geometry(view, slots, items)
    if not 1 <= new_count <= count <= items:
        raise ValueError(f"cannot go back from {count} items to {new_count} in a file for {items}")
    for number in range(count - 1, new_count - 1, -1):
        place = item_at(slots, number)
        key_hash, _, _, previous = _ITEM.unpack_from(view, place)
        slot_at = _HEADER_SIZE + _SLOT_SIZE * (key_hash % slots)
        # A slot that points below this item was never moved to it: the put was cut off before.
        if key_hash >= 0 and _int(view, slot_at) >= number:
            if not 0 < previous < number:
                previous = 0
                _add_slots(view, -1)
            _INT.pack_into(view, slot_at, previous)
        view[place : place + _ITEM_SIZE] = bytes(_ITEM_SIZE)
    _INT.pack_into(view, _COUNT, new_count)


def check_geometry(view: memoryview, slots: int, items: int) -> None:
    """Raises ValueError unless so many slots and items fit."""
    if slots < 1 or items < 1 or item_at(slots, items) > len(view):
        raise ValueError(f"{slots} slots and {items} items do not fit into {len(view)} bytes")


def item_at(slots: int, number: int) -> int:
    """Byte position of an item."""
    return _HEADER_SIZE + _SLOT_SIZE * slots + _ITEM_SIZE * number


def _add_slots(view: memoryview, change: int) -> None:
    """Non-empty slots: never below zero, wraps where a garbage header stands at the largest number."""
    count = max(0, _int(view, _SLOT_COUNT) + change)
    _INT.pack_into(view, _SLOT_COUNT, 0 if count > _MAX_INT else count)


def _int(view: memoryview, at: int) -> int:
    return int(_INT.unpack_from(view, at)[0])


def _long(view: memoryview, at: int) -> int:
    return int(_LONG.unpack_from(view, at)[0])


def _clamp_long(value: int) -> int:
    return max(-_MAX_LONG - 1, min(value, _MAX_LONG))
