"""The units of one range, by queue, on their way into the staged queue files.

A unit's file and its place in it follow from its own queue offset, so ranges need not know of each other and nothing is
sorted. Files are made as they are needed, sparse, by whichever range comes first; several processes may store into one,
each its own units. A range that is built again stores the same bytes. A kill leaves a file with holes, which nobody
looks into before all ranges are done.


The keys of a range, in log order: 20 bytes each, in a file of the staging folder.

    OFFSET  SIZE  DESCRIPTION
    0       4     hash of the key
    4       8     physical offset of its record
    12      8     store time of its record

Little-endian, and gone when the rebuild is. Not checksummed: whoever reads checks that the offsets lie in the range, in
order, which zeros that a crash left in place of bytes do not.


Builds one range: walks it, stores its units into the staged queues and its keys into a file, and notes what it saw.

Every record is checked as a repair checks it, CRC included. The note is written last, so a range whose note is there
was built to its end. Nothing is synced: what a power cut took of notes, keys and units is found out when a later run
looks for them and when queues and index are finished. Any number of ranges may be built at once, by any process; one
that is built twice comes out the same.


What the notes of all ranges add up to: where the log ends, what is damaged, each queue from its first to its last.

Pure. In a sound log the runs of a queue follow each other from range to range; gaps are told by the places left between
them. A queue whose offsets ever go back (its topic was deleted and made again, a header is damaged) is decided by the
order of the log, and is left to who builds in that order. So is everything, should ranges not fit together.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock.errors import BadStore, StoreFailed
from penstock.format import kernels
from penstock.format.placeholder import is_placeholder
from penstock.format.queue_unit import PRE_BLANK, UNIT_SIZE
from penstock.format.topics import is_readable_topic
from penstock.store.atomic_files import checksummed, read_checksummed
from penstock.store.audit.cover import CoveredRun, QueueCover, QueueName
from penstock.store.consume_queue import Placeholders
from penstock.store.damage import DamagedRange
from penstock.store.io import FileMap, Files
from penstock.store.mapped_file_queue import file_name
from penstock.store.overlay import OverlayFiles
from penstock.store.rebuild.plan import RebuildPlan, RebuildRange, RebuildTask
from penstock.store.records import max_queue_offset
from penstock.store.repair.survey import DamagedPlace, Survey, Unsure, is_unwritten, joined, survey_range

_MAX_RUNS: Final = 64
_NEVER: Final = 2**63 - 1


class QueueRuns(msgspec.Struct):
    """The records of one queue in a range, in log order, as runs of queue offsets that follow each other."""

    topic: str
    queue_id: int
    runs: list[CoveredRun] = []
    too_many: bool = False
    """Whether there were so many that they are not told: the queue must be built in log order."""


def since(task: RebuildTask, topic: str, queue_id: int) -> int:
    """From which position on the records of a queue get units; behind every log if they get none."""
    if not task.selects(topic, queue_id) or queue_id < 0 or not is_readable_topic(topic):
        return _NEVER
    return task.deleted.get(topic, 0)


def unit_builder(task: RebuildTask) -> kernels.RangeBuilder:
    """What makes units and keys for a task while it walks the log."""
    slack = max_queue_offset(0)
    asked = partial(since, task)
    return kernels.RangeBuilder(
        kernels.TopicTable(), task.delay_levels, task.index is not None, asked, slack, _MAX_RUNS
    )


def runs_of(part: kernels.QueuePart) -> QueueRuns:
    topic, queue_id, runs, _ = part
    return QueueRuns(topic, queue_id, [CoveredRun(*run) for run in runs], not runs)


def place_units(files: Files, folder: Path, file_size: int, part: kernels.QueuePart) -> None:
    """Stores the units of a queue into its files below a folder. Raises StoreFailed."""
    topic, queue_id, runs, units = part
    for run in runs:
        size = (run[1] - run[0]) * UNIT_SIZE
        _store(files, folder / topic / str(queue_id), file_size, run[0] * UNIT_SIZE, units[:size])
        units = units[size:]


def _store(files: Files, folder: Path, file_size: int, position: int, left: memoryview) -> None:
    while left:
        base = position - position % file_size
        count = min(base + file_size - position, len(left))
        with contextlib.closing(open_sparse(files, folder / file_name(base), file_size)) as file:
            file.write(position - base, left[:count])
        position, left = position + count, left[count:]


def open_sparse(files: Files, path: Path, size: int) -> FileMap:
    """A file, made if it is not there, perhaps by others meanwhile. Only to `write` into. Raises StoreFailed."""
    if not files.exists(path):
        files.make_folder(path.parent)
        try:
            files.create_sparse(path, size, synced=False)  # it is when it is finished
        except StoreFailed:
            if not files.exists(path):
                raise
    return files.open_map(path)


KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
_AT_ONCE: Final = 1 << 15


class Keys(NamedTuple):
    """Some keys, by column."""

    hashes: kernels.Ints
    offsets: kernels.Longs
    times: kernels.Longs


def write_keys(files: Files, path: Path, table: memoryview) -> None:
    """No file is made for none. Raises StoreFailed."""
    if table:
        files.write_unsynced(path, table)


def read_keys(files: Files, path: Path, first: int, stop: int) -> Iterator[Keys]:
    """The keys with the numbers `first` to `stop`, as copies."""
    with contextlib.closing(files.open_map(path)) as file:
        for start in range(first, stop, _AT_ONCE):
            table = np.frombuffer(file.view, KEY, min(stop - start, _AT_ONCE), start * KEY.itemsize)
            hashes, offsets, times = (np.ascontiguousarray(table[name]) for name in ("hash", "offset", "time"))
            yield Keys(hashes, offsets, times)


class RangeNote(msgspec.Struct):
    """What a range holds."""

    number: int
    survey: Survey
    records: int
    keys: int
    placeholders: list[tuple[int, int]]
    """Offset and size of each."""
    queues: list[QueueRuns]


def build_range(plan: RebuildPlan, files: Files, dry_run: bool, piece: RebuildRange) -> bytes:
    """The note of a range as JSON, which it has in the staging folder too, unless it is a dry run.

    Raises BadStore if this host does not see the store, StoreFailed if the disk refuses.
    """
    task = plan.task
    if not dry_run:
        plan.check_seen(files)
    builder = unit_builder(task)
    with contextlib.closing(_open_log(Path(task.log.folder, file_name(piece.base)), task.log.file_size)) as log:
        found = survey_range(
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
        found,
        builder.records,
        len(keys) // KEY.itemsize,
        [(offset, size) for offset, size, topic in builder.rolled_back if is_placeholder(topic, size)],
        [runs_of(part) for part in parts],
    )
    if not dry_run:
        for part in parts:
            place_units(files, plan.queues, task.queue_file_size, part)
        write_keys(files, plan.keys_of(piece.number), keys)
        files.write_unsynced(plan.note_of(piece.number), checksummed(note))
    return json.dumps(msgspec.to_builtins(note)).encode()


def decode_note(data: bytes) -> RangeNote:
    return msgspec.convert(json.loads(data), RangeNote)


def noted(plan: RebuildPlan, files: Files, piece: RebuildRange) -> RangeNote | None:
    """The note of a range that was built to its end, None if there is none."""
    found = read_checksummed(files, plan.note_of(piece.number), RangeNote)
    if found is None or not found.keys:
        return found
    keys = plan.keys_of(piece.number)
    return found if files.exists(keys) and files.size(keys) == found.keys * KEY.itemsize else None


def _open_log(path: Path, size: int) -> FileMap:
    """A file of the log, mapped privately: whatever happens, it is only read."""
    try:
        made = OverlayFiles().open_map(path)
    except FileNotFoundError:
        raise BadStore(
            f"the host {socket.gethostname()} does not see this file; all hosts of the cluster must see the store "
            "under one path",
            path=path,
        ) from None
    if len(made) != size:
        made.close()
        raise BadStore(
            "the file has changed its size; run it again when nobody writes here",
            path=path,
            expected=f"{size} bytes",
            found=f"{len(made)} bytes",
        )
    return made


class Fill(msgspec.Struct, frozen=True):
    """Places of a queue, from `first` to `end`, whose messages are not in the log, and the unit that keeps them."""

    first: int
    end: int
    unit: str
    """In hexadecimal."""


class WholeQueue(msgspec.Struct):
    """A queue as it is to come out."""

    topic: str
    queue_id: int
    begin: int
    """The queue offset that its first file begins with."""
    records: list[CoveredRun]
    fills: list[Fill]

    @property
    def end(self) -> int:
        return self.records[-1].end

    @property
    def units(self) -> int:
        return self.end - self.begin


class Sums(msgspec.Struct):
    """See the module."""

    begin: int
    end: int
    """Behind the last valid record."""
    records: int = 0
    damage: list[DamagedRange] = []
    placeholders: list[tuple[int, int]] = []
    queues: dict[QueueName, QueueCover] = {}
    in_log_order: set[QueueName] = set()
    """The queues that must be built in the order of the log."""
    keys: list[tuple[int, int]] = []
    """Numbers of ranges, and how many keys each has."""
    fits: bool = True
    """Whether each range began where the one before it ended."""
    is_sound: bool = False
    """As of a survey."""

    def whole_queues(self, queue_file_size: int) -> list[WholeQueue]:
        """Those that the ranges have built."""
        known = Placeholders()
        known.log_is_whole = self.begin == 0
        known.add(self.placeholders)
        return [
            _whole(name, cover.records, queue_file_size // UNIT_SIZE, known)
            for name, cover in sorted(self.queues.items())
            if name not in self.in_log_order
        ]


def add_up(plan: RebuildPlan, notes: Iterable[RangeNote]) -> Sums:
    """`notes` are those of all ranges, in order."""
    log = plan.task.log
    sums = Sums(log.begin, log.begin)
    found: list[DamagedPlace] = []
    unsure: list[Unsure] = []
    file, reached, has_filler = -1, -1, False
    for piece, note in zip(plan.ranges, notes, strict=True):
        if piece.base != file:
            file, reached, has_filler = piece.base, -1, False
        survey = note.survey
        if has_filler:  # what lies in a filler was cut off once: nobody who walks comes there
            sums.in_log_order.update((each.topic, each.queue_id) for each in note.queues)
            continue
        if survey.started >= 0:
            sums.fits = sums.fits and reached in (-1, survey.started)
        if survey.has_valid:
            found += [DamagedPlace(each.file, each.begin, each.end - each.begin, each.reason, 0) for each in unsure]
            found += survey.found
            unsure = list(survey.unsure)
            sums.end = survey.end
        else:
            unsure += survey.unsure
        if survey.started >= 0 or not piece.resync:
            reached = survey.reached
        has_filler = survey.has_filler
        _add_records(sums, note)
    sums.damage = [DamagedRange(each.physical_offset, each.size, each.reason) for each in joined(found)]
    sums.is_sound = not found and is_unwritten(unsure)
    return sums


def _add_records(sums: Sums, note: RangeNote) -> None:
    sums.records += note.records
    sums.placeholders += note.placeholders
    if note.keys:
        sums.keys.append((note.number, note.keys))
    for queue in note.queues:
        name = queue.topic, queue.queue_id
        if queue.too_many:
            sums.in_log_order.add(name)
        cover = sums.queues.setdefault(name, QueueCover())
        for run in queue.runs:
            if cover.records and run.first < cover.records[-1].end:
                sums.in_log_order.add(name)
            cover.add(run.first, run.end - run.first, run.physical_first, run.physical_end, matched=True)


def _whole(name: QueueName, records: list[CoveredRun], units_in_file: int, placeholders: Placeholders) -> WholeQueue:
    first = records[0].first
    begin, fills, end, physical_end = 0, [], 0, -1
    if first and placeholders.unit_for_gap(-1, records[0].physical_first) == PRE_BLANK:
        begin = end = first - first % units_in_file  # retention took what was before
    for each in records:
        if each.first > end:
            unit = placeholders.unit_for_gap(physical_end, each.physical_first)
            fills.append(Fill(end, each.first, unit.hex()))
        end, physical_end = each.end, each.physical_end
    return WholeQueue(*name, begin, records, fills)
