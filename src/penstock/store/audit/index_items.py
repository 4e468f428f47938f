"""The items of one index file in the order of the records they point to.

Items are put in log order, so the items of any range of the log stand next to each other and are found by halving.
Where a file's items are out of order, which only damage does, they are sorted first: 20 bytes of memory for each.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.store.file_map import FileMap

ITEM = np.dtype([("key_hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])

Longs = npt.NDArray[np.int64]


class Items(NamedTuple):
    """Some items, as columns."""

    numbers: Longs
    hashes: Longs
    offsets: Longs
    seconds: Longs


class ItemTable:
    """Items 1 … count - 1 of a file, by place: place p is item p where the file is in order."""

    def __init__(self, file: FileMap, geometry: IndexGeometry, count: int, *, in_order: bool) -> None:
        self.file = file
        self.geometry = geometry
        self.count = count
        self._order: Longs | None = None
        if not in_order:
            offsets = self.raw(1, count)["offset"].astype(np.int64)
            self._order = np.argsort(offsets, kind="stable") + 1

    def raw(self, start: int, stop: int) -> npt.NDArray[np.void]:
        """A copy of the items start … stop - 1, as stored."""
        count = max(stop - start, 0)
        return np.frombuffer(self.file.view, ITEM, count, self.geometry.item_position(start)).copy()

    def offset_at(self, place: int) -> int:
        number = place if self._order is None else int(self._order[place - 1])
        return int(_LONG.unpack_from(self.file.view, self.geometry.item_position(number) + 4)[0])

    def find(self, offset: int, start: int = 1) -> int:
        """The first place from `start` on whose item points to `offset` or behind it."""
        low, high = start, self.count
        while low < high:
            middle = (low + high) // 2
            if self.offset_at(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def items(self, start: int, stop: int) -> Items:
        """The items at the places start … stop - 1."""
        if self._order is None:
            numbers = np.arange(start, max(start, stop), dtype=np.int64)
            found = self.raw(start, stop)
        else:
            numbers = self._order[start - 1 : max(start, stop) - 1]
            every = np.frombuffer(self.file.view, ITEM, self.count, self.geometry.item_position(0))
            found = every[numbers]
        columns = (found[name].astype(np.int64) for name in ("key_hash", "offset", "seconds"))
        return Items(numbers, *columns)

    def match(self, place: int, hashes: kernels.Ints, offsets: Longs, times: Longs) -> int:
        """How many items from a place on are those of these keys, in this order; 0 where the file is out of order."""
        if self._order is not None:
            return 0
        return kernels.match_items(self.file.view, *self.geometry, place, hashes, offsets, times)


_LONG = struct.Struct(">q")
