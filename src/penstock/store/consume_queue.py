"""A consume queue: for one topic and queue id, where each message lies in the log.

Unit i of the queue lies at byte 20 * i of its files, always: a unit is placed by its own queue offset. Everything
here can be rebuilt from the log. One thread appends (the dispatcher); any thread reads.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.queue_unit import PRE_BLANK, UNIT, UNIT_SIZE
from penstock.store.file_queue import FileQueue
from penstock.store.files import Files
from penstock.store.mapped_file import MappedFile

log = logging.getLogger("penstock.store")

NO_RECORD_SIZE = 0x7FFFFFFF
"""The size in a unit that only keeps the place of a message which is not in the log."""

_UNITS_AT_ONCE = 4096

NO_UNIT = (0, NO_RECORD_SIZE, 0)

Units = npt.NDArray[np.void]
Rows = npt.NDArray[np.void]
Picks = npt.NDArray[np.int64]


class GapInQueue(Exception):
    """A record comes whose predecessors in the queue have no units."""


class ConsumeQueue:
    """The units of one queue."""

    def __init__(self, files: Files, folder: Path, topic: str, queue_id: int, file_size: int) -> None:
        self.files = FileQueue(files, folder, file_size)
        self.topic = topic
        self.topic_bytes = topic.encode("utf-8", "surrogateescape")
        self.queue_id = queue_id
        self.max_physical_offset = -1
        """End of the record that the last unit points to, -1 if there is none."""
        self.min_offset = 0
        """Queue offset of the oldest message that is still in the log."""

    @property
    def max_offset(self) -> int:
        """The queue offset that the next message will get."""
        return self.files.max_offset // UNIT_SIZE

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps the files and finds the end of the valid units; files behind it go."""
        self.files.load()
        files = self.files.files
        end, self.max_physical_offset = 0, -1
        for file in files[max(0, len(files) - 3) :]:
            units = view_units(file, 0, file.size)
            valid = valid_units(units)
            bad = np.flatnonzero(~valid)
            count = int(bad[0]) if len(bad) else len(units)
            real = np.flatnonzero(units["size"][:count] != NO_RECORD_SIZE)
            if len(real):
                newest = units[real[-1]]
                self.max_physical_offset = int(newest["offset"]) + int(newest["size"])
            end = file.from_offset + count * UNIT_SIZE
            del units, real
            if count * UNIT_SIZE < file.size:
                break
        self.files.truncate(end, zero=False)
        if files:
            self.min_offset = files[0].from_offset // UNIT_SIZE

    def truncate(self, physical_offset: int) -> int:
        """Cuts and zeroes every unit that points at or behind `physical_offset`; returns how many went."""
        before = self.max_offset
        keep = before
        low = self.files.min_offset // UNIT_SIZE if self.files.files else 0
        while keep > low:
            offset, size, _ = self.unit(keep - 1)
            if size == NO_RECORD_SIZE or offset < physical_offset:
                break
            keep -= 1
        self.files.truncate(keep * UNIT_SIZE)
        self._remember_last(keep, low)
        self.min_offset = min(self.min_offset, keep)
        return before - keep

    def cut_last(self) -> None:
        """Takes the last unit back, so that it can be appended again."""
        self.files.truncate((self.max_offset - 1) * UNIT_SIZE)
        self._remember_last(self.max_offset, self.files.min_offset // UNIT_SIZE)

    def _remember_last(self, end: int, low: int) -> None:
        self.max_physical_offset = -1
        for number in range(end - 1, low - 1, -1):
            offset, size, _ = self.unit(number)
            if size != NO_RECORD_SIZE:
                self.max_physical_offset = offset + size
                return

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Moves the minimum to the first unit whose record is still in the log; to the end if none is.

        A unit that points to no record says nothing about those before it: the next one that does decides.
        """
        low = max(self.files.min_offset // UNIT_SIZE, 0) if self.files.files else 0
        high = end = self.max_offset
        while low < high:
            middle = (low + high) // 2
            place = self._next_real(middle, high)
            if place < high and self.unit(place)[0] < log_min_offset:
                low = place + 1
            else:
                high = middle
        self.min_offset = self._next_real(low, end)

    def _next_real(self, queue_offset: int, stop: int) -> int:
        """The first unit from `queue_offset` on that points to a record, `stop` if there is none before it."""
        while queue_offset < stop:
            units = self.page(queue_offset, min(stop - queue_offset, _UNITS_AT_ONCE))
            if units is None:
                return stop
            real = np.flatnonzero(units["size"] != NO_RECORD_SIZE)
            if len(real):
                return queue_offset + int(real[0])
            queue_offset += len(units)
        return stop

    # -- reading ---------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """(physical offset, size, tags code); a unit that is not there (any more) points to no record."""
        found = self.page(queue_offset, 1)
        return NO_UNIT if found is None else found[0].item()

    def page(self, queue_offset: int, most: int) -> Units | None:
        """A copy of the units from `queue_offset` on, within one file, at most `most`; None if there are none."""
        file = self.files.find(queue_offset * UNIT_SIZE)
        if file is None or not file.hold():
            return None
        try:
            position = queue_offset * UNIT_SIZE - file.from_offset
            size = min(most * UNIT_SIZE, file.readable - position)
            return view_units(file, position, size).copy() if size > 0 else None
        finally:
            file.release()

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, rows: Rows, picks: Picks, *, gap_is_error: bool = False) -> int:
        """Adds units for `rows[picks]`, which are in log order; returns how many were new.

        Units that are there already are left alone. If offsets are missing in between, their places are kept with
        units that point to no record, or GapInQueue is raised, before anything is written.
        """
        offsets = rows["queue_offset"][picks]
        next_offset = self.max_offset
        if int(offsets[0]) < next_offset:
            new = offsets >= next_offset
            picks, offsets = picks[new], offsets[new]
        if not len(picks):
            return 0
        first = int(offsets[0])
        if first > next_offset or (len(offsets) > 1 and not (np.diff(offsets) == 1).all()):
            return self._append_with_gaps(rows, picks, gap_is_error)
        done = 0
        while done < len(picks):
            file = self.files.writable(first * UNIT_SIZE)
            count = min(len(picks) - done, (file.size - file.wrote) // UNIT_SIZE)
            part = picks[done : done + count]
            kernels.append_units(file.map.view, file.wrote, rows, part)
            file.wrote += count * UNIT_SIZE
            done += count
            newest = rows[part[-1]]
            self.max_physical_offset = int(newest["physical_offset"]) + int(newest["size"])
        return done

    def _append_with_gaps(self, rows: Rows, picks: Picks, gap_is_error: bool) -> int:
        """One by one: fills holes, leaves out what comes twice."""
        added = 0
        for pick in picks:
            queue_offset = int(rows[pick]["queue_offset"])
            if queue_offset < self.max_offset:
                continue
            if queue_offset > self.max_offset:
                if gap_is_error:
                    raise GapInQueue(f"{self.topic}/{self.queue_id}: {self.max_offset} to {queue_offset - 1}")
                self._fill_up_to(queue_offset)
            added += self.append(rows, np.array([pick], np.int64))
        return added

    def _fill_up_to(self, queue_offset: int) -> None:
        """Keeps the places before `queue_offset` with units that point to no record."""
        was_empty = not self.files.files
        file = self.files.writable(queue_offset * UNIT_SIZE)
        if was_empty:
            self.min_offset = queue_offset
            self.files.flushed_where = self.files.committed_where = file.from_offset
        else:
            log.warning(
                "%s queue %d: no record for offsets %d to %d; their places are kept",
                self.topic,
                self.queue_id,
                self.max_offset,
                queue_offset - 1,
            )
        while self.max_offset < queue_offset:
            file = self.files.writable(queue_offset * UNIT_SIZE)
            count = min(queue_offset - self.max_offset, (file.size - file.wrote) // UNIT_SIZE)
            file.map.view[file.wrote : file.wrote + count * UNIT_SIZE] = PRE_BLANK * count
            file.wrote += count * UNIT_SIZE

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self, least_pages: int) -> None:
        for file in self.files.files:
            file.committed = file.wrote
        while self.files.flush(least_pages):
            pass

    def close(self) -> None:
        self.files.close()


def view_units(file: MappedFile, position: int, size: int) -> Units:
    """The units of part of a file, in place: drop the view before the file can go."""
    return np.frombuffer(file.map.view, UNIT, size // UNIT_SIZE, position)


def valid_units(units: Units) -> npt.NDArray[np.bool_]:
    return np.asarray((units["offset"] >= 0) & (units["size"] > 0))
