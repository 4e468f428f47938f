"""A consume queue: for one topic and queue id, where each message lies in the log.

A queue owns the folder `consumequeue/{topic}/{queue id}`. A unit has 20 bytes (physical offset, size, tags code) and
lies at byte 20 * queue offset of the queue's files. The files are sparse, and get disk blocks in steps, ahead of the
units: a queue of few messages takes 64 KiB. The dispatcher appends, from one thread at a time; any thread
reads. Units have no checksum, and all of them can be rebuilt from the log. After a crash `cut_to_valid` hides the first
invalid unit and all after it, and recovery dispatches their records again.

A placeholder is a record that a repair wrote over damaged bytes of the log. `Placeholders` lists them: the units of
messages that were lost there point to them. `QueueExtensions` reads RocketMQ's extension files; Penstock never writes
or removes them.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

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
from penstock.store.files.file_io import Files
from penstock.store.files.layout import path_below
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import STEP, MappedFileQueue, file_name

log = logging.getLogger("penstock.store")
_MIN_BULK_WRITE = 4096
NO_UNIT = (0, NO_RECORD_SIZE, 0)
_TARGET = struct.Struct(">qi")
UNITS_AT_ONCE: Final = 4096
"""Units checked at a time: few enough to stay in the processor's cache."""
_FILES_CHECKED_FULLY: Final = 3
_MAX_OFFSET: Final = 2**62


class GapInQueue(Exception):
    """A record cannot be appended, because earlier records of its queue have no units."""

    def __init__(self, what: str, queue_end: int) -> None:
        super().__init__(what)
        self.queue_end = queue_end
        """Physical offset at which the last unit's record ends; -1 if the queue is empty."""


class QueueRun(NamedTuple):
    """Units of records with consecutive queue offsets from `first` on, in log order."""

    first: int
    units: memoryview

    @property
    def physical_offset(self) -> int:
        """That of the first record."""
        return int.from_bytes(self.units[:8], "big")

    @property
    def columns(self) -> Units:
        return np.frombuffer(self.units, UNIT)

    def after(self, count: int) -> QueueRun:
        """Returns the run without its first `count` units."""
        return QueueRun(self.first + count, self.units[count * UNIT_SIZE :])

    def where(self, wanted: npt.NDArray[np.bool_]) -> list[QueueRun]:
        """Returns the runs that are left of it: the units for which `wanted` is true."""
        if wanted.all():
            return [self]
        borders = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).tolist()
        pairs = zip(borders[::2], borders[1::2], strict=True)
        return [QueueRun(self.first + low, self.units[low * UNIT_SIZE : high * UNIT_SIZE]) for low, high in pairs]


def split_runs(runs: Sequence[kernels.UnitRun], units: memoryview) -> list[QueueRun]:
    """Splits the units of a queue, as a RangeBuilder returns them, into its runs."""
    if len(runs) == 1:
        return [QueueRun(runs[0][0], units)]
    split: list[QueueRun] = []
    for first, end, _, _ in runs:
        size = (end - first) * UNIT_SIZE
        split.append(QueueRun(first, units[:size]))
        units = units[size:]
    return split


