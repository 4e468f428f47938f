"""Completes the files that ranges have begun in the staging folder: one task for each index file or group of queues.

Index files are built from the keys of the ranges. The key counts of the ranges determine beforehand which keys go into
which file, and how its header begins. A file is renamed into place when it is complete. So a second attempt at the same
task, which Spark may make, is harmless.

The ranges have written all units of a queue. A task removes files that an earlier run left, allocates the others and
fills gaps. It checks each unit against the unit before it, and the first and the last unit of each run against the
range notes. Then it syncs the files. A crash leaves only unfinished staged files. All steps are idempotent.
"""

from __future__ import annotations

import contextlib
import secrets
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock.errors import disk_refused
from penstock.format.index_layout import IndexGeometry, IndexHeader
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, copy_units
from penstock.format.scan import row_at
from penstock.store.audit.queue_coverage import CoveredRun
from penstock.store.files.file_io import FileMap, Files, zero_from
from penstock.store.files.layout import path_below
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.index import IndexFile, header_after
from penstock.store.queue_units_and_keys import Keys
from penstock.store.readonly.view import FilesView
from penstock.store.rebuild.plan import RebuildPlan
from penstock.store.rebuild.ranges import QueuePlan, open_sparse, read_keys

# -- index files --------------------------------------------------------------------------------------------------


class KeySpan(msgspec.Struct, frozen=True):
    """The keys `first` to `stop` - 1 in the key file of the range `number`."""

    number: int
    first: int
    stop: int


class IndexFilePlan(msgspec.Struct, frozen=True):
    """One index file to build: its name, its keys, and the last key of the file before it, if any."""

    name: str
    spans: list[KeySpan]
    before: KeySpan | None

    @property
    def items(self) -> int:
        return sum(span.stop - span.first for span in self.spans)


def cut_keys(keys: list[tuple[int, int]], geometry: IndexGeometry, now_ms: int) -> list[IndexFilePlan]:
    """Splits the keys over index files. `keys`: the number and the key count of each range, in log order.

    Files are named by local time in milliseconds, each one millisecond later than the one before.
    """
    moment = datetime.fromtimestamp(now_ms / 1000)
    name = int(f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}")
    parts: list[IndexFilePlan] = []
    room, last = 0, None
    for number, count in keys:
        first = 0
        while first < count:
            if not room:
                parts.append(IndexFilePlan(f"{name + len(parts):017d}", [], last))
                room = geometry.items - 1  # item 0 is never used
            stop = min(first + room, count)
            parts[-1].spans.append(KeySpan(number, first, stop))
            room -= stop - first
            last, first = KeySpan(number, stop - 1, stop), stop
    return parts


def build_index_file(plan: RebuildPlan, files: Files, part: IndexFilePlan) -> str:
    """Builds one index file in the staging folder. Raises BadStore, StoreFailed.

    Returns an empty string, or the path of a file whose content is not what a range wrote.
    """
    plan.check_visible(files)
    geometry, path = plan.task.geometry, plan.folder / f"{part.name}.{secrets.token_hex(4)}"
    items, end = bytearray(), -1
    allocated = geometry.item_position(part.items + 1)
    created = files.create_map(path, geometry.file_size, allocated=allocated)
    with contextlib.closing(IndexFile(created, geometry)) as table:
        if part.before is not None:
            last = next(read_keys(files, plan.keys_of(part.before.number), part.before.first, part.before.stop))
            header = IndexHeader(end_physical_offset=int(last.offsets[0]), end_timestamp=int(last.times[0]))
            table.set_header(header_after(header))
            end = header.end_physical_offset
        for span in part.spans:
            for keys in read_keys(files, plan.keys_of(span.number), span.first, span.stop):
                if not _in_order(plan, span.number, keys, end):
                    return str(plan.keys_of(span.number))
                table.put(*keys, buffer=items)
                end = int(keys.offsets[-1])
        if table.count != part.items + 1:
            return str(path)
        try:
            table.sync()
            files.make_folder(plan.index)
            files.rename(path, path_below(plan.index, part.name))
            files.sync_folder(plan.index)
        except OSError as error:
            raise disk_refused("cannot complete an index file", path, 0, error) from error
    return ""


def _in_order(plan: RebuildPlan, number: int, keys: Keys, end: int) -> bool:
    """Whether keys can be those that their range wrote; a crash may have left zeros instead.

    `end`: physical offset of the record of the key before them, or -1.
    """
    piece, offsets = plan.ranges[number], keys.offsets
    begin = piece.base + piece.start
    if begin == 0 and not (offsets[0] or keys.hashes[0] or keys.times[0]):
        return False  # in a log that begins at 0, zeros would be in order
    return bool(
        int(offsets[0]) >= max(end, begin)
        and int(offsets[-1]) < piece.base + plan.task.log.file_size
        and (offsets[1:] >= offsets[:-1]).all()
        and int(keys.hashes.min()) >= 0
    )


# -- queues -------------------------------------------------------------------------------------------------------

