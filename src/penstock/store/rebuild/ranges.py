"""Builds one range of the log, and combines the notes of all ranges.

`derive_range` walks a range with every check of a repair, CRC included. It returns units by queue, keys, and damage.
`build_range` writes the units into the staged queue files, the keys into a file, and last the range's note
(`RangeNote`). So a range that has a note is complete. A unit's file and
position follow from its queue offset: ranges are independent, several processes may write into one file, and building a
range twice writes the same bytes. Nothing is synced. If a power failure loses notes, keys or units, a later run notices
it when it reads the notes, and when it completes queues and index. Staged files are sparse, and are not read before all
ranges are done.

`combine_notes` is pure. In a sound log the runs of a queue follow each other from range to range.

The keys of a range, in log order, 20 bytes each, little-endian, in a file of the staging folder:

    OFFSET  SIZE  DESCRIPTION
    0       4     hash of the key
    4       8     physical offset of its record
    12      8     store time of its record

The keys have no checksum. The reader checks that the offsets are in the range and in order; zeros left by a crash are
not.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.errors import BadStore, StoreFailed
from penstock.format import kernels
from penstock.format.damage_placeholder import is_placeholder
from penstock.format.msgspec_warm_up import prepared
from penstock.format.queue_unit import PRE_BLANK, UNIT_SIZE
from penstock.format.topics import is_readable_queue
from penstock.store.audit.queue_coverage import CoveredRun, QueueCover, QueueName
from penstock.store.consume_queue import Placeholders
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.files.atomic_files import checksummed, read_checksummed
from penstock.store.files.file_io import FileMap, Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import path_below
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.queue_units_and_keys import KEY, NO_LIMIT, Keys, key_columns
from penstock.store.rebuild.compare_queues import QueueFolder
from penstock.store.rebuild.log_scan import (
    DamagedFileRange,
    LogScan,
    SuspectBytes,
    is_unwritten,
    merged,
    scan_log_range,
)
from penstock.store.rebuild.plan import RebuildPlan, RebuildRange, RebuildTask
from penstock.store.single_record_reader import max_queue_offset

_MAX_RUNS: Final = 64
_NEVER: Final = 2**63 - 1


class QueueRuns(msgspec.Struct):
    """The records of one queue in a range, in log order, as runs of consecutive queue offsets."""

    topic: str
    queue_id: int
    runs: list[CoveredRun] = []
    too_many: bool = False
    """Whether there were more than `_MAX_RUNS` runs. Then `runs` is empty, and the queue must be built in log order."""


class DerivedRange(NamedTuple):
    """What follows from the records of a range: units by queue, keys, and the note about them."""

    note: RangeNote
    queues: list[kernels.QueuePart]
    keys: memoryview


def derive_range(
    task: RebuildTask, files: Files, piece: RebuildRange, *, only: Collection[QueueName] | None = None
) -> DerivedRange:
    """Derives a range of the log; changes nothing. `only`: derives these queues, with all their runs, and no keys.

    Raises BadStore if this host does not see the log.
    """

    def begin(topic: str, queue_id: int) -> int:
        """Returns the log position from which on a queue's records get units."""
        selected = task.selects(topic, queue_id) if only is None else (topic, queue_id) in only
        return task.deleted.get(topic, 0) if selected and is_readable_queue(topic, queue_id) else _NEVER

    with_keys, max_runs = (task.index is not None, _MAX_RUNS) if only is None else (False, NO_LIMIT)
    builder = kernels.RangeBuilder(
        kernels.TopicTable(), task.delay_levels, with_keys, begin, max_queue_offset(0), max_runs
    )
    path = Path(task.log.folder, file_name(piece.base))
    with contextlib.closing(_open_log(files, path, task.log.file_size)) as log:
        scan = scan_log_range(
            log.view,
            piece.base,
            piece.start,
            piece.stop,
            resync=piece.resync,
            overrun=piece.overrun,
            take=builder.take,
        )
    keys, parts = builder.key_table(), builder.queues()
    note = RangeNote(
        piece.number,
        scan,
        builder.records,
        len(keys) // KEY.itemsize,
        [(offset, size) for offset, size, topic in builder.rolled_back if is_placeholder(topic, size)],
        [runs_of(part) for part in parts],
    )
    return DerivedRange(note, parts, keys)


def runs_of(part: kernels.QueuePart) -> QueueRuns:
    topic, queue_id, runs, _ = part
    return QueueRuns(topic, queue_id, [CoveredRun(*run) for run in runs], not runs)


def store_units(files: Files, folder: Path, file_size: int, part: kernels.QueuePart) -> None:
    """Writes the units of a queue into its files below `folder`. Raises StoreFailed."""
    topic, queue_id, runs, units = part
    for run in runs:
        size = (run[1] - run[0]) * UNIT_SIZE
        _write_units(files, path_below(folder, topic, queue_id), file_size, run[0] * UNIT_SIZE, units[:size])
        units = units[size:]


