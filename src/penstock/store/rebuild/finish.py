"""Builds one index file from the keys of the ranges that hold its items: one task a file, any number of them at once.

Items are numbered by counting, so which keys go into which file is known before any is made, and so is what a file
begins with: the range of the one before it. A file gets its place when it is whole, so a second attempt at the same
task, as Spark may make one, takes nothing away from the first. A crash leaves a file that nobody looks into.


Finishes staged queues whose units all lie in their places: keeps the places between, checks, allocates and syncs.

Each file is looked through once: every unit must be there, and point behind the one before it; the first and the last
of each stretch must point where the log's walk said. Whatever else an earlier run left in the folder goes. A crash
leaves the staging folder as it was or a part of it finished; doing it again does no harm.


From ranges that are built to queues and index that are in place.

Queues and index files are finished at once, by whoever runs the ranges. Then comes what needs the order of the log or
the old queues, in this process: queues whose offsets go back are dispatched as a start would, and places at the old
queues' ends whose messages are lost stay kept. Nothing old is touched before `put_in_place`.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from penstock.errors import disk_refused
from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry, IndexHeader
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, copy_units
from penstock.store.atomic_files import remove_all
from penstock.store.audit.cover import CoveredRun, QueueName
from penstock.store.index import IndexFile, header_after
from penstock.store.io import FileMap, Files, zero_from
from penstock.store.mapped_file_queue import MappedFileQueue, file_name
from penstock.store.overlay import OverlayFiles
from penstock.store.readonly.view import FilesView
from penstock.store.rebuild.plan import RebuildPlan, RebuildSource
from penstock.store.rebuild.ranges import Keys, Sums, WholeQueue, open_sparse, read_keys
from penstock.store.repair.compare import OldQueues
from penstock.store.repair.derived import Derived, Renewed, what_is_left
from penstock.store.repair.report import Progress, Rebuilt
from penstock.store.repair.staging import Staging, StagingPlan
from penstock.store.repair.survey import Sequences, restarts, survey


class KeySpan(msgspec.Struct, frozen=True):
    """Keys of one range, by their numbers in its file."""

    number: int
    first: int
    stop: int


class IndexFilePlan(msgspec.Struct, frozen=True):
    """One index file: its name, its keys, and the key before them, if there is one."""

    name: str
    spans: list[KeySpan]
    before: KeySpan | None

    @property
    def items(self) -> int:
        return sum(span.stop - span.first for span in self.spans)


def cut_keys(keys: list[tuple[int, int]], geometry: IndexGeometry, now_ms: int) -> list[IndexFilePlan]:
    """The files of an index; `keys` are the numbers of ranges, and how many each has, in order.

    Files are named by local time to the millisecond, each behind the one before.
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
    """Where something is not as it should be; empty if all is well. Raises BadStore, StoreFailed."""
    plan.check_seen(files)
    geometry, path = plan.task.geometry, plan.folder / f"{part.name}.{secrets.token_hex(4)}"
    items, end = bytearray(), -1
    with contextlib.closing(IndexFile(files.create_map(path, geometry.file_size), geometry)) as table:
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
            files.rename(path, plan.index / part.name)
            files.sync_folder(plan.index)
        except OSError as error:
            raise disk_refused("cannot finish an index file", path, 0, error) from error
    return ""


def _in_order(plan: RebuildPlan, number: int, keys: Keys, end: int) -> bool:
    """Whether keys are what their range wrote: a crash may have left zeros in their place."""
    piece, offsets = plan.ranges[number], keys.offsets
    begin = piece.base + piece.start
    if begin == 0 and not (offsets[0] or keys.hashes[0] or keys.times[0]):
        return False  # where a log begins at 0, zeros are in order
    return bool(
        int(offsets[0]) >= max(end, begin)
        and int(offsets[-1]) < piece.base + plan.task.log.file_size
        and (offsets[1:] >= offsets[:-1]).all()
        and int(keys.hashes.min()) >= 0
    )


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


def finish_queues(plan: RebuildPlan, files: Files, group: QueueGroup) -> str:
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
    def __init__(self, plan: RebuildPlan, files: Files, log: FilesView, queue: WholeQueue) -> None:
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


def _end_of(file: FileMap, first: int, stop: int, stretch: CoveredRun, end: int) -> int | None:
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


_ASKED_FOR: Final = "it was asked for"
_GROUPS: Final = 32