_MIN_UNITS: Final = 1 << 19
_UNITS_AT_ONCE: Final = 1 << 14


class QueueGroup(msgspec.Struct, frozen=True):
    """Queues that one task completes."""

    queues: list[QueuePlan]

    @property
    def units(self) -> int:
        return sum(queue.units for queue in self.queues)


def grouped(queues: list[QueuePlan], max_groups: int) -> list[QueueGroup]:
    """Returns at most `max_groups` groups or a few more, with similar numbers of units, each worth a task."""
    share = max(sum(queue.units for queue in queues) // max(max_groups, 1), _MIN_UNITS)
    groups: list[QueueGroup] = []
    held = share
    for queue in queues:
        if held >= share:
            groups.append(QueueGroup([]))
            held = 0
        groups[-1].queues.append(queue)
        held += queue.units
    return groups


def complete_queues(plan: RebuildPlan, files: Files, group: QueueGroup) -> str:
    """Completes the queues of a group in the staging folder. Raises BadStore, StoreFailed.

    Returns an empty string, or the path of a queue file with a wrong unit.
    """
    plan.check_visible(files)
    log = FilesView(Path(plan.task.log.folder), plan.task.log.file_size)
    with contextlib.closing(log):
        for queue in group.queues:
            bad = _QueueCompletion(plan, files, log, queue).run()
            if bad is not None:
                return str(bad)
    return ""


class _QueueCompletion:
    def __init__(self, plan: RebuildPlan, files: Files, log: FilesView, queue: QueuePlan) -> None:
        self._io = files
        self._log = log
        self._queue = queue
        self._folder = path_below(plan.queues, queue.topic, queue.queue_id)
        self._file_size = plan.task.queue_file_size

    def run(self) -> Path | None:
        """Completes the files of the queue. Returns the path of a file with a wrong unit, or None."""
        first, stop = self._queue.begin * UNIT_SIZE, self._queue.end * UNIT_SIZE
        paths = [self._folder / file_name(base) for base in range(first, stop, self._file_size)]
        for name in set(self._io.names(self._folder)) - {path.name for path in paths}:
            self._io.unlink(self._folder / name)
        end = -1
        for path in paths:
            with contextlib.closing(open_sparse(self._io, path, self._file_size)) as file:
                checked = self._complete_file(file, int(path.name) // UNIT_SIZE, end)
            if checked is None:
                return path
            end, newest = checked
            if newest > 0:
                self._io.set_modified_ms(path, newest)
        self._io.sync_folder(self._folder)
        return None

    def _complete_file(self, file: FileMap, first: int, end: int) -> tuple[int, int] | None:
        """Returns the physical offset where the last unit's record ends, and its store time or 0.

        Returns None if a unit is wrong. `first`: the file's first queue offset. `end`: where the record before it ends.
        """
        stop = min(first + self._file_size // UNIT_SIZE, self._queue.end)
        try:
            for fill in self._queue.fills:
                low, high = max(fill.first, first), min(fill.end, stop)
                if low < high:
                    file.write((low - first) * UNIT_SIZE, bytearray(bytes.fromhex(fill.unit) * (high - low)))
            zero_from(file, (stop - first) * UNIT_SIZE)
            for run in self._queue.records:
                if run.first < stop and run.end > first:
                    checked = _end_of(file, first, stop, run, end)
                    if checked is None:
                        return None
                    end = checked
            file.sync()
        except OSError as error:
            raise disk_refused("cannot complete a queue", file.path, len(file), error) from error
        return end, self._time_of_last(file, stop - first)

    def _time_of_last(self, file: FileMap, count: int) -> int:
        """Returns the store time of the record of the last unit, or 0. It becomes the file's modification time.

        RocketMQ relies on it: to search by time, it opens the first queue file that was modified after that time.
        """
        offset, size, _ = copy_units(file.view, (count - 1) * UNIT_SIZE, UNIT_SIZE)[0].item()
        log = None if size == NO_RECORD_SIZE else self._log.find(offset)
        if log is None:
            return 0
        at = offset - log.from_offset
        rows = row_at(log.map.view, log.from_offset, at)
        return int(rows["store_timestamp"][0]) if len(rows) else 0


def _end_of(file: FileMap, first: int, stop: int, run: CoveredRun, end: int) -> int | None:
    """Checks the units of a run in one file. Returns where the last one's record ends in the log; None if one is wrong.

    `first`, `stop`: the file's queue offsets. `end`: physical offset where the record before the run's part ends.
    """
    low, high = max(run.first, first), min(run.end, stop)
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
            and (start > run.first or int(offsets[0]) == run.physical_first)
        )
        if not is_sound:
            return None
        end = int(ends[-1])
    return end if high < run.end or end == run.physical_end else None


def complete(plan: RebuildPlan, files: Files, piece: IndexFilePlan | QueueGroup) -> bytes:
    """Completes one index file or a group of queues; returns the path of a wrong file, or nothing."""
    if isinstance(piece, IndexFilePlan):
        return build_index_file(plan, files, piece).encode()
    return complete_queues(plan, files, piece).encode()
