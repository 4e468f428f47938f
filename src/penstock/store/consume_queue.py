"""A consume queue: for one topic and queue id, where each message lies in the log.

Owns `consumequeue/{topic}/{queue id}`. A unit has 20 bytes (physical offset, size, tags code) and lies at byte
20 * queue offset of the queue's files. The dispatcher appends, from one thread at a time; any thread reads. Units have
no checksum, and everything here can be rebuilt from the log: after a crash `cut_to_valid` drops the tail of units that
cannot be valid, and recovery dispatches their records again.

`Placeholders` tells where a repair overwrote damage: gaps in a queue's offsets point there. `QueueExtensions` reads
RocketMQ's extension files, which are never written or removed.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptData
from penstock.format import kernels
from penstock.format.queue_ext import decode_ext_unit, ext_offset
from penstock.format.queue_unit import (
    MAX_EXT_ADDRESS,
    NO_RECORD_SIZE,
    PRE_BLANK,
    UNIT,
    UNIT_SIZE,
    Units,
    copy_units,
    pack_unit,
    unpack_unit,
)
from penstock.store.io import Files
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MappedFileQueue, file_name

log = logging.getLogger("penstock.store")
_MIN_BULK_WRITE = 2048
NO_UNIT = (0, NO_RECORD_SIZE, 0)
_TARGET = struct.Struct(">qi")
Rows = npt.NDArray[np.void]
Picks = npt.NDArray[np.int64]
UNITS_AT_ONCE: Final = 4096
"""Units checked at a time: few enough to stay in the processor's cache."""
_FILES_CHECKED_FULLY: Final = 3
_MAX_OFFSET: Final = 2**62


class GapInQueue(Exception):
    """A record to append has predecessors in the queue without units."""

    def __init__(self, what: str, queue_end: int) -> None:
        super().__init__(what)
        self.queue_end = queue_end
        """Where the last unit's record ends in the log, -1 if the queue is empty."""


