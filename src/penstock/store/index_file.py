"""One index file: a hash table on disk from `topic#key` to physical offsets.

The file is written in place: an item, then its slot, then the header's counts, so that a killed process leaves at
most one item that the header does not count yet. Nothing in it is checksummed; it can be rebuilt from the log.
One thread puts, any thread looks up. Whoever shares the file with the cleaner `hold()`s it while it looks.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.index_layout import HEADER_SIZE, ITEM_SIZE, IndexGeometry, IndexHeader, IndexItem, unpack_item
from penstock.store.file_map import FileMap
from penstock.store.zeros import zero_from

_ITEMS_AT_ONCE = 1 << 16
_WORTH_A_WRITE = 2048
_ITEM = np.dtype([("key_hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class IndexFile:
    """The map of one index file and what its header says."""

    def __init__(self, file_map: FileMap, geometry: IndexGeometry) -> None:
        self.map = file_map
        self.path = file_map.path
        self.geometry = geometry
        self._readers = kernels.ReaderCount()
        self.hold = self._readers.acquire
        """True if the bytes may be used until `release()`."""

    # -- header ----------------------------------------------------------------------------------------------

    @property
    def header(self) -> IndexHeader:
        return IndexHeader.unpack(self.map.view[:HEADER_SIZE])

    def set_header(self, header: IndexHeader) -> None:
        self.map.view[:HEADER_SIZE] = header.pack()

    @property
    def count(self) -> int:
        """Number that the next item gets; items start at 1."""
        return max(self.header.index_count, 1)

    @property
    def full(self) -> bool:
        return self.count >= self.geometry.items

    @property
    def empty(self) -> bool:
        return self.count <= 1

    # -- items -----------------------------------------------------------------------------------------------

    def put(
        self,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        *,
        room: bytearray | None = None,
    ) -> int:
        """Puts until the file is full; returns how many were put.

        With `room`, where nobody looks anything up yet, many items are made there and written at once, after their
        slots and counts, which spares a page fault for each page. A kill in between leaves items of zeros, which the
        next start does not keep. Raises StoreFailed.
        """
        geometry = self.geometry
        if room is None or len(hashes) < _WORTH_A_WRITE:
            return kernels.index_put(self.map.view, geometry.slots, geometry.items, hashes, offsets, times)
        if self.empty:  # all at once the page faults of the slots are cheaper than one by one
            kernels.prefault(self.map.view, 0, geometry.item_position(0))
        room.extend(bytes(max(len(hashes) * ITEM_SIZE - len(room), 0)))
        position = geometry.item_position(self.count)
        done = kernels.index_put(self.map.view, geometry.slots, geometry.items, hashes, offsets, times, room)
        with memoryview(room) as items:
            self.map.write(position, items[: done * ITEM_SIZE])
        return done

    def item(self, number: int) -> IndexItem:
        return unpack_item(self.map.view, self.geometry.item_position(number))

    # -- undoing ---------------------------------------------------------------------------------------------

    def drop_uncounted(self) -> None:
        """Takes an item back whose slot was written when the process was killed, but not its count."""
        number, geometry = self.count, self.geometry
        if number >= geometry.items:
            return
        item = self.item(number)
        previous = item.previous
        slot = geometry.slot_position(geometry.slot_of(max(item.key_hash, 0)))
        if int.from_bytes(self.map.view[slot : slot + 4], "big", signed=True) == number:
            self.map.view[slot : slot + 4] = (previous if 0 < previous < number else 0).to_bytes(4, "big")

    def rewind(self, offset: int, timestamp_of: Callable[[int], int], before: IndexHeader) -> None:
        """Takes back every item that points at or behind `offset`; the header then ends at the item before.

        `before` stands in for the item before when none is left: the header of a file that was just made.
        """
        count = keep = self.count
        while keep > 1 and self.item(keep - 1).physical_offset >= offset:
            keep -= 1
        if keep == count:
            return
        geometry = self.geometry
        kernels.index_rewind(self.map.view, geometry.slots, geometry.items, count, keep)
        if keep == 1:
            self.set_header(before)
            return
        newest = self.item(keep - 1).physical_offset
        self.set_header(
            msgspec.structs.replace(self.header, end_physical_offset=newest, end_timestamp=timestamp_of(newest))
        )

    def sound_before(self, offset: int) -> int:
        """The number of the first item that is not whole or not of a record before `offset`."""
        count, last = min(self.count, self.geometry.items), 0
        for start in range(1, count, _ITEMS_AT_ONCE):
            items = self._items(start, min(start + _ITEMS_AT_ONCE, count))
            offsets, hashes = items["offset"].astype(np.int64), items["key_hash"].astype(np.int32)
            sound = (offsets < offset) & (hashes >= 0) & ((offsets > 0) | (hashes > 0))
            sound &= np.diff(offsets, prepend=last) >= 0
            if not sound.all():
                return start + int(np.argmin(sound))
            last = int(offsets[-1])
        return count

    def keep_first(self, end: int, timestamp_of: Callable[[int], int], before: IndexHeader) -> None:
        """Keeps the items before number `end` and chains them anew, whatever slots and header say of them."""
        geometry = self.geometry
        newest = np.zeros(geometry.slots, ">i4")
        for start in range(1, end, _ITEMS_AT_ONCE):
            _chain(self._items(start, min(start + _ITEMS_AT_ONCE, end)), start, newest)
        rest = self._items(end, self.count)
        if len(rest) >= _WORTH_A_WRITE:
            begin = geometry.item_position(end)
            kernels.prefault(self.map.view, begin, begin + rest.nbytes)
            kernels.prefault(self.map.view, 0, geometry.item_position(0))
        rest.view(np.uint8)[:] = 0
        del rest
        # Items may be on disk that the header never counted; if their records are gone, nothing will come over them.
        zero_from(self.map, geometry.item_position(max(end, min(self.count, geometry.items))))
        self.map.view[HEADER_SIZE : geometry.item_position(0)] = newest.view(np.uint8).data
        if end == 1:
            self.set_header(before)
            return
        last = self.item(end - 1).physical_offset
        header = self.header.ending(last, timestamp_of(last))
        used = int(np.count_nonzero(newest))
        self.set_header(msgspec.structs.replace(header, hash_slot_count=used, index_count=end))

    def _items(self, start: int, end: int) -> npt.NDArray[np.void]:
        """Items by number, in place: drop the view before the file can go."""
        count = max(min(end, self.geometry.items) - start, 0)
        return np.frombuffer(self.map.view, _ITEM, count, self.geometry.item_position(start))

    def sync(self) -> None:
        self.map.sync()

    @property
    def available(self) -> bool:
        return not self._readers.is_retired

    def release(self) -> None:
        if self._readers.release():
            self.map.close()

    def shut_down(self) -> bool:
        """Takes the file from new readers; True once nobody holds it any more and it is unmapped."""
        if self._readers.retire():
            self.map.close()
        return self._readers.count <= 0

    def close(self) -> None:
        self.shut_down()


def _chain(items: npt.NDArray[np.void], first_number: int, newest: npt.NDArray[np.void]) -> None:
    """Points each item to the one before it in its slot, and each slot to its newest."""
    slots = items["key_hash"] % len(newest)
    numbers = np.arange(first_number, first_number + len(items), dtype=np.int32)
    order = np.argsort(slots, kind="stable")
    previous = newest[slots].astype(np.int32)
    follows = slots[order[1:]] == slots[order[:-1]]
    previous[order[1:][follows]] = numbers[order[:-1][follows]]
    wrong = items["previous"] != previous
    items["previous"][wrong] = previous[wrong]
    newest[slots] = numbers


def header_after(header: IndexHeader) -> IndexHeader:
    """How a file begins that follows one with this header: nothing in it, its range where the other ended."""
    return IndexHeader(
        header.end_timestamp, header.end_timestamp, header.end_physical_offset, header.end_physical_offset
    )
