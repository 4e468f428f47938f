"""The index file: put, find, rewind; and queries by key. Twin of index.pxi.

One writer at a time. A put stores the item, then the slot, then the header: a crash in between leaves at most one slot
that points to an item beyond the header's count.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from penstock.format.kernels.parameter_types import Bools, Buffer, Ints, Longs, UnitFile, WritableBuffer
from penstock.format.kernels.plain.dispatch import find_property
from penstock.format.kernels.plain.read import Residency
from penstock.format.kernels.plain.record import check_room, java_hash, view_of, walk, writable_view_of
from penstock.format.queue_unit import UNIT_SIZE, unpack_unit
from penstock.format.record_layout import head_of

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
    """Puts keys until the file is full; returns how many were put. Times are in milliseconds.

    If the buffer `apart` is given, the new items (20 bytes each) are written there; the caller copies them to the file.
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
    """Returns (physical offsets of items with this hash, newest first; the item to continue with, 0 at the end).

    Finds items whose second overlaps the times [begin, end] in milliseconds, at most `limit`. `item` is where to start;
    0 starts at the slot. Every step goes to a smaller item number, so garbage cannot make it loop.
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
            seconds = 0  # the header's begin is its time; its own seconds count from the end of the previous file
        time = first + seconds * 1000
        if item_hash == key_hash and (seconds == 0 or time <= end) and (time + 999 >= begin or seconds == _MAX_INT):
            found.append(offset)
        number = previous if previous < number else 0
    return np.array(found, dtype=np.int64), number if 0 < number < items else 0


def index_rewind(out: WritableBuffer, slots: int, items: int, count: int, new_count: int) -> None:
    """Undoes the puts of items new_count … count - 1 and zeroes them. The caller updates the header's end fields."""
    view = writable_view_of(out)
    check_geometry(view, slots, items)
    if not 1 <= new_count <= count <= items:
        raise ValueError(f"cannot go back from {count} items to {new_count} in a file for {items}")
    for number in range(count - 1, new_count - 1, -1):
        place = item_at(slots, number)
        key_hash, _, _, previous = _ITEM.unpack_from(view, place)
        slot_at = _HEADER_SIZE + _SLOT_SIZE * (key_hash % slots)
        # A slot that points below this item never pointed to it: the put was interrupted before that.
        if key_hash >= 0 and _int(view, slot_at) >= number:
            if not 0 < previous < number:
                previous = 0
                _add_slots(view, -1)
            _INT.pack_into(view, slot_at, previous)
        view[place : place + _ITEM_SIZE] = bytes(_ITEM_SIZE)
    _INT.pack_into(view, _COUNT, new_count)


def match_record(
    data: Buffer, at: int, base: int, readable: int, check_crc: bool, topic: bytes, key: bytes, begin: int, end: int
) -> bytes | None:
    """Returns the record at `at` as bytes if it is valid and has this topic, key and store timestamp; else None.

    `readable` is the length of the part of `data` that may be read.
    """
    view = view_of(data)[:readable]
    if not 0 <= at < len(view) or not key:
        return None
    rows, _, _ = walk(view, base, at, at + 1, check_crc, None, 1)
    if not len(rows):
        return None
    row = rows[0]
    record = bytes(view[at : at + row["size"]])
    if record[row["topic_at"] : row["topic_at"] + row["topic_length"]] != topic:
        return None
    if not begin <= row["store_timestamp"] <= end:
        return None
    keys = (find_property(record, 0, b"KEYS") or b"").split(b" ")
    return record if key in keys or key == find_property(record, 0, b"UNIQ_KEY") else None


def find_key(
    key: bytes,
    topic: bytes,
    indexes: list[Buffer],
    slots: int,
    items: int,
    logs: Sequence[Buffer],
    log_base: int,
    file_size: int,
    log_end: int,
    begin: int,
    end: int,
    max_records: int,
    check_crc: bool,
    index_residency: Sequence[Residency | None] | None = None,
    log_residency: Sequence[Residency | None] | None = None,
) -> list[bytes] | tuple[bool, int, int, int]:
    """Returns the newest `max_records` records with a key as bytes, oldest first, each once.

    The other arguments are those of `find_keys`. `index_residency` and `log_residency` tell what is in memory, for each
    file; None: all of it is. If a range that has to be read is not in memory, returns (whether it lies in the index,
    number of the file, start, stop) instead; the caller loads it and calls again. Chains of index items are followed
    without the GIL, in memory or not.
    """
    if slots <= 0 or file_size <= 0:
        raise ValueError("an index has slots, and a log file has bytes")
    if len(index_residency or indexes) != len(indexes) or len(log_residency or logs) != len(logs):
        raise ValueError("the residency of each file is needed")
    records: dict[int, bytes] = {}
    slot = 40 + 4 * (_hash_of(topic, key) % slots)
    for number, table in reversed(list(enumerate(indexes))):
        residency = None if index_residency is None else index_residency[number]
        if residency is not None and not residency.check(slot, slot + 4):
            return True, number, slot, slot + 4
        for offset in _candidates(table, slots, items, topic, key, begin, end):
            place, at = divmod(offset - log_base, file_size)
            is_in_log = log_base <= offset < log_end and place < len(logs)
            if len(records) >= max_records or not is_in_log or offset in records:
                continue
            base = log_base + place * file_size
            residency = None if log_residency is None else log_residency[place]
            stop = 0 if residency is None else _cold_end(residency, view_of(logs[place])[: log_end - base], at)
            if stop:
                return False, place, at, stop
            record = match_record(logs[place], at, base, log_end - base, check_crc, topic, key, begin, end)
            if record is not None:
                records[offset] = record
    return [records[offset] for offset in sorted(records)]