class Finish:
    """One rebuild, whose ranges are all built."""

    def __init__(
        self,
        source: RebuildSource,
        plan: RebuildPlan,
        sums: Sums,
        run: Callable[[Callable[[Any], bytes], Sequence[Any]], list[bytes]],
        progress: Progress,
    ) -> None:
        self._source = source
        self._io = source.files
        self._plan = plan
        self._sums = sums
        self._run = run
        self._progress = progress
        self._whole = sums.whole_queues(plan.task.queue_file_size) if sums.fits else []
        self._units = {(queue.topic, queue.queue_id): queue.units for queue in self._whole}
        self.in_log_order: set[QueueName] = sums.in_log_order if sums.fits else set(sums.queues) | sums.in_log_order
        """Queues that are built in the order of the log."""
        self._index_in_order = plan.task.index is not None and not sums.fits
        self._parts: list[IndexFilePlan] = []
        if plan.task.index is not None and sums.fits:
            self._parts = cut_keys(sums.keys, plan.task.geometry, source.clock())
        self._items = sum(part.items for part in self._parts)

    def rehearse(self) -> list[Rebuilt]:
        """What would be put in place."""
        if self.in_log_order or self._index_in_order:
            self._build_in_log_order()
        queues, index = self._renewed()
        found = [Rebuilt(f"{name[0]} queue {name[1]}", *queues[name]) for name in sorted(queues)]
        return found if index is None else [*found, Rebuilt("index", *index)]

    def build(self) -> str:
        """Where something that was built is not as it should be; empty if all is well. Raises BadStore, StoreFailed."""
        remove_all(self._io, self._plan.index)
        work = functools.partial(_finish, self._plan, self._io)
        told = self._run(work, [*self._parts, *grouped(self._whole, _GROUPS)])
        bad = next((each.decode() for each in told if each), "")
        if bad:
            return bad
        for topic, queue_id in self._left_in_staging():
            remove_all(self._io, self._plan.queues / topic / str(queue_id))
        if self.in_log_order or self._index_in_order or self._sums.damage or self._sums.placeholders:
            self._build_in_log_order()
        return ""

    def _left_in_staging(self) -> list[QueueName]:
        """Folders of queues that no range alone can build."""
        files, size = self._io, self._plan.task.queue_file_size
        there = OldQueues(files, self._source.target, size, folder=self._plan.queues).names()
        return [name for name in there if name not in self._units]

    def _build_in_log_order(self) -> None:
        task, source = self._plan.task, self._source

        def builds(topic: str, queue_id: int) -> bool:
            return (topic, queue_id) in self.in_log_order

        plan = StagingPlan(
            log_end=self._sums.end,
            selects=builds if self._io.read_only else task.selects,
            builds=builds,
            restarts=self._restarts(),
            damage=self._sums.damage,
            with_index=self._index_in_order,
            source=source.layout,
        )
        with Staging(self._io, source.target, source.settings, source.clock, plan) as staging:
            if self.in_log_order or self._index_in_order:
                staging.build(self._progress)
            if not self._io.read_only:
                staging.load(self._units, self._sums.placeholders)
            staging.keep_ends()
            staging.sync()
            for queue in staging.queues:
                first = max(queue.files.min_offset, 0) // UNIT_SIZE
                self._units[queue.topic, queue.queue_id] = queue.max_offset - first
            if staging.index is not None:
                self._items = sum(file.count - 1 for file in staging.index.files)

    def _restarts(self) -> dict[QueueName, int]:
        """Where queues begin anew; only asked if there are some whose offsets go back."""
        if not self.in_log_order:
            return {}
        task, sequences = self._plan.task, Sequences()
        log = MappedFileQueue(OverlayFiles(), self._source.layout.commit_log, task.log.file_size)
        log.load()
        try:
            survey(log.files, topics=sequences.topics, watch=sequences.watch, progress=self._progress)
        finally:
            log.close()
        return restarts(sequences, OldQueues(self._io, self._source.layout, task.queue_file_size))

    def put_in_place(self) -> list[Rebuilt]:
        """Swaps everything. Raises BadStore or StoreFailed; then the old files are in force, or a start ends it."""
        queues, index = self._renewed()
        source, place = self._source, self._source.place
        is_sound = place is not None and place.closed_cleanly and not self._sums.damage and not self.in_log_order
        if place is not None:
            place.mark_unclean()
        derived = Derived(self._io, source.target, source.settings, source.clock, source.quarantine)
        rebuilt = derived.put_in_place(queues, index)
        if place is not None and is_sound:  # every record was checked just now: a start need not do it again
            place.mark_clean()
        return rebuilt

    def _renewed(self) -> tuple[dict[QueueName, Renewed], Renewed | None]:
        task, source = self._plan.task, self._source
        queues = {name: Renewed(_ASKED_FOR, units) for name, units in self._units.items()}
        if source.place is not None:
            old = OldQueues(self._io, source.layout, task.queue_file_size, task.selects)
            left = what_is_left(old, queues, self._sums.begin)
            queues |= {name: Renewed(reason, 0) for name, reason in left.items()}
        return queues, None if task.index is None else Renewed(_ASKED_FOR, self._items)


def _finish(plan: RebuildPlan, files: Files, piece: IndexFilePlan | QueueGroup) -> bytes:
    if isinstance(piece, IndexFilePlan):
        return build_index_file(plan, files, piece).encode()
    return finish_queues(plan, files, piece).encode()