class ConsumeQueue:
    """The units of one queue."""

    def __init__(self, files: Files, folder: Path, topic: str, queue_id: int, file_size: int) -> None:
        self.files = MappedFileQueue(files, folder, file_size)
        self.topic = topic
        self.topic_bytes = topic.encode("utf-8", "surrogateescape")
        self.queue_id = queue_id
        self.max_physical_offset = -1
        """End of the record that the last unit points to, -1 if the queue is empty."""
        self.min_offset = 0
        """Queue offset of the oldest message that is still in the log."""

    @property
    def max_offset(self) -> int:
        """Queue offset of the next message."""
        return self.files.max_offset // UNIT_SIZE

    @property
    def units_in_file(self) -> int:
        return self.files.file_size // UNIT_SIZE

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps the files and hides what follows the valid units; it stays on disk."""
        self.files.load()
        for file in self.cut_to_valid():
            file.shut_down()

    def cut_to_valid(self) -> list[MappedFile]:
        """Hides what follows the valid units of files just mapped; returns the files hidden as a whole, last first."""
        files = self.files.files
        gone = self.files.cut(valid_end(files))
        self._set_max_physical_offset()
        self.min_offset = files[0].from_offset // UNIT_SIZE if files else 0
        return gone

    def count_before(self, physical_offset: int) -> int:
        """How many units remain without those at the end that point at or after `physical_offset`."""
        return (
            self._last_where(lambda units: (units["size"] == NO_RECORD_SIZE) | (units["offset"] < physical_offset)) + 1
        )

    def keep_first(self, count: int) -> list[MappedFile]:
        """Hides the units from number `count` on; returns the files hidden as a whole, last first."""
        gone = self.files.cut(count * UNIT_SIZE)
        self._set_max_physical_offset()
        self.min_offset = min(self.min_offset, count)
        return gone

    def _set_max_physical_offset(self) -> None:
        number = self._last_where(lambda units: units["size"] != NO_RECORD_SIZE)
        offset, size, _ = self.unit(number)
        self.max_physical_offset = offset + size if size != NO_RECORD_SIZE else -1

    def _last_where(self, matches: Callable[[Units], npt.NDArray[np.bool_]]) -> int:
        """The number of the last unit that matches; one less than the first unit's if none does."""
        files = self.files.files
        low = files[0].from_offset // UNIT_SIZE if files else 0
        for file in reversed(files):
            for end in range(file.wrote // UNIT_SIZE, 0, -UNITS_AT_ONCE):
                start = max(end - UNITS_AT_ONCE, 0)
                numbers = np.flatnonzero(matches(view_units(file, start * UNIT_SIZE, (end - start) * UNIT_SIZE).copy()))
                if len(numbers):
                    return file.from_offset // UNIT_SIZE + start + int(numbers[-1])
        return low - 1

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Moves the minimum to the first unit whose record is still in the log; to the end if no unit has one.

        Units that point to no record are ignored. A single damaged unit that points too low does not hide the units
        before it: the page before the result is checked for units that point into the log.
        """
        first = self.first_from(log_min_offset)
        while (before := self._first_in_page_before(first, log_min_offset)) < first:
            first = before
        self.min_offset = first

    def _first_in_page_before(self, end: int, physical_offset: int) -> int:
        """The first unit of the page before `end` that points at or after `physical_offset`; `end` if none does."""
        file = self.files.find((end - 1) * UNIT_SIZE) if end else None
        if file is None:
            return end
        start = max(end - UNITS_AT_ONCE, file.from_offset // UNIT_SIZE)
        units = self.page(start, end - start)
        if units is None:
            return end
        later = np.flatnonzero(is_real(units) & (units["offset"] >= physical_offset))
        return start + int(later[0]) if len(later) else end

    def first_from(self, physical_offset: int) -> int:
        """The first unit that points to a record at or after `physical_offset`; the queue's end if none does."""
        low = max(self.files.min_offset // UNIT_SIZE, 0) if self.files.files else 0
        high = end = self.max_offset
        while low < high:
            middle = (low + high) // 2
            place = self._next_real(middle, high)
            if place < high and self.unit(place)[0] < physical_offset:
                low = place + 1
            else:
                high = middle
        return self._next_real(low, end)

    def _next_real(self, queue_offset: int, stop: int) -> int:
        """The first unit in [queue_offset, stop) that points to a record; `stop` if none does."""
        while queue_offset < stop:
            units = self.page(queue_offset, min(stop - queue_offset, UNITS_AT_ONCE))
            if units is None:
                return stop
            real = np.flatnonzero(is_real(units))
            if len(real):
                return queue_offset + int(real[0])
            queue_offset += len(units)
        return stop

    # -- deleting --------------------------------------------------------------------------------------------

    def expired(self, log_min_offset: int) -> bool:
        """Whether the first file may be deleted: none of its records is in the log. Never true of the last file."""
        files = self.files.files
        if len(files) < 2:
            return False
        first = files[0].from_offset // UNIT_SIZE
        newest = self._last_real(first, first + files[0].size // UNIT_SIZE)
        return newest is None or newest < log_min_offset

    def _last_real(self, begin: int, end: int) -> int | None:
        """Physical offset in the last unit of [begin, end) that points to a record."""
        while end > begin:
            start = max(begin, end - UNITS_AT_ONCE)
            units = self.page(start, end - start)
            if units is None:  # the file is being deleted
                return None
            real = np.flatnonzero(units["size"] != NO_RECORD_SIZE)
            if len(real):
                return int(units["offset"][real[-1]])
            end = start
        return None

    # -- reading ---------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code); NO_UNIT if the queue does not have the unit (any more)."""
        page = self.page(queue_offset, 1)
        return NO_UNIT if page is None else page[0].item()

    def units_pointing(self, begin: int, end: int) -> Units:
        """A copy of the units that point into [begin, end) of the log."""
        pages = [np.empty(0, UNIT)]
        number = self.first_from(begin)
        while (units := self.page(number, UNITS_AT_ONCE)) is not None:
            inside = units[(units["offset"] >= begin) & (units["offset"] < end) & (units["size"] != NO_RECORD_SIZE)]
            pages.append(inside)
            number += len(units)
            if int(units["offset"][-1]) >= end:
                break
        return np.concatenate(pages)

    def points_to(self, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Whether the unit exists and points to exactly these bytes of the log."""
        position = queue_offset * UNIT_SIZE
        file = self.files.find(position)
        if file is None:
            return False
        at = position - file.from_offset
        try:  # called for every hit of a query: an exception is cheaper than acquire and release
            return at < file.marks[0] and _TARGET.unpack_from(file.map.view, at) == (physical_offset, size)
        except ValueError:
            return False  # deleted meanwhile

    def page(self, queue_offset: int, limit: int) -> Units | None:
        """A copy of at most `limit` units from `queue_offset` on, within one file; None if there are none."""
        file = self.files.find(queue_offset * UNIT_SIZE)
        if file is None or not file.acquire():
            return None
        try:
            position = queue_offset * UNIT_SIZE - file.from_offset
            size = min(limit * UNIT_SIZE, file.readable - position)
            return copy_units(file.map.view, position, size) if size > 0 else None
        finally:
            file.release()

    # -- appending -------------------------------------------------------------------------------------------

    def append(
        self, rows: Rows, picks: Picks, *, no_gap_before: int = -1, placeholders: Placeholders | None = None
    ) -> int:
        """Appends units for `rows[picks]`, which are in log order; returns how many were new. Idempotent.

        Skips records that have a unit, and records before the last unit's: they are older than a deletion of the topic.
        Missing queue offsets get units that point to the placeholder between their neighbours, or to no record. Raises
        GapInQueue instead if the record before the gap ends before `no_gap_before`: the missing ones may be in the log.
        """
        offsets = rows["queue_offset"][picks]
        next_offset = self.max_offset
        if int(offsets[0]) < next_offset or int(rows["physical_offset"][picks[0]]) < self.max_physical_offset:
            new = (offsets >= next_offset) & (rows["physical_offset"][picks] >= self.max_physical_offset)
            picks, offsets = picks[new], offsets[new]
        if not len(picks):
            return 0
        first = int(offsets[0])
        if first > next_offset or (len(offsets) > 1 and not (np.diff(offsets) == 1).all()):
            return self._append_with_gaps(rows, picks, no_gap_before, placeholders or Placeholders())
        done = 0
        while done < len(picks):
            file = self.files.writable(first * UNIT_SIZE)
            count = min(len(picks) - done, (file.size - file.wrote) // UNIT_SIZE)
            part = picks[done : done + count]
            if count < _MIN_BULK_WRITE:
                kernels.append_units(file.map.view, file.wrote, rows, part)
            else:  # a write is far cheaper than the page faults of a new file
                kernels.append_units(units := bytearray(count * UNIT_SIZE), 0, rows, part)
                file.map.write(file.wrote, units)
            file.wrote += count * UNIT_SIZE
            done += count
            newest = rows[part[-1]]
            self.max_physical_offset = int(newest["physical_offset"]) + int(newest["size"])
        return done

    def _append_with_gaps(self, rows: Rows, picks: Picks, no_gap_before: int, placeholders: Placeholders) -> int:
        """Appends one by one: fills gaps, skips duplicates."""
        added = 0
        for pick in picks:
            queue_offset = int(rows[pick]["queue_offset"])
            if queue_offset < self.max_offset:
                continue
            if queue_offset > self.max_offset:
                if self.max_physical_offset < no_gap_before:
                    missing = f"{self.topic}/{self.queue_id}: {self.max_offset} to {queue_offset - 1}"
                    raise GapInQueue(missing, self.max_physical_offset)
                unit = placeholders.unit_for_gap(self.max_physical_offset, int(rows[pick]["physical_offset"]))
                self.fill_up_to(queue_offset, unit)
            added += self.append(rows, np.array([pick], np.int64))
        return added

    def fill_up_to(self, queue_offset: int, unit: bytes = PRE_BLANK) -> None:
        """Fills the queue up to `queue_offset` with `unit`, which points to no record or to a placeholder.

        An empty queue then starts at 0 if the unit points to a placeholder, else at `queue_offset`.
        """
        offset, size, _ = unpack_unit(unit)
        is_placeholder = size != NO_RECORD_SIZE
        if not self.files.files:
            file = self.files.writable(0 if is_placeholder else queue_offset * UNIT_SIZE)
            self.min_offset = 0 if is_placeholder else queue_offset
            self.files.flushed_where = self.files.committed_where = file.from_offset
        elif not is_placeholder:
            gap = f"{self.topic} queue {self.queue_id}: no record for offsets {self.max_offset} to {queue_offset - 1}"
            log.warning("%s; filled with empty units", gap)
        while self.max_offset < queue_offset:
            file = self.files.writable(queue_offset * UNIT_SIZE)
            count = min(queue_offset - self.max_offset, (file.size - file.wrote) // UNIT_SIZE)
            file.map.view[file.wrote : file.wrote + count * UNIT_SIZE] = unit * count
            file.wrote += count * UNIT_SIZE
        if is_placeholder:
            self.max_physical_offset = offset + size

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self, least_pages: int) -> None:
        for file in self.files.files:
            file.committed = file.wrote
        self.files.flush_all(least_pages)

    def close(self) -> None:
        self.files.close()


# -- valid units ---------------------------------------------------------------------------------------------------


def valid_end(files: tuple[MappedFile, ...]) -> int:
    """Where the valid units of a queue's files end, as a byte position in the queue.

    Valid: possible position and size, and a record after that of the unit before. Checks every unit of the last three
    files, and the first and last unit of the others. Does not read the log.
    """
    last: Units | None = None
    for number, file in enumerate(files):
        written = next(iter(file.map.written_ranges(0)), (0, 0))
        size = 0 if written[0] else min(written[1] + UNIT_SIZE - 1, file.size)
        units = view_units(file, 0, size)
        full = len(units) * UNIT_SIZE == file.size
        if number < len(files) - _FILES_CHECKED_FULLY:
            full = full and count_valid(units[:: max(len(units) - 1, 1)].copy(), last) == min(len(units), 2)
            count = len(units) if full else 0
        else:
            quick = max(_count_in_order(units, last) - 1, 0)
            rest = units[quick:]
            count = quick + count_valid(rest[: _count_whole(rest)], None if quick else last)
            del rest
        last = _last_real(units[:count], last)
        del units
        if count * UNIT_SIZE < file.size:
            return file.from_offset + count * UNIT_SIZE
    return files[-1].from_offset + files[-1].size if files else 0


def view_units(file: MappedFile, position: int, size: int) -> Units:
    """The units of part of a file, not copied: drop the view before the file is unmapped."""
    return np.frombuffer(file.map.view, UNIT, size // UNIT_SIZE, position)


def is_real(units: Units) -> npt.NDArray[np.bool_]:
    """Which units point to a record."""
    sizes = units["size"]
    return np.asarray((sizes != NO_RECORD_SIZE) & (sizes > 0) & (units["offset"] >= 0))


def _count_in_order(units: Units, before: Units | None) -> int:
    """How many units are valid by a quick check, which stops early at gaps and placeholders."""
    end = 0 if before is None else int(before["offset"][0]) + int(before["size"][0])
    for start in range(0, len(units), UNITS_AT_ONCE):
        part = units[start : start + UNITS_AT_ONCE]
        offsets, sizes = part["offset"].astype(np.int64), part["size"].astype(np.int64)
        ends = offsets + sizes
        possible = sizes.min() > 0 and sizes.max() != NO_RECORD_SIZE and offsets.max() <= _MAX_OFFSET
        if not possible or offsets[0] < end or not (offsets[1:] >= ends[:-1]).all():
            return start
        end = int(ends[-1])
    return len(units)


def _count_whole(units: Units) -> int:
    """How many units precede the first impossible one, as in the free space of a file."""
    for start in range(0, len(units), UNITS_AT_ONCE):
        bad = np.flatnonzero(_is_impossible(units[start : start + UNITS_AT_ONCE]))
        if len(bad):
            return start + int(bad[0])
    return len(units)


def _is_impossible(units: Units) -> npt.NDArray[np.bool_]:
    offsets = units["offset"]
    return np.asarray((offsets < 0) | (offsets > _MAX_OFFSET) | (units["size"] <= 0))


def _last_real(units: Units, otherwise: Units | None) -> Units | None:
    """The last unit that points to a record; `otherwise` if none does."""
    for end in range(len(units), 0, -UNITS_AT_ONCE):
        part = units[max(end - UNITS_AT_ONCE, 0) : end]
        real = np.flatnonzero(part["size"] != NO_RECORD_SIZE)
        if len(real):
            return part[real[-1:]].copy()
    return otherwise


def count_valid(units: Units, before: Units | None) -> int:
    """How many units are valid; `before` holds the last unit of the file before.

    A unit points to a record after that of the unit before it, or both point to the same placeholder. Otherwise one of
    the two is wrong, and neither counts.
    """
    offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
    bad = np.flatnonzero(_is_impossible(units))
    count = int(bad[0]) if len(bad) else len(units)
    real = np.flatnonzero(sizes[:count] != NO_RECORD_SIZE)
    if before is not None:
        offsets, sizes = np.append(offsets, before["offset"]), np.append(sizes, before["size"])
        real = np.append(len(units), real)
    offsets, sizes = offsets[real], sizes[real]
    in_order = offsets[1:] >= offsets[:-1] + sizes[:-1]
    same = (offsets[1:] == offsets[:-1]) & (sizes[1:] == sizes[:-1])
    wrong = np.flatnonzero(~(in_order | same))
    if not len(wrong):
        return count
    first = int(real[wrong[0]])
    return first if first < len(units) else 0


# -- placeholders and extension files ------------------------------------------------------------------------------


class Placeholders:
    """Positions and sizes of the placeholders that dispatch has passed, in log order.

    A gap in a queue's offsets across a placeholder means that its messages were lost there: their units point to it.
    So queues rebuilt from a repaired log equal those that the repair left. Used under the dispatcher's lock.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self.log_is_whole = False
        """Whether the log begins at 0: only then can a queue's missing first messages have been in it."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, placeholders: list[tuple[int, int]]) -> None:
        """Adds (offset, size) pairs; skips known ones."""
        for offset, size in placeholders:
            at = bisect_left(self._offsets, offset)
            if at == len(self._offsets) or self._offsets[at] != offset:
                self._offsets.insert(at, offset)
                self._sizes.insert(at, size)

    def first_between(self, begin: int, end: int) -> tuple[int, int] | None:
        """(offset, size) of the first one that begins in [begin, end)."""
        at = bisect_left(self._offsets, begin)
        if at == len(self._offsets) or self._offsets[at] >= end:
            return None
        return self._offsets[at], self._sizes[at]

    def last_before(self, offset: int) -> tuple[int, int] | None:
        """(offset, size) of the last one that begins at or before `offset`."""
        at = bisect_left(self._offsets, offset + 1) - 1
        return None if at < 0 else (self._offsets[at], self._sizes[at])

    def ending_at(self, end: int) -> tuple[int, int] | None:
        """(offset, size) of the one that ends at `end`."""
        last = self.last_before(end - 1)
        return None if last is None or sum(last) != end else last

    def unit_for_gap(self, begin: int, end: int) -> bytes:
        """The unit of a message lost in [begin, end) of the log; PRE_BLANK if no placeholder explains the loss.

        `begin` is the end of the queue's record before the gap, -1 if it is the first. If that record is a placeholder
        and no other follows, the unit points to it.
        """
        if begin < 0 and not self.log_is_whole:
            return PRE_BLANK
        placeholder = self.first_between(max(begin, 0), end) or self.ending_at(begin)
        return PRE_BLANK if placeholder is None else pack_unit(*placeholder, 0)


class QueueExtensions:
    """Looks up tags codes in `consumequeue_ext/{topic}/{queue id}`.

    If a unit's tags code is an address in such a file, the real tags code is there.
    """

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self._folder = folder
        self._file_size = file_size
        self._cache: dict[Path, bytes] = {}

    def resolve(self, topic: str, queue_id: int, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tags codes with addresses replaced by the codes they point to; unresolved addresses stay."""
        codes = codes.astype(np.int64)
        for number in np.flatnonzero(codes <= MAX_EXT_ADDRESS).tolist():
            code = self.tags_code(topic, queue_id, int(codes[number]))
            if code is not None:
                codes[number] = code
        return codes

    def tags_code(self, topic: str, queue_id: int, address: int) -> int | None:
        offset = ext_offset(address)
        start = offset - offset % self._file_size
        path = self._folder / topic / str(queue_id) / file_name(start)
        try:
            data = self._cache.get(path) or self._io.read_bytes(path)
            self._cache[path] = data
            unit = decode_ext_unit(data, offset - start)
        except (FileNotFoundError, CorruptData):
            return None
        return None if unit is None else unit.tags_code