class ConsumeQueue:
    """The units of one queue."""

    def __init__(self, files: Files, folder: Path, topic: str, queue_id: int, file_size: int) -> None:
        self.files = MappedFileQueue(files, folder, file_size)
        self.topic = topic
        self.topic_bytes = topic.encode("utf-8", "surrogateescape")
        self.queue_id = queue_id
        self.max_physical_offset = -1
        """Physical offset at which the last unit's record ends; -1 if the queue is empty."""
        self.min_offset = 0
        """Queue offset of the oldest message that is still in the log."""

    @property
    def max_offset(self) -> int:
        """Queue offset that the next message will get."""
        return self.files.max_offset // UNIT_SIZE

    @property
    def units_in_file(self) -> int:
        return self.files.file_size // UNIT_SIZE

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps the files and hides everything after the valid units. Changes nothing on disk."""
        self.files.load()
        for file in self.cut_to_valid():
            file.shut_down()

    def cut_to_valid(self) -> list[MappedFile]:
        """Hides everything after the valid units. Returns the files that are hidden as a whole, last first."""
        files = self.files.files
        gone = self.files.cut(valid_end(files))
        self._set_max_physical_offset()
        self.min_offset = files[0].from_offset // UNIT_SIZE if files else 0
        return gone

    def count_before(self, physical_offset: int) -> int:
        """Returns the queue offset after the last unit that points before `physical_offset`, or to no record."""
        return (
            self._last_where(lambda units: (units["size"] == NO_RECORD_SIZE) | (units["offset"] < physical_offset)) + 1
        )

    def keep_first(self, count: int) -> list[MappedFile]:
        """Hides the units from queue offset `count` on. Returns the files that are hidden as a whole, last first."""
        gone = self.files.cut(count * UNIT_SIZE)
        self._set_max_physical_offset()
        self.min_offset = min(self.min_offset, count)
        return gone

    def _set_max_physical_offset(self) -> None:
        number = self._last_where(lambda units: units["size"] != NO_RECORD_SIZE)
        offset, size, _ = self.unit(number)
        self.max_physical_offset = offset + size if size != NO_RECORD_SIZE else -1

    def _last_where(self, matches: Callable[[Units], npt.NDArray[np.bool_]]) -> int:
        """Returns the queue offset of the last unit that matches; if none does, the first unit's offset minus 1."""
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
        """Sets `min_offset` to the first unit whose record is still in the log; to the queue's end if there is none.

        Units that point to no record are ignored. A damaged unit whose physical offset is too low may mislead the
        binary search. So the 4,096 units before the result are checked, too, for units that point into the log.
        """
        first = self.first_from(log_min_offset)
        while (before := self._first_in_page_before(first, log_min_offset)) < first:
            first = before
        self.min_offset = first

    def _first_in_page_before(self, end: int, physical_offset: int) -> int:
        """Returns the first of the units just before `end` that points at or after `physical_offset`; `end` if none."""
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
        """Returns the queue offset of the first unit that points at or after `physical_offset`, or the queue's end."""
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

    def last_before(self, physical_offset: int) -> tuple[int, int] | None:
        """Returns offset and size of the last record before `physical_offset` to which a unit points; else None.

        A neighbouring placeholder hides the record, too.
        """
        if self.max_physical_offset < 0:
            return None
        offset, size, _ = self.unit(self.first_from(physical_offset) - 1)
        return (offset, size) if size > 0 and size != NO_RECORD_SIZE and 0 <= offset < physical_offset else None

    def _next_real(self, queue_offset: int, stop: int) -> int:
        """Returns the queue offset of the first unit in [queue_offset, stop) that points to a record; else `stop`."""
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
        """Whether the first file may be deleted: its records are no longer in the log, and it is not the only file."""
        files = self.files.files
        if len(files) < 2:
            return False
        first = files[0].from_offset // UNIT_SIZE
        newest = self._last_real(first, first + files[0].size // UNIT_SIZE)
        return newest is None or newest < log_min_offset

    def _last_real(self, begin: int, end: int) -> int | None:
        """Returns the physical offset in the last unit of [begin, end) that points to a record; None if none does."""
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
        """Returns (physical offset, size, tags code); NO_UNIT if the queue does not have the unit (any more)."""
        page = self.page(queue_offset, 1)
        return NO_UNIT if page is None else page[0].item()

    def units_pointing(self, begin: int, end: int) -> Units:
        """Returns a copy of the units that point into [begin, end) of the log."""
        pages = [np.empty(0, UNIT)]
        number = self.first_from(begin)
        while (units := self.page(number, UNITS_AT_ONCE)) is not None:
            inside = units[(units["offset"] >= begin) & (units["offset"] < end) & (units["size"] != NO_RECORD_SIZE)]
            pages.append(inside)
            number += len(units)
            if int(units["offset"][-1]) >= end:
                break
        return np.concatenate(pages)

    def points_to(self, queue_offset: int, physical_offset: int, size: int, *, at_once: bool = False) -> bool:
        """Whether the unit at `queue_offset` exists and has this physical offset and size. See `MappedFile.read`."""
        position = queue_offset * UNIT_SIZE
        file = self.files.find(position)
        if file is None:
            return False
        at = position - file.from_offset
        if file.map.residency is not None and not file.map.residency.check(at, at + _TARGET.size):
            unit = file.read(at, _TARGET.size, at_once=at_once)
            return unit is not None and _TARGET.unpack(unit) == (physical_offset, size)
        try:  # called for every hit of a query: an exception is cheaper than acquire and release
            return at < file.marks[0] and _TARGET.unpack_from(file.map.view, at) == (physical_offset, size)
        except ValueError:
            return False  # deleted meanwhile

    def page(self, queue_offset: int, limit: int, *, at_once: bool = False) -> Units | None:
        """Returns a copy of at most `limit` units of one file, from `queue_offset` on; None if there are none.

        With `at_once` raises NotResident instead of waiting for the disk.
        """
        file = self.files.find(queue_offset * UNIT_SIZE)
        if file is None or not file.acquire():
            return None
        try:
            position = queue_offset * UNIT_SIZE - file.from_offset
            size = min(limit * UNIT_SIZE, file.readable - position)
            if size <= 0:
                return None
            file.map.ensure_resident(position, position + size, at_once=at_once)
            return copy_units(file.map.view, position, size)
        finally:
            file.release()

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, run: QueueRun, *, no_gap_before: int = -1, placeholders: Placeholders | None = None) -> int:
        """Appends the units of a run. Returns the number of new ones.

        Idempotent: skips units that exist. Skips records that lie in the log before the last unit's record: they are
        older than a deletion of the topic. A gap in the queue offsets is filled with units that point to the
        placeholder in the gap, or to no record. If the record before the gap ends before the physical offset
        `no_gap_before`, the missing records may still be in the log: then raises GapInQueue.
        """
        next_offset = self.max_offset
        if run.first < next_offset:
            run = run.after(next_offset - run.first)
        if run.units and run.physical_offset < self.max_physical_offset:
            run = run.after(int(np.count_nonzero(run.columns["offset"] < self.max_physical_offset)))
        if not run.units:
            return 0
        if run.first > next_offset:
            if self.max_physical_offset < no_gap_before:
                missing = f"{self.topic}/{self.queue_id}: {next_offset} to {run.first - 1}"
                raise GapInQueue(missing, self.max_physical_offset)
            unit = (placeholders or Placeholders()).unit_for_gap(self.max_physical_offset, run.physical_offset)
            self.fill_up_to(run.first, unit)
        left = run.units
        while left:
            file = self.files.writable(run.first * UNIT_SIZE)
            position, size = file.wrote, min(len(left), file.size - file.wrote)
            file.map.reserve(position, position + size, STEP)
            if size < _MIN_BULK_WRITE:
                file.map.view[position : position + size] = left[:size]
            else:  # a write is far cheaper than the page faults of a new file
                file.map.write(position, left[:size])
            file.wrote += size
            offset, length = _TARGET.unpack_from(left, size - UNIT_SIZE)
            self.max_physical_offset = offset + length
            left = left[size:]
        return len(run.units) // UNIT_SIZE

    def fill_up_to(self, queue_offset: int, unit: bytes = PRE_BLANK) -> None:
        """Fills the queue up to `queue_offset` with `unit`, which points to no record or to a placeholder.

        If the queue is empty, it starts at queue offset 0 if `unit` points to a placeholder, else at `queue_offset`.
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
            position, end = file.wrote, file.wrote + count * UNIT_SIZE
            file.map.reserve(position, end, STEP)
            file.map.view[position:end] = unit * count
            file.wrote = end
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
    """Returns the byte position in the queue at which its valid units end.

    A unit is valid if its physical offset and size are possible, and its record begins after the previous unit's record
    ends. Checks every unit of the last three files, and the first and last unit of the others. Does not read the log.
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
    """Returns a view of `size` bytes of units, not a copy. Drop the view before the file is unmapped."""
    return np.frombuffer(file.map.view, UNIT, size // UNIT_SIZE, position)


def is_real(units: Units) -> npt.NDArray[np.bool_]:
    """Returns a mask of the units that point to a record."""
    sizes = units["size"]
    return np.asarray((sizes != NO_RECORD_SIZE) & (sizes > 0) & (units["offset"] >= 0))


def _count_in_order(units: Units, before: Units | None) -> int:
    """Returns a lower bound of the valid units at the start. The check is quick: it stops at gaps and placeholders."""
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
    """Returns how many units precede the first one with an impossible offset or size, such as a zero unit."""
    for start in range(0, len(units), UNITS_AT_ONCE):
        bad = np.flatnonzero(_is_impossible(units[start : start + UNITS_AT_ONCE]))
        if len(bad):
            return start + int(bad[0])
    return len(units)


def _is_impossible(units: Units) -> npt.NDArray[np.bool_]:
    offsets = units["offset"]
    return np.asarray((offsets < 0) | (offsets > _MAX_OFFSET) | (units["size"] <= 0))


def _last_real(units: Units, otherwise: Units | None) -> Units | None:
    """Returns the last unit that points to a record; `otherwise` if none does."""
    for end in range(len(units), 0, -UNITS_AT_ONCE):
        part = units[max(end - UNITS_AT_ONCE, 0) : end]
        real = np.flatnonzero(part["size"] != NO_RECORD_SIZE)
        if len(real):
            return part[real[-1:]].copy()
    return otherwise


def count_valid(units: Units, before: Units | None) -> int:
    """Returns how many units at the start are valid. `before` is the last unit that precedes them, if any.

    A valid unit points to a record after that of the previous unit, or both point to the same placeholder. Otherwise
    one of the two units is wrong, and neither counts.
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


# -- reading any queue -------------------------------------------------------------------------------------------


class ReadableQueue(Protocol):
    """A consume queue to read: the `ConsumeQueue` of an open store, or a read-only view."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    @property
    def units_in_file(self) -> int: ...

    def page(self, queue_offset: int, limit: int, /) -> Units | None: ...


def unit_pages(queue: ReadableQueue, start: int, stop: int, limit: int = 1 << 16) -> Iterator[tuple[int, Units]]:
    """Yields the units start … stop - 1 in pages: the first one's queue offset, and at most `limit` units of one file.

    Units that the queue does not have are pre-blank, so each page is full.
    """
    while start < stop:
        count = min(stop - start, limit, queue.units_in_file - start % queue.units_in_file)
        units = queue.page(start, count)
        have = 0 if units is None else len(units)
        if units is None or have < count:
            blanks = np.frombuffer(PRE_BLANK * (count - have), UNIT)
            units = blanks if units is None else np.concatenate([units, blanks])
        yield start, units
        start += count


# -- placeholders and extension files ------------------------------------------------------------------------------


class Placeholders:
    """Physical offsets and sizes of the placeholders that dispatch has passed, in log order.

    If a placeholder lies between the two records around a gap in a queue's offsets, the missing messages were lost
    there, and their units point to the placeholder. So queues rebuilt from a repaired log equal the queues that the
    repair left. Not thread-safe: only dispatch steps use it.
    """

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self.log_is_whole = False
        """Whether the log begins at offset 0. If not, a queue's first messages may have expired with old log files."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, placeholders: list[tuple[int, int]]) -> None:
        """Adds placeholders as (physical offset, size); skips known ones."""
        for offset, size in placeholders:
            at = bisect_left(self._offsets, offset)
            if at == len(self._offsets) or self._offsets[at] != offset:
                self._offsets.insert(at, offset)
                self._sizes.insert(at, size)

    def first_between(self, begin: int, end: int) -> tuple[int, int] | None:
        """Returns (physical offset, size) of the first placeholder that begins in [begin, end); None if none does."""
        at = bisect_left(self._offsets, begin)
        if at == len(self._offsets) or self._offsets[at] >= end:
            return None
        return self._offsets[at], self._sizes[at]

    def last_before(self, offset: int) -> tuple[int, int] | None:
        """Returns (physical offset, size) of the last placeholder that begins at or before `offset`; None if none."""
        at = bisect_left(self._offsets, offset + 1) - 1
        return None if at < 0 else (self._offsets[at], self._sizes[at])

    def ending_at(self, end: int) -> tuple[int, int] | None:
        """Returns (physical offset, size) of the placeholder that ends at `end`; None if there is none."""
        last = self.last_before(end - 1)
        return None if last is None or sum(last) != end else last

    def unit_for_gap(self, begin: int, end: int) -> bytes:
        """Returns the unit of a message lost in [begin, end) of the log; PRE_BLANK if no placeholder explains the loss.

        `begin` is the physical offset at which the record before the gap ends; -1 if the queue is empty. The unit
        points to the first placeholder in the range, else to the placeholder that ends at `begin`.
        """
        if begin < 0 and not self.log_is_whole:
            return PRE_BLANK
        placeholder = self.first_between(max(begin, 0), end) or self.ending_at(begin)
        return PRE_BLANK if placeholder is None else pack_unit(*placeholder, 0)


_EXT_PIECE: Final = 64 << 10
_MAX_EXT_UNIT: Final = 2**15 - 1
"""Bytes of an extension unit at most: its size is a short."""
_MAX_EXT_PIECES: Final = 512


class QueueExtensions:
    """Looks up tags codes in `consumequeue_ext/{topic}/{queue id}`.

    RocketMQ may store an address in such a file as a unit's tags code. The real tags code is at that address. The
    pieces of the files that were used last stay in memory: 48 MiB at most.
    """

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self._folder = folder
        self._file_size = file_size
        self._pieces: OrderedDict[tuple[Path, int], bytes] = OrderedDict()
        """By path and position: the bytes of a piece, and as many more as a unit that begins in it may have. The one
        that was used last is the last."""

    def resolve(self, topic: str, queue_id: int, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the tags codes with each address replaced by the code at that address. Unreadable addresses stay."""
        codes = codes.astype(np.int64)
        for number in np.flatnonzero(codes <= MAX_EXT_ADDRESS).tolist():
            code = self.tags_code(topic, queue_id, int(codes[number]))
            if code is not None:
                codes[number] = code
        return codes

    def tags_code(self, topic: str, queue_id: int, address: int) -> int | None:
        offset = ext_offset(address)
        start = offset - offset % self._file_size
        path = path_below(self._folder, topic, queue_id, file_name(start))
        number, at = divmod(offset - start, _EXT_PIECE)
        try:
            unit = decode_ext_unit(self._piece(path, number * _EXT_PIECE), at)
        except (FileNotFoundError, CorruptData):
            return None
        return None if unit is None else unit.tags_code

    def _piece(self, path: Path, begin: int) -> bytes:
        """Returns the bytes of a file from `begin` on that the units of one piece take. Raises FileNotFoundError."""
        data = self._pieces.get((path, begin))
        if data is None:
            size = min(_EXT_PIECE + _MAX_EXT_UNIT, self._file_size - begin)
            data = self._pieces[path, begin] = self._io.read_part(path, begin, size)
            if len(self._pieces) > _MAX_EXT_PIECES:
                self._pieces.popitem(last=False)
        self._pieces.move_to_end((path, begin))
        return data
