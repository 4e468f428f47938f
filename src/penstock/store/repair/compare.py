"""Compares a store's queues with those that dispatch builds from the log, and finds messages in damaged ranges.

The queues in the store are opened read-only, one at a time. The comparison ignores units of records that retention
deleted, bytes past the queue's end, and tags codes that a unit replaces by an extension address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import BadStore
from penstock.format.index_layout import HEADER_SIZE, IndexGeometry, IndexHeader
from penstock.format.queue_unit import MAX_EXT_ADDRESS, NO_RECORD_SIZE, UNIT_SIZE, Units
from penstock.store.audit.files import ItemTable
from penstock.store.consume_queue import ConsumeQueue, unit_pages
from penstock.store.copy_on_write_files import OverlayFiles
from penstock.store.damage import DamagedRange
from penstock.store.file_io import Files
from penstock.store.layout import Layout
from penstock.store.repair.report import LostMessages

QueueName = tuple[str, int]
"""Topic and queue id."""


class OldQueues:
    """The queues in a store before the rebuild. Opens one queue at a time, and skips queues that cannot be read."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        file_size: int,
        selects: Callable[[str, int], bool] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`selects`: which queues to include; None for all. `folder`: of the queues, if not the layout's folder."""
        self._io = files if files.read_only else OverlayFiles()
        self._folder = folder or layout.consume_queue
        self._file_size = file_size
        self._selects = selects

    def names(self) -> list[QueueName]:
        """Returns the names of the selected queues, including queues whose files cannot be read."""
        names: list[QueueName] = []
        for topic in self._io.names(self._folder) if self._io.is_folder(self._folder) else ():
            folder = self._folder / topic
            for name in self._io.names(folder) if self._io.is_folder(folder) else ():
                if name.isascii() and name.isdecimal() and self._io.is_folder(folder / name):
                    names.append((topic, int(name)))
        return [name for name in names if self._selects is None or self._selects(*name)]

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Yields the readable queues; each is closed before the next one opens."""
        for name in self.names():
            with self.open(*name) as queue:
                if queue is not None:
                    yield queue

    @contextlib.contextmanager
    def open(self, topic: str, queue_id: int) -> Iterator[ConsumeQueue | None]:
        """Opens one queue; yields None if it does not exist or its files cannot be read."""
        queue = ConsumeQueue(self._io, self._folder / topic / str(queue_id), topic, queue_id, self._file_size)
        with contextlib.closing(queue):
            usable = False
            with contextlib.suppress(BadStore, OSError):
                queue.load()
                usable = bool(queue.files.files)
            yield queue if usable else None


# -- comparing ----------------------------------------------------------------------------------------------------

_UNITS_AT_ONCE = 1 << 16


def difference(
    old: ConsumeQueue | None, built: ConsumeQueue | None, log_begin: int, damage: Sequence[DamagedRange] = ()
) -> str:
    """Returns what is wrong with the old queue, in a few words; an empty string if the queue can stay.

    `damage`: ranges of the log that dispatch skips.
    """
    if old is None:
        return "" if built is None else "it was missing, or its files could not be read"
    if built is None:
        return "" if not _points_into_log(old, log_begin) else "its units point to records of other queues"
    if old.max_offset != built.max_offset:
        return f"it ended at {old.max_offset} instead of {built.max_offset}"
    first = max(built.files.min_offset, 0) // UNIT_SIZE
    for number in range(first, built.max_offset, _UNITS_AT_ONCE):
        stop = min(number + _UNITS_AT_ONCE, built.max_offset)
        wrong = _wrong(units_between(old, number, stop), units_between(built, number, stop), log_begin, damage)
        if len(wrong):
            return f"its unit {number + int(wrong[0])} was wrong"
    return ""


def _points_into_log(queue: ConsumeQueue, log_begin: int) -> bool:
    low = max(queue.files.min_offset, 0) // UNIT_SIZE
    for number in range(low, queue.max_offset, _UNITS_AT_ONCE):
        units = units_between(queue, number, min(number + _UNITS_AT_ONCE, queue.max_offset))
        if ((units["size"] != NO_RECORD_SIZE) & (units["offset"] >= log_begin)).any():
            return True
    return False


def _wrong(old: Units, built: Units, log_begin: int, damage: Sequence[DamagedRange]) -> npt.NDArray[np.int64]:
    """Returns the positions of old units that are wrong.

    A pre-blank built unit matches any old unit without a record: one that is pre-blank, or that points before the log
    or into `damage`.
    """
    same = (old["offset"] == built["offset"]) & (old["size"] == built["size"])
    same &= (old["tags_code"] == built["tags_code"]) | (old["tags_code"] <= MAX_EXT_ADDRESS)
    no_record = (old["size"] == NO_RECORD_SIZE) | (old["offset"] < log_begin)
    for each in damage:
        no_record |= (old["offset"] >= each.physical_offset) & (old["offset"] < each.end)
    return np.flatnonzero(~same & ~((built["size"] == NO_RECORD_SIZE) & no_record))


def units_between(queue: ConsumeQueue, first: int, stop: int) -> Units:
    """Returns a copy of the units first … stop - 1, with pre-blank units for those that have no file."""
    return np.concatenate([units for _, units in unit_pages(queue, first, stop)])


def find_lost(queue: ConsumeQueue, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, LostMessages]]:
    """Returns the messages of a queue whose units point into the given ranges of the log.

    The result has runs of consecutive queue offsets, each with the number of its range. `ranges`: (begin, end) with
    `end` excluded, sorted, disjoint and not empty.
    """
    runs: list[tuple[int, LostMessages]] = []
    begins, ends = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    low = max(queue.files.min_offset, 0) // UNIT_SIZE
    for number in range(low, queue.max_offset, _UNITS_AT_ONCE):
        units = units_between(queue, number, min(number + _UNITS_AT_ONCE, queue.max_offset))
        offsets = units["offset"].astype(np.int64)
        within = np.searchsorted(begins, offsets, side="right") - 1
        inside = (units["size"] != NO_RECORD_SIZE) & (within >= 0) & (offsets < ends[within])
        for at in np.flatnonzero(inside).tolist():
            _join(runs, int(within[at]), number + at, queue)
    return runs


def _join(runs: list[tuple[int, LostMessages]], number: int, offset: int, queue: ConsumeQueue) -> None:
    if runs and runs[-1][0] == number and runs[-1][1].last_offset == offset - 1:
        first = runs.pop()[1].first_offset
    else:
        first = offset
    runs.append((number, LostMessages(queue.topic, queue.queue_id, first, offset)))


def index_offsets(files: Files, folder: Path, geometry: IndexGeometry) -> Iterator[npt.NDArray[np.int64]]:
    """Yields, for each index file, the record offsets of its items; skips files of the wrong size."""
    for name in files.names(folder) if files.is_folder(folder) else ():
        if not files.is_folder(folder / name) and files.size(folder / name) == geometry.file_size:
            with contextlib.closing(files.open_map(folder / name)) as file:
                count = min(max(IndexHeader.unpack(file.view[:HEADER_SIZE]).index_count, 1), geometry.items)
                table = ItemTable(file, geometry, count, in_order=True)
                yield table.raw(1, count)["offset"].astype(np.int64)


def any_within(offsets: Iterable[npt.NDArray[np.int64]], ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether any of these offsets is in one of the sorted ranges (begin, end)."""
    if not ranges:
        return False
    begins, ends = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    for some in offsets:
        number = np.searchsorted(begins, some, side="right") - 1
        if ((number >= 0) & (some < ends[number])).any():
            return True
    return False
