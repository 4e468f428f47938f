"""Showing a store that another process is writing to: making one moment of it out of files that keep changing.

A view keeps its own changes in memory, but pages that it has not changed still show what the writer does to them. The
log needs no help, because nothing before its end ever changes; but what looked broken while it was walked may have been
on its way, and has to be judged again. The index is changed in place: what its counts did not cover when it was looked
at is taken out of the slots, and slots and header are copied so that they stay as they are.


How far a long walk over the log has come: `penstock/walked.json`.

A start that is killed before it is done, as by an impatient health check, would walk the same files again at the next
one, and might never get further. So every two seconds or so a walk notes up to which file it has come and what it
found; the next start goes on there. The note goes when a start is done. It says nothing of the file that was being
walked, which is walked again, nor of what lies behind it.


The log's part of a start: where the walk begins and where the log ends, what is damaged, and the cut behind the end.

Damage that was noted by an earlier start is looked at again, wherever it lies, and is forgotten once valid records
stand there. The note is written before anything else is changed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.checkpoint import Checkpoint
from penstock.format.constants import MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from penstock.format.index_layout import HEADER_SIZE, SLOT_SIZE
from penstock.format.rows import Reason
from penstock.format.scan import is_unpublished
from penstock.store.atomic_files import read_checksummed, write_checksummed
from penstock.store.damage import MISSING, DamagedRange, Quarantine, known_damage, merged_by_file, write_damage
from penstock.store.dispatch_state import DispatchState
from penstock.store.engine import Engine
from penstock.store.index import IndexFile
from penstock.store.io import Files
from penstock.store.log_walk import Walked, still_damaged, torn_records, walk_files
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import (
    MAX_MISSING_IN_A_ROW,
    MappedFileQueue,
    create_missing_file,
    file_name,
    is_missing_file,
)
from penstock.store.records import RecordReader
from penstock.store.recovery.report import WALK, Meter, RecoveryReport, Tell
from penstock.store.sink.journal import whole_batches

_MAX_UNPUBLISHED = 64 << 20
"""No record is larger; a range that is was damaged, or stands in for a file that is missing."""


def settle_log(log: MappedFileQueue, end: int, damage: list[DamagedRange]) -> tuple[int, list[DamagedRange]]:
    """The log's end and its damage, as they are by now: what has been written meanwhile is no damage.

    A batch whose first record is not published yet hides all of its records: there the log ends.
    """
    real: list[DamagedRange] = []
    for found in damage:
        file = log.find(found.physical_offset)
        assert file is not None, "damage lies in a file of the log"
        data, base, at = file.map.view, file.from_offset, found.physical_offset - file.from_offset
        reason = kernels.check_record(data, at, base, True)
        if reason in (Reason.STOP, Reason.BLANK):
            continue
        may_be_on_its_way = reason == Reason.UNWRITTEN and found.size <= _MAX_UNPUBLISHED
        if may_be_on_its_way and is_unpublished(data, base, at, at + found.size):
            return found.physical_offset, real
        real.append(found)
    return end, real


def freeze_index(file: IndexFile) -> None:
    """Makes an index file in a view stay as it is: with the items that its header counted when this began."""
    header, count, slots = file.header, file.count, file.geometry.slots
    view = file.map.view[HEADER_SIZE : HEADER_SIZE + SLOT_SIZE * slots]
    newest = np.frombuffer(bytes(view), ">i4").copy()
    late = newest >= count
    while late.any():
        for slot in np.flatnonzero(late).tolist():
            number = int(newest[slot])
            previous = file.item(number).previous
            newest[slot] = previous if previous < number else 0
        late = newest >= count
    view[:] = newest.tobytes()
    view.release()
    if count > 1:
        header = msgspec.structs.replace(header, end_physical_offset=file.item(count - 1).physical_offset)
    file.set_header(header)


EVERY_SECONDS = 2.0


class _Document(msgspec.Struct):
    begin: int
    check_crc: bool
    walked: Walked


class WalkNote:
    """The note of one start. A view only reads it."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self._last = time.monotonic()

    def find(self, begin: int, files: Sequence[MappedFile], check_crc: bool) -> Walked | None:
        """What an earlier walk found that began at `begin` or before and came to the start of one of the files."""
        found = read_checksummed(self._io, self._path, _Document)
        if found is None or found.check_crc != check_crc or found.begin > begin:
            return None
        starts = {file.from_offset for file in files[1:]}
        return found.walked if found.walked.reached in starts else None

    def write(self, begin: int, walked: Walked, check_crc: bool) -> None:
        """Notes it if the last time is long enough ago. Raises StoreFailed."""
        if self._io.read_only or walked.unsure or time.monotonic() - self._last < EVERY_SECONDS:
            return
        write_checksummed(self._io, self._path, _Document(begin, check_crc, walked))
        self._last = time.monotonic()

    def remove(self) -> None:
        """The walk is done, and what came of it is on disk."""
        if self._io.exists(self._path):
            self._io.unlink(self._path)


_FILES_AFTER_CLEAN_EXIT = 3
_NOTES_OF_A_KIND = 20


