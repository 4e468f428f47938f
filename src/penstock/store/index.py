"""The index: hash tables on disk from `topic#key` to physical offsets, in the folder `index`.

`Index` owns the files and rolls from a full file to a new one. It never indexes a record twice: it skips records at or
before the last indexed record. The derived-files flusher syncs full files, then advances the checkpoint.

`IndexFile` is one file, written in place: first the item, then its slot, then the header's counts. A killed process
leaves at most one item that the header does not count. Nothing is checksummed; the index can be rebuilt from the log.
One thread appends; any thread looks up. A reader that runs while the cleaner may delete files must `acquire()` the
file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.errors import BadStore, StoreFailed
from penstock.format import kernels
from penstock.format.index_layout import (
    COUNT,
    COUNT_AT,
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexGeometry,
    IndexHeader,
    IndexItem,
    unpack_item,
)
from penstock.store.files.file_io import FileMap, Files, zero_from
from penstock.store.files.mapped_file import PAGE

_ITEMS_AT_ONCE = 1 << 16
_MIN_BULK_WRITE = 2048
STEP: Final = 1 << 20
"""Disk blocks of items are allocated in steps of this many bytes; those of header and slots with the file, unless they
take more than a step: see `_FEW_ITEMS`."""
_FEW_ITEMS: Final = 1000
"""Up to this many items, a file with many slots has blocks only for the pages that its items use; then for all."""
_ITEM = np.dtype([("key_hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])


class IndexFile:
    """One mapped index file: header, slots, items."""

    def __init__(self, file_map: FileMap, geometry: IndexGeometry) -> None:
        self.map = file_map
        self.path = file_map.path
        self.geometry = geometry
        self._pages: set[int] = set()
        """Numbers of the pages that have disk blocks, of a file with few items."""
        self._readers = kernels.ReaderCount()
        self.acquire = self._readers.acquire
        """Registers a reader, who must call `release()`. Returns False if the file is shut down: do not read it."""

    # -- header ----------------------------------------------------------------------------------------------

    @property
    def header(self) -> IndexHeader:
        return IndexHeader.unpack(self.map.view[:HEADER_SIZE])

    def set_header(self, header: IndexHeader) -> None:
        self.map.view[:HEADER_SIZE] = header.pack()

    @property
    def count(self) -> int:
        """The number that the next item will get; items are numbered from 1."""
        return max(int(COUNT.unpack_from(self.map.view, COUNT_AT)[0]), 1)

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
        buffer: bytearray | None = None,
    ) -> int:
        """Appends items until the file is full. Returns the number of appended items. Raises StoreFailed.

        With `buffer`, many items are encoded in it and written to the file at once, which saves a page fault per page.
        They are written after their slots and counts, so a kill in between leaves zeroed items, which the next start
        drops. Only recovery may pass `buffer`, while there are no lookups.
        """
        geometry, count = self.geometry, self.count
        self._reserve_for(hashes, count, count + len(hashes))
        if buffer is None or len(hashes) < _MIN_BULK_WRITE:
            return kernels.index_put(self.map.view, geometry.slots, geometry.items, hashes, offsets, times)
        if self.empty:  # faulting in all slots at once is cheaper than one by one
            kernels.prefault(self.map.view, 0, geometry.item_position(0))
        buffer.extend(bytes(max(len(hashes) * ITEM_SIZE - len(buffer), 0)))
        position = geometry.item_position(count)
        done = kernels.index_put(self.map.view, geometry.slots, geometry.items, hashes, offsets, times, buffer)
        with memoryview(buffer) as items:
            self.map.write(position, items[: done * ITEM_SIZE])
        return done

    def _reserve(self, end: int) -> None:
        """Makes sure that header, slots and the items before number `end` have disk blocks. Raises StoreFailed."""
        self.map.reserve(0, self.geometry.item_position(min(end, self.geometry.items)), STEP)

    def _reserve_for(self, hashes: npt.NDArray[np.int32], start: int, end: int) -> None:
        """Makes sure that header, the items [start, end) and their slots have disk blocks. Raises StoreFailed.

        `hashes` are those of the items. Only in a file with few items does this not reserve everything before `end`.
        """
        geometry = self.geometry
        if geometry.item_position(0) <= max(STEP, self.map.reserved) or end > _FEW_ITEMS:
            self._reserve(end)
            return
        slots = geometry.slot_position(0) + SLOT_SIZE * (hashes.astype(np.int64) % geometry.slots)
        items = range(geometry.item_position(start) // PAGE, -(-geometry.item_position(end) // PAGE))
        for page in sorted({0, *(slots // PAGE).tolist(), *items} - self._pages):
            self.map.reserve_apart(page * PAGE, (page + 1) * PAGE)
            self._pages.add(page)

    def item(self, number: int) -> IndexItem:
        return unpack_item(self.map.view, self.geometry.item_position(number))

    # -- undoing ---------------------------------------------------------------------------------------------

    def drop_uncounted(self) -> None:
        """Removes the item that a killed process left uncounted: its slot was written, the header's count was not."""
        number, geometry = self.count, self.geometry
        if number >= geometry.items:
            return
        item = self.item(number)
        previous = item.previous
        slot = geometry.slot_position(geometry.slot_of(max(item.key_hash, 0)))
        if int.from_bytes(self.map.view[slot : slot + 4], "big", signed=True) == number:
            self.map.reserve_apart(slot, slot + SLOT_SIZE)
            self.map.view[slot : slot + 4] = (previous if 0 < previous < number else 0).to_bytes(4, "big")

    def rewind(self, offset: int, timestamp_of: Callable[[int], int], before: IndexHeader) -> None:
        """Removes every item that points at or after `offset`. The header's end becomes that of the last item kept.

        `timestamp_of` returns the store time of the record at a physical offset. If no item is kept, `before` becomes
        the header; it must be the header of a new, empty file.
        """
        count = keep = self.count
        while keep > 1 and self.item(keep - 1).physical_offset >= offset:
            keep -= 1
        if keep == count:
            return
        self._reserve_for(self._items(keep, count)["key_hash"].astype(np.int32), keep, count)
        geometry = self.geometry
        kernels.index_rewind(self.map.view, geometry.slots, geometry.items, count, keep)
        if keep == 1:
            self.set_header(before)
            return
        newest = self.item(keep - 1).physical_offset
        self.set_header(
            msgspec.structs.replace(self.header, end_physical_offset=newest, end_timestamp=timestamp_of(newest))
        )

    def first_invalid(self, offset: int) -> int:
        """Returns the number of the first item that is invalid or points at or after `offset`; else `count`."""
        count, last = min(self.count, self.geometry.items), 0
        for start in range(1, count, _ITEMS_AT_ONCE):
            items = self._items(start, min(start + _ITEMS_AT_ONCE, count))
            offsets, hashes = items["offset"].astype(np.int64), items["key_hash"].astype(np.int32)
            valid = (offsets < offset) & (hashes >= 0) & ((offsets > 0) | (hashes > 0))
            valid &= np.diff(offsets, prepend=last) >= 0
            if not valid.all():
                return start + int(np.argmin(valid))
            last = int(offsets[-1])
        return count

    def keep_first(self, end: int, timestamp_of: Callable[[int], int], before: IndexHeader) -> None:
        """Keeps the items before number `end`. Rebuilds slots, chains and header from them; see `rewind`."""
        geometry = self.geometry
        self._reserve(self.count)
        newest = np.zeros(geometry.slots, ">i4")
        for start in range(1, end, _ITEMS_AT_ONCE):
            _chain(self._items(start, min(start + _ITEMS_AT_ONCE, end)), start, newest)
        rest = self._items(end, self.count)
        if len(rest) >= _MIN_BULK_WRITE:
            begin = geometry.item_position(end)
            kernels.prefault(self.map.view, begin, begin + rest.nbytes)
            kernels.prefault(self.map.view, 0, geometry.item_position(0))
        rest.view(np.uint8)[:] = 0
        del rest
        # Uncounted items may be on disk; if their records are gone, nothing would overwrite them.
        zero_from(self.map, geometry.item_position(max(end, min(self.count, geometry.items))))
        self.map.view[HEADER_SIZE : geometry.item_position(0)] = newest.view(np.uint8).data
        if end == 1:
            self.set_header(before)
            return
        last = self.item(end - 1).physical_offset
        header = self.header.with_end(last, timestamp_of(last))
        used = int(np.count_nonzero(newest))
        self.set_header(msgspec.structs.replace(header, hash_slot_count=used, index_count=end))

    def _items(self, start: int, end: int) -> npt.NDArray[np.void]:
        """Returns a view of the items [start, end), not a copy. Drop the view before the file is unmapped."""
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
        """Refuses new readers. Returns True if no reader is left: then the file is unmapped."""
        if self._readers.retire():
            self.map.close()
        return self._readers.count <= 0

    def close(self) -> None:
        self.shut_down()