def _write_units(files: Files, folder: Path, file_size: int, position: int, left: memoryview) -> None:
    while left:
        base = position - position % file_size
        count = min(base + file_size - position, len(left))
        with contextlib.closing(open_sparse(files, folder / file_name(base), file_size)) as file:
            file.write(position - base, left[:count])
        position, left = position + count, left[count:]


def open_sparse(files: Files, path: Path, size: int) -> FileMap:
    """Opens a file for `FileMap.write`. Creates it if no other process has done so. Raises StoreFailed."""
    if not files.exists(path):
        files.make_folder(path.parent)
        try:
            files.create_sparse(path, size, synced=False)  # synced when it is completed
        except StoreFailed:
            if not files.exists(path):
                raise
    return files.open_map(path)


# -- keys ---------------------------------------------------------------------------------------------------------

_AT_ONCE: Final = 1 << 15


def write_keys(files: Files, path: Path, table: memoryview) -> None:
    """Writes the key file of a range, or no file if there are no keys. Raises StoreFailed."""
    if table:
        files.write_unsynced(path, table)


def read_keys(files: Files, path: Path, first: int, stop: int) -> Iterator[Keys]:
    """Yields copies of the keys with the numbers first … stop - 1."""
    with contextlib.closing(files.open_map(path)) as file:
        for start in range(first, stop, _AT_ONCE):
            yield key_columns(file.view, start, min(stop - start, _AT_ONCE))


# -- building -----------------------------------------------------------------------------------------------------


class RangeNote(msgspec.Struct):
    """The records, keys and damage of a range. It is on disk as `range-*.json`, so its names in JSON must stay."""

    number: int
    scan: LogScan = msgspec.field(name="survey")
    records: int
    keys: int
    placeholders: list[tuple[int, int]]
    """Offset and size of each placeholder."""
    queues: list[QueueRuns]


def build_range(plan: RebuildPlan, files: Files, dry_run: bool, piece: RebuildRange) -> bytes:
    """Builds a range; returns its note as JSON. A dry run writes nothing.

    Raises BadStore if this host does not see the store, StoreFailed if the disk fails.
    """
    if not dry_run:
        plan.check_visible(files)
    note, parts, keys = derive_range(plan.task, files, piece)
    if not dry_run:
        for part in parts:
            store_units(files, plan.queues, plan.task.queue_file_size, part)
        write_keys(files, plan.keys_of(piece.number), keys)
        files.write_unsynced(plan.note_of(piece.number), checksummed(note))
    return json.dumps(msgspec.to_builtins(note)).encode()


def decode_note(data: bytes) -> RangeNote:
    return msgspec.convert(json.loads(data), prepared(RangeNote))


def read_note(plan: RebuildPlan, files: Files, piece: RebuildRange) -> RangeNote | None:
    """Returns the note of a range; None if the range was not completely built."""
    note = read_checksummed(files, plan.note_of(piece.number), RangeNote)
    if note is None or not note.keys:
        return note
    keys = plan.keys_of(piece.number)
    return note if files.exists(keys) and files.size(keys) == note.keys * KEY.itemsize else None


def _open_log(files: Files, path: Path, size: int) -> FileMap:
    """Maps a log file privately, so that it cannot be changed."""
    try:
        log = (files if files.read_only else OverlayFiles()).open_map(path)
    except FileNotFoundError:
        raise BadStore(
            f"the host {socket.gethostname()} does not see this file; all hosts of the cluster must see the store "
            "under one path",
            path=path,
        ) from None
    if len(log) != size:
        log.close()
        raise BadStore(
            "the file's size has changed; run the rebuild again when no process writes to it",
            path=path,
            expected=f"{size} bytes",
            found=f"{len(log)} bytes",
        )
    return log


# -- combining ----------------------------------------------------------------------------------------------------


class GapFill(msgspec.Struct, frozen=True):
    """Queue offsets [first, end) without messages in the log, and the unit that each gets."""

    first: int
    end: int
    unit: str
    """The bytes of the unit, in hexadecimal."""


class QueuePlan(msgspec.Struct):
    """The content of a complete queue: runs of records, and units for the gaps between them."""

    topic: str
    queue_id: int
    begin: int
    """The queue offset at which the queue's first file begins."""
    records: list[CoveredRun]
    fills: list[GapFill]

    @property
    def end(self) -> int:
        return max([each.end for each in self.records[-1:]] + [each.end for each in self.fills[-1:]])

    @property
    def units(self) -> int:
        return self.end - self.begin