class LogRecovery:
    """Looks at the log, then cuts it."""

    def __init__(
        self,
        engine: Engine,
        records: RecordReader,
        *,
        live: bool,
        begun: int | None = None,
    ) -> None:
        """`begun` is where a batch begins that was pending before anything was looked at."""
        self._io = engine.io
        self._layout = engine.layout
        self._log = engine.log
        self._queue = engine.log.queue
        self._records = records
        self._check_crc = engine.settings.check_crc_on_recover
        self._live = live
        self._begun = begun
        self._walk_note = WalkNote(engine.io, engine.layout.walked)
        self._known: list[DamagedRange] = []
        self._known_is_garbage = False
        self._torn: list[tuple[MappedFile, int]] = []
        """Files with something behind the log's end, and up to where."""
        self.walked_from = 0
        self.end = 0
        self.damage: list[DamagedRange] = []

    # -- looking ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps what is there. Raises BadStore if something is not as it must be."""
        self._shape = self._queue.listing(max_missing=MAX_MISSING_IN_A_ROW)
        self._queue.map_files(self._shape.offsets)

    def look(self, clean: bool, checkpoint: Checkpoint, state: DispatchState | None, tell: Tell) -> None:
        """Walks; changes nothing but what is known in memory. There must be a log."""
        noted = known_damage(self._io, self._layout.damaged)
        self._known, self._known_is_garbage = noted or [], noted is None
        start = 0 if self._known_is_garbage else self._start_file(clean, checkpoint, state)
        walked = self._walk(start, tell)
        if not clean and start and checkpoint.min_timestamp > walked.newest_timestamp:
            start = self._file_of_note(state)  # times that lie ahead of the log vouch for nothing
            walked = self._walk(start, tell)
        while start and walked.end == self._queue.files[start].from_offset:
            start -= 1  # nothing valid so far: the log ends in an earlier file
            walked = self._walk(start, tell)
        self.walked_from = self._queue.files[start].from_offset
        self._log.newest_timestamp = walked.newest_timestamp or self._log.newest_timestamp
        self.end, damage = walked.end, list(walked.damage)
        if self._live:
            self.end, damage = settle_log(self._queue, self.end, damage)
        whole = whole_batches(self._io, self._layout, self.end) if self._io.read_only else self.end
        if self._begun is not None:
            whole = min(whole, self._begun)  # it may have been taken back meanwhile
        is_growing, self.end = self._live or whole < self.end, whole
        stand_ins = [file for file in self._queue.files if is_missing_file(file)]
        damage += [DamagedRange(file.from_offset, file.size, MISSING) for file in stand_ins]
        for known in merged_by_file(self._known, self._queue.file_size):
            damage += still_damaged(self._queue, known)
        self.damage = [
            each for each in merged_by_file(damage, self._queue.file_size) if each.physical_offset < self.end
        ]
        if not is_growing:
            self._find_torn()

    def take_as_known(self, end: int, damage: list[DamagedRange]) -> None:
        """In place of a look, where the log's owner has told what it found: all before `end` is settled."""
        self.walked_from = self.end = end
        self.damage = [each for each in damage if each.physical_offset < end]

    def _start_file(self, clean: bool, checkpoint: Checkpoint, state: DispatchState | None) -> int:
        files = self._queue.files
        if clean:
            return max(0, len(files) - _FILES_AFTER_CLEAN_EXIT)
        safe = checkpoint.min_timestamp
        if not safe:
            return self._file_of_note(state)
        for number in range(len(files) - 1, 0, -1):
            magic = int.from_bytes(files[number].map.view[4:8], "big")
            if magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
                stored = self._records.store_timestamp(files[number].from_offset)
                if 0 < stored <= safe:
                    return number
        return 0

    def _file_of_note(self, state: DispatchState | None) -> int:
        """The file up to which log, queues and index were on disk by the note, where the checkpoint does not tell."""
        file = None if state is None else self._queue.find(min(state.position, state.flushed))
        return 0 if file is None else self._queue.files.index(file)

    def _walk(self, start: int, tell: Tell) -> Walked:
        files = self._queue.files[start:]
        begin = files[0].from_offset
        meter = Meter(tell, WALK, len(files) * self._queue.file_size)
        walked = self._walk_note.find(begin, files, self._check_crc)
        if walked is not None:
            seen = (still_damaged(self._queue, each) for each in walked.damage)  # RocketMQ may have been here meanwhile
            walked = msgspec.structs.replace(walked, damage=tuple(chain.from_iterable(seen)))
            meter.add(walked.reached - begin)
            files = tuple(file for file in files if file.from_offset >= walked.reached)
        for reached in walk_files(files, self._check_crc, meter.add, walked):
            walked = reached
            self._walk_note.write(begin, walked, self._check_crc)
        assert walked is not None, "there is a log"
        return walked

    def _find_torn(self) -> None:
        for file in self._queue.files:
            position = max(self.end - file.from_offset, 0)
            if position < file.size and (used := file.nonzero_end(position)) > position:
                self._torn.append((file, used))

    def _goes_whole(self, file: MappedFile) -> bool:
        first = file is self._queue.first
        return file.from_offset > self.end or (file.from_offset == self.end and not first)

    @property
    def room_needed(self) -> int:
        """Bytes that will be kept aside."""
        return sum(
            self._io.allocated(file.path) if self._goes_whole(file) else file.from_offset + used - self.end
            for file, used in self._torn
        )

    # -- acting ----------------------------------------------------------------------------------------------

    def bring_in_order(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Raises StoreFailed, and can be done again."""
        report.walked_from, report.log_end, report.damage = self.walked_from, self.end, self.damage
        if self._live:
            for file in self._queue.cut(self.end):
                file.shut_down()
            self._say_damage(report, self.damage)
            return
        self._note_damage(quarantine, report)
        for file in self._queue.files:
            if is_missing_file(file) and file.from_offset < self.end:
                create_missing_file(self._io, file)
                report.notes.append(f"{file.path}: the file is missing; zeros stand in for it")
        self._clear_torn(quarantine, report)
        self._cut(quarantine, report)
        self._queue.remove_unfinished(self._shape)
        self._say_damage(report, self.damage)

    def _note_damage(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Before anything is changed: a stand-in whose range is not noted would look like a hole of its own."""
        path = self._layout.damaged
        if self._known_is_garbage:
            kept = quarantine.move_in(path)
            report.kept_aside.append(str(kept))
            report.notes.append(f"{path} could not be read and was moved to {kept}: the whole log was walked")
        report.repaired = [
            known
            for known in self._known
            if self._log.min_offset <= known.physical_offset < self.end
            and not any(each.physical_offset < known.end and known.physical_offset < each.end for each in self.damage)
        ]
        if self.damage != self._known and not self._io.read_only:
            write_damage(self._io, path, self.damage)

    def add_damage(self, found: list[DamagedRange], report: RecoveryReport) -> None:
        """Notes what dispatch met in files that were not walked. Raises StoreFailed."""
        before = self.damage
        report.damage = self.damage = merged_by_file([*before, *found], self._queue.file_size)
        if self.damage != before:
            self._say_damage(report, [each for each in self.damage if each not in before])
            if not self._io.read_only:
                write_damage(self._io, self._layout.damaged, self.damage)

    def _clear_torn(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Torn records with valid ones behind them go as a torn tail does: whoever walks the log would take them."""
        for each in self.damage:
            file = self._queue.find(each.physical_offset)
            if file is None or is_missing_file(file) or each in self._known:
                continue
            for begin, end in torn_records(file, each):
                with file.map.view[begin:end] as record:
                    kept = quarantine.keep(f"commitlog-{file_name(file.from_offset + begin)}", record)
                    record[:] = bytes(end - begin)
                report.torn_bytes += end - begin
                report.kept_aside.append(str(kept))

    def _cut(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Keeps torn bytes aside, then zeroes them; files behind the end go, to the quarantine unless all zero."""
        torn = {file.from_offset: used for file, used in self._torn}
        for file, used in self._torn:
            offset = max(self.end, file.from_offset)
            report.torn_bytes += file.from_offset + used - offset
            if not self._goes_whole(file):
                with file.map.view[offset - file.from_offset : used] as rest:
                    kept = quarantine.keep(f"commitlog-{file_name(offset)}", rest)
                self._say_torn(file, offset, used, str(kept), report)
        for file in self._queue.cut(self.end):
            if file.from_offset in torn:
                kept = quarantine.move_in(file.path)
                self._say_torn(file, file.from_offset, torn[file.from_offset], str(kept), report)
            file.shut_down()
            self._io.unlink(file.path)
        last = self._queue.last
        if last is not None and last.from_offset in torn:
            last.zero(last.wrote)

    @staticmethod
    def _say_torn(file: MappedFile, offset: int, used: int, kept: str, report: RecoveryReport) -> None:
        report.kept_aside.append(kept)
        report.notes.append(
            f"{file.path}: {file.from_offset + used - offset} bytes at {offset} behind the last valid record were cut "
            f"off and kept in {kept}"
        )

    def _say_damage(self, report: RecoveryReport, damage: list[DamagedRange]) -> None:
        for found in damage[:_NOTES_OF_A_KIND]:
            report.notes.append(
                f"no valid record in {found.size} bytes at {found.physical_offset} ({found.reason}); everything after "
                f"them is served, but Java would cut the log here: run `penstock store repair {self._layout.root}`"
            )
        if len(damage) > _NOTES_OF_A_KIND:
            more = len(damage) - _NOTES_OF_A_KIND
            report.notes.append(f"and {more} more such ranges, all in {self._layout.damaged}")

    def sync(self) -> None:
        """What a killed process left in the page cache counts as flushed from now on, so it must be on disk."""
        for file in self._queue.files:
            if file.from_offset + file.size > self.walked_from:
                file.map.sync()

    def finish(self) -> None:
        """The start is done: what it noted for a next one is of no more use."""
        self._walk_note.remove()