def _chain(items: npt.NDArray[np.void], first_number: int, newest: npt.NDArray[np.void]) -> None:
    """Links each item to the previous item of its slot. `newest` has, by slot, the number of its newest item."""
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
    """Returns the header of a new, empty file that follows a file with the given header."""
    return IndexHeader(
        header.end_timestamp, header.end_timestamp, header.end_physical_offset, header.end_physical_offset
    )


_NAME = re.compile(r"[0-9]{17}")


class Index:
    """All index files, oldest first."""

    def __init__(self, files: Files, folder: Path, geometry: IndexGeometry, clock: Callable[[], int]) -> None:
        self._io = files
        self.folder = folder
        self.geometry = geometry
        self._clock = clock
        self.files: tuple[IndexFile, ...] = ()
        self._unsynced: list[IndexFile] = []
        self._partial: tuple[int, int] | None = None
        """If an append found no room on the disk: the record's offset, and the number of its indexed keys."""
        self._gate = threading.Lock()

    # -- loading ---------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Returns the file names, oldest first. Raises BadStore if the folder holds other files or folders."""
        names = self._io.names(self.folder)
        for name in names:
            if not _NAME.fullmatch(name) or self._io.is_folder(self.folder / name):
                raise BadStore(
                    "a foreign file or folder lies in the index folder; move it elsewhere",
                    path=self.folder / name,
                    expected="files with names of 17 digits",
                    found=repr(name),
                )
        return names

    def load(self, names: Sequence[str]) -> None:
        """Maps these files. Callers must check their sizes first."""
        loaded: list[IndexFile] = []
        try:
            for name in names:
                loaded.append(IndexFile(self._io.open_map(self.folder / name), self.geometry))
        except BaseException:
            for file in loaded:
                file.close()
            raise
        self.files = tuple(loaded)

    def rewind(self, offset: int, timestamp_of: Callable[[int], int]) -> None:
        """Removes the items of all records at or after `offset`: deletes newer files, rewinds the last file kept."""
        while self.files:
            last = self.files[-1]
            last.drop_uncounted()
            if last.empty or last.item(1).physical_offset < offset or len(self.files) == 1:
                break
            self._drop_last()
        if self.files:
            before = self.files[-2].header if len(self.files) > 1 else IndexHeader()
            self.files[-1].rewind(offset, timestamp_of, header_after(before))

    def keep_before(self, offset: int, timestamp_of: Callable[[int], int]) -> bool:
        """Keeps, after a crash, the items of records before `offset`, which were synced. Drops all other items.

        Pages reach the disk in any order. So a header may count items that never reached the disk, and a slot may point
        to them. Returns whether all counted items before `offset` were valid and are kept.
        """
        complete = True
        while self.files:
            last = self.files[-1]
            end = last.first_invalid(offset)
            is_cut = end < min(last.count, self.geometry.items) and last.item(end).physical_offset < offset
            complete = complete and not is_cut
            if end > 1 or len(self.files) == 1:
                before = self.files[-2].header if len(self.files) > 1 else IndexHeader()
                last.keep_first(end, timestamp_of, header_after(before))
                break
            self._drop_last()
        return complete

    def _drop_last(self) -> None:
        last = self.files[-1]
        last.close()
        self._io.unlink(last.path)
        self.files = self.files[:-1]

    # -- appending -------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """Physical offset of the last indexed record; -1 if the index is empty."""
        for file in reversed(self.files):
            if not file.empty:
                return file.header.end_physical_offset
        return -1

    @property
    def newest(self) -> tuple[int, int]:
        """Store time in ms and physical offset of the last indexed record; (0, 0) if the index is empty."""
        for file in reversed(self.files):
            if not file.empty:
                return file.header.end_timestamp, file.header.end_physical_offset
        return 0, 0

    def append(
        self,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        *,
        buffer: bytearray | None = None,
    ) -> None:
        """Adds keys, given in log order: their hashes, and the offsets and store times of their records.

        Raises StoreFailed if the disk has no room for new items or a new file; a second call with the same keys
        resumes. With `buffer` (see `IndexFile.put`) there must be no lookups meanwhile.
        """
        if not len(hashes):
            return
        start = int(np.searchsorted(offsets, self.end_offset, side="right"))
        if self._partial is not None:
            offset, done = self._partial
            start = int(np.searchsorted(offsets, offset, side="left")) + done
        while start < len(hashes):
            try:
                file = self._writable()
                added = file.put(hashes[start:], offsets[start:], times[start:], buffer=buffer)
            except StoreFailed:
                offset = int(offsets[start])
                self._partial = (offset, start - int(np.searchsorted(offsets, offset, side="left")))
                raise
            start += added
        self._partial = None

    def _writable(self) -> IndexFile:
        last = self.files[-1] if self.files else None
        if last is not None and not last.full:
            return last
        path = self._new_path(last)
        slots_end = self.geometry.item_position(0)
        allocated = slots_end + STEP if slots_end <= STEP else PAGE
        created = IndexFile(self._io.create_map(path, self.geometry.file_size, allocated=allocated), self.geometry)
        if last is not None:
            created.set_header(header_after(last.header))
            with self._gate:
                self._unsynced.append(last)
        with self._gate:
            self.files = (*self.files, created)
        return created

    def _new_path(self, last: IndexFile | None) -> Path:
        """Returns a path named by local time in ms. It sorts after the last file even if the clock goes back."""
        moment = datetime.fromtimestamp(self._clock() / 1000)
        name = f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
        if last is not None and name <= last.path.name:
            name = f"{int(last.path.name) + 1:017d}"
        return self.folder / name

    # -- flushing --------------------------------------------------------------------------------------------

    def sync(self, *, everything: bool) -> int:
        """Syncs files that have become full, and with `everything` also the last file. Raises OSError.

        Returns the store time in ms of the newest record in the synced files; 0 if none was synced.
        """
        with self._gate:
            waiting, self._unsynced = self._unsynced, []
        durable = 0
        last = self.files[-1:] if everything else ()
        for file in (*waiting, *last):
            if not file.acquire():  # deleted meanwhile
                continue
            try:
                end = 0 if file.empty else file.header.end_timestamp
                file.sync()
                durable = max(durable, end)
            finally:
                file.release()
        return durable

    # -- deleting --------------------------------------------------------------------------------------------

    def expired(self, log_min_offset: int) -> bool:
        """Whether the first file may be deleted: all its records were deleted from the log.

        False if it is the only file, or the only one that is not empty: that file shows where the index ends.
        """
        files = self.files
        if len(files) < 2 or (len(files) == 2 and files[-1].empty):
            return False
        return not files[0].available or files[0].header.end_physical_offset < log_min_offset

    def drop_first(self, *, forced: bool = False) -> bool:
        """Deletes the first file unless it has readers. Returns whether it did; see `MappedFileQueue.drop_first`."""
        file = self.files[0]
        if not file.shut_down() and not forced:
            return False
        self._io.unlink(file.path)
        with self._gate:
            self.files = self.files[1:]
        self._io.sync_folder(self.folder)
        return True

    def close(self) -> None:
        for file in self.files:
            file.close()
        self.files = ()
