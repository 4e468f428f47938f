"""Finishes staged queues whose units all lie in their places: keeps the places between, checks, allocates and syncs.

Each file is looked through once: every unit must be there, and point behind the one before it; the first and the last
of each stretch must point where the log's walk said. Whatever else an earlier run left in the folder goes. A crash
leaves the staging folder as it was or a part of it finished; doing it again does no harm.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, copy_units
from penstock.store.audit.cover import Stretch
from penstock.store.disk_errors import disk_refused
from penstock.store.file_map import FileMap
from penstock.store.file_queue import file_name
from penstock.store.files import Files
from penstock.store.light_view import FilesView
from penstock.store.rebuilding.plan import Plan
from penstock.store.rebuilding.sums import WholeQueue
from penstock.store.rebuilding.units import open_sparse
from penstock.store.zeros import zero_from

_LEAST_UNITS: Final = 1 << 19
_UNITS_AT_ONCE: Final = 1 << 14


class QueueGroup(msgspec.Struct, frozen=True):
    """Queues that are finished together."""

    queues: list[WholeQueue]

    @property
    def units(self) -> int:
        return sum(queue.units for queue in self.queues)


def grouped(queues: list[WholeQueue], most: int) -> list[QueueGroup]:
    """At most about `most` groups, of about as many units each, and not so few that a task is not worth it."""
    share = max(sum(queue.units for queue in queues) // max(most, 1), _LEAST_UNITS)
    groups: list[QueueGroup] = []
    held = share
    for queue in queues:
        if held >= share:
            groups.append(QueueGroup([]))
            held = 0
        groups[-1].queues.append(queue)
        held += queue.units
    return groups


def finish_queues(plan: Plan, files: Files, group: QueueGroup) -> str:
    """Where something is not as it should be; empty if all is well. Raises BadStore, StoreFailed."""
    plan.check_seen(files)
    log = FilesView(Path(plan.task.log.folder), plan.task.log.file_size)
    with contextlib.closing(log):
        for queue in group.queues:
            bad = _Finisher(plan, files, log, queue).finish()
            if bad is not None:
                return str(bad)
    return ""


class _Finisher:
    def __init__(self, plan: Plan, files: Files, log: FilesView, queue: WholeQueue) -> None:
        self._io = files
        self._log = log
        self._queue = queue
        self._folder = plan.queues / queue.topic / str(queue.queue_id)
        self._file_size = plan.task.queue_file_size

    def finish(self) -> Path | None:
        """Where something is wrong."""
        first, stop = self._queue.begin * UNIT_SIZE, self._queue.end * UNIT_SIZE
        due = [self._folder / file_name(base) for base in range(first, stop, self._file_size)]
        for name in set(self._io.names(self._folder)) - {path.name for path in due}:
            self._io.unlink(self._folder / name)
        end = -1
        for path in due:
            with contextlib.closing(open_sparse(self._io, path, self._file_size)) as file:
                checked = self._finish_file(file, int(path.name) // UNIT_SIZE, end)
            if checked is None:
                return path
            end, newest = checked
            if newest > 0:
                self._io.set_modified_ms(path, newest)
        self._io.sync_folder(self._folder)
        return None

    def _finish_file(self, file: FileMap, first: int, end: int) -> tuple[int, int] | None:
        """Where the record of its last unit ends, and that one's store time, 0 if there is none; None if it is bad."""
        stop = min(first + self._file_size // UNIT_SIZE, self._queue.end)
        try:
            file.allocate(0, len(file))
            for fill in self._queue.fills:
                low, high = max(fill.first, first), min(fill.end, stop)
                if low < high:
                    file.write((low - first) * UNIT_SIZE, bytearray(bytes.fromhex(fill.unit) * (high - low)))
            zero_from(file, (stop - first) * UNIT_SIZE)
            for stretch in self._queue.records:
                if stretch.first < stop and stretch.end > first:
                    checked = _end_of(file, first, stop, stretch, end)
                    if checked is None:
                        return None
                    end = checked
            file.sync()
        except OSError as error:
            raise disk_refused("cannot finish a queue", file.path, len(file), error) from error
        return end, self._time_of_last(file, stop - first)

    def _time_of_last(self, file: FileMap, count: int) -> int:
        """RocketMQ looks for a time in the first queue file that was modified after it."""
        offset, size, _ = copy_units(file.view, (count - 1) * UNIT_SIZE, UNIT_SIZE)[0].item()
        log = None if size == NO_RECORD_SIZE else self._log.find(offset)
        if log is None:
            return 0
        at = offset - log.from_offset
        rows, _, _ = kernels.walk(log.map.view, log.from_offset, at, at + 1, False, None, 1)
        return int(rows["store_timestamp"][0]) if len(rows) else 0


def _end_of(file: FileMap, first: int, stop: int, stretch: Stretch, end: int) -> int | None:
    """Where the last record of a stretch's part in a file ends in the log; None if a unit of it is wrong.

    `first` and `stop` are the queue offsets of the file, `end` is where the record before ends.
    """
    low, high = max(stretch.first, first), min(stretch.end, stop)
    for start in range(low, high, _UNITS_AT_ONCE):
        count = min(high - start, _UNITS_AT_ONCE)
        units = copy_units(file.view, (start - first) * UNIT_SIZE, count * UNIT_SIZE)
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        ends = offsets + sizes
        is_sound = (
            sizes.min() > 0
            and sizes.max() != NO_RECORD_SIZE
            and int(offsets[0]) >= end
            and bool((offsets[1:] >= ends[:-1]).all())
            and (start > stretch.first or int(offsets[0]) == stretch.physical_first)
        )
        if not is_sound:
            return None
        end = int(ends[-1])
    return end if high < stretch.end or end == stretch.physical_end else None
