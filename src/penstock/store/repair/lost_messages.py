"""Finds queue units and index items that point into damaged or covered ranges of the log: lost messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.format.index_layout import HEADER_SIZE, IndexGeometry, IndexHeader
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.store.audit.files import ItemTable
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files.file_io import Files
from penstock.store.rebuild.compare_queues import units_between
from penstock.store.repair.report import LostMessages

_UNITS_AT_ONCE = 1 << 16


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