def find_keys(
    keys: list[str],
    topic: bytes,
    indexes: list[Buffer],
    slots: int,
    items: int,
    logs: Sequence[Buffer],
    log_base: int,
    file_size: int,
    log_end: int,
    begin: int,
    end: int,
    check_crc: bool,
    units: list[UnitFile],
) -> tuple[Longs, Longs, Bools]:
    """Finds the records with many keys at once; returns (numbers of the keys, physical offsets, confirmed).

    indexes          whole index files, each with `slots` slots and `items` items
    logs             the files of the log in order, each of `file_size` bytes; the first starts at `log_base`
    log_end          physical offset up to which the log may be read
    begin, end       first and last store timestamp, in milliseconds
    check_crc        whether to check the CRC of each record's body
    units            the topic's queue files as UnitFile, in the order of queue id and offset

    A record that names a key twice is returned twice. Confirmed is a record whose own unit points to it.
    """
    if file_size <= 0:
        raise ValueError("a log file has bytes")
    numbers, offsets, confirmed = [], [], []
    for table in indexes:
        for number, text in enumerate(keys):
            key = text.encode()
            for offset in _candidates(table, slots, items, topic, key, begin, end):
                place, at = divmod(offset - log_base, file_size)
                if not log_base <= offset < log_end or place >= len(logs):
                    continue
                data, base = logs[place], log_base + place * file_size
                record = match_record(data, at, base, file_size, check_crc, topic, key, begin, end)
                if record is not None:
                    numbers.append(number)
                    offsets.append(offset)
                    confirmed.append(_is_confirmed(record, units))
    return np.array(numbers, np.int64), np.array(offsets, np.int64), np.array(confirmed, np.bool_)


def _is_confirmed(record: bytes, units: list[UnitFile]) -> bool:
    """Whether the unit that a record names points to it."""
    head = head_of(record)
    for each in units:
        at = (head.queue_offset - each.first) * UNIT_SIZE
        view = view_of(each.data)[: max(0, each.readable)]
        if each.queue_id == head.queue_id and 0 <= at <= len(view) - UNIT_SIZE:
            return unpack_unit(view, at)[:2] == (head.physical_offset, head.size)
    return False


def _cold_end(residency: Residency, log: memoryview, at: int) -> int:
    """Returns the end of the record at `at`, or of its size field, if that is not in memory; 0 if it is."""
    end = min(at + 4, len(log))
    if not residency.check(at, end):
        return end
    end = min(at + max(int.from_bytes(log[at:end], "big", signed=True), 4), len(log))
    return 0 if residency.check(at, end) else end


def _hash_of(topic: bytes, key: bytes) -> int:
    code = abs(java_hash((topic + b"#" + key).decode("utf-8", "replace")))
    return 0 if code == 2**31 else code


def _candidates(data: Buffer, slots: int, items: int, topic: bytes, key: bytes, begin: int, end: int) -> list[int]:
    """Returns the physical offsets under the hash of topic and key, newest first."""
    offsets, _ = index_find(data, slots, items, _hash_of(topic, key), begin, end, 0, _MAX_INT)
    return list(offsets.tolist())


def check_geometry(view: memoryview, slots: int, items: int) -> None:
    """Raises ValueError unless the file has room for the slots and items."""
    if slots < 1 or items < 1 or item_at(slots, items) > len(view):
        raise ValueError(f"{slots} slots and {items} items do not fit into {len(view)} bytes")


def item_at(slots: int, number: int) -> int:
    """Returns the byte position of an item."""
    return _HEADER_SIZE + _SLOT_SIZE * slots + _ITEM_SIZE * number


def _add_slots(view: memoryview, change: int) -> None:
    """Changes the header's count of used slots: never below zero; wraps to 0 if a garbage header is at the maximum."""
    count = max(0, _int(view, _SLOT_COUNT) + change)
    _INT.pack_into(view, _SLOT_COUNT, 0 if count > _MAX_INT else count)


def _int(view: memoryview, at: int) -> int:
    return int(_INT.unpack_from(view, at)[0])


def _long(view: memoryview, at: int) -> int:
    return int(_LONG.unpack_from(view, at)[0])


def _clamp_long(value: int) -> int:
    return max(-_MAX_LONG - 1, min(value, _MAX_LONG))