class RangeTotals(msgspec.Struct):
    """All ranges combined: the log's bounds, its damage, and the runs of each queue."""

    begin: int
    end: int
    """Physical offset after the last valid record or filler."""
    records: int = 0
    damage: list[DamagedRange] = []
    placeholders: list[tuple[int, int]] = []
    queues: dict[QueueName, list[CoveredRun]] = {}
    in_log_order: set[QueueName] = set()
    """The queues whose offsets go back, which must be derived in log order."""
    hidden: set[int] = set()
    """The numbers of the ranges that lie in a filler: their records were truncated, and a walk never reaches them."""
    keys: list[tuple[int, int]] = []
    """The number and the key count of each range that has keys."""
    fits: bool = True
    """Whether each range began where the previous one ended."""
    is_sound: bool = False
    """Whether there is no damage and no torn tail, as in `LogScan`."""

    def queue_plans(self, queue_file_size: int) -> dict[QueueName, QueuePlan]:
        """Returns the plans of all queues."""
        placeholders = Placeholders()
        placeholders.log_is_whole = self.begin == 0
        placeholders.add(self.placeholders)
        return {
            name: _queue_plan(name, runs, queue_file_size // UNIT_SIZE, placeholders)
            for name, runs in sorted(self.queues.items())
        }


def combine_notes(plan: RebuildPlan, notes: Iterable[RangeNote]) -> RangeTotals:
    """Combines the notes of all ranges. `notes` must be in the order of `plan.ranges`."""
    log = plan.task.log
    totals = RangeTotals(log.begin, log.begin)
    damage: list[DamagedFileRange] = []
    suspects: list[SuspectBytes] = []
    file, reached, has_filler = -1, -1, False
    for piece, note in zip(plan.ranges, notes, strict=True):
        if piece.base != file:
            file, reached, has_filler = piece.base, -1, False
        scan = note.scan
        if has_filler:
            totals.hidden.add(piece.number)
            totals.in_log_order.update((each.topic, each.queue_id) for each in note.queues)
            continue
        if scan.started >= 0:
            totals.fits = totals.fits and reached in (-1, scan.started)
        if scan.has_valid:
            damage += [
                DamagedFileRange(each.file, each.begin, each.end - each.begin, each.reason, 0) for each in suspects
            ]
            damage += scan.damage
            suspects = list(scan.suspects)
            totals.end = scan.end
        else:
            suspects += scan.suspects
        if scan.started >= 0 or not piece.resync:
            reached = scan.reached
        has_filler = scan.has_filler
        _add_records(totals, note)
    totals.damage = [DamagedRange(each.physical_offset, each.size, each.reason) for each in merged(damage)]
    totals.is_sound = not damage and is_unwritten(suspects)
    return totals


def _add_records(totals: RangeTotals, note: RangeNote) -> None:
    totals.records += note.records
    totals.placeholders += note.placeholders
    if note.keys:
        totals.keys.append((note.number, note.keys))
    for queue in note.queues:
        name = queue.topic, queue.queue_id
        if queue.too_many:
            totals.in_log_order.add(name)
        cover = QueueCover(totals.queues.setdefault(name, []))
        for run in queue.runs:
            if cover.records and run.first < cover.records[-1].end:
                totals.in_log_order.add(name)
            cover.add(run.first, run.end - run.first, run.physical_first, run.physical_end, matched=True)


def _queue_plan(
    name: QueueName, records: list[CoveredRun], units_in_file: int, placeholders: Placeholders
) -> QueuePlan:
    first = records[0].first
    begin, fills, end, physical_end = 0, [], 0, -1
    if first and placeholders.unit_for_gap(-1, records[0].physical_first) == PRE_BLANK:
        begin = end = first - first % units_in_file  # retention deleted the earlier records
    for each in records:
        if each.first > end:
            unit = placeholders.unit_for_gap(physical_end, each.physical_first)
            fills.append(GapFill(end, each.first, unit.hex()))
        end, physical_end = each.end, each.physical_end
    return QueuePlan(*name, begin, records, fills)


def find_restarts(covers: Mapping[QueueName, QueueCover], queues: QueueFolder) -> dict[QueueName, int]:
    """Returns the queues that restart at offset 0 within the log, each with the physical offset of the restart.

    A queue restarts if its topic was deleted and created again. The record that the queue's first unit points to is the
    restart. If the queue does not exist, the last record with queue offset 0 is the restart if a record with queue
    offset 1 follows it, and queue offsets do not go back after it.
    """
    restarts: dict[QueueName, int] = {}
    for name, cover in covers.items():
        zeros = [later for _, later in pairwise(cover.records) if later.first == 0]
        if not zeros:
            continue
        with queues.open(*name) as queue:
            first = None if queue is None else queue.unit(0)[0]
        confirmed = [each.physical_first for each in zeros if each.physical_first == first]
        newest = cover.records[cover.records.index(zeros[-1]) :]
        in_order = all(before.end <= after.first for before, after in pairwise(newest))
        if confirmed:
            restarts[name] = confirmed[-1]
        elif first is None and zeros[-1].end > 1 and in_order:
            restarts[name] = zeros[-1].physical_first
    return restarts
