"""Recovery of the commit log: a walk finds the log's end and damaged ranges; then the log's tail is truncated.

The file `penstock/damaged.json` lists damaged ranges. Recovery checks again each range that an earlier start listed,
and removes it from the list once it holds valid records. It writes the file before it changes anything else.

This module owns `penstock/walked.json`, a checkpoint of the walk. Every two seconds the walk saves how many whole files
it has finished, and its results so far. So a start that is killed again and again, for example by a health check, still
makes progress. Recovery removes the file when it is done.

A kill in the middle of a batch can leave its first record unpublished: complete but for its size and magic, with
records of the batch behind it. None of them was acknowledged or seen. Recovery publishes that record, so that neither
the log nor a queue has a gap; what follows it in the log shows how long it is, and its own fields and CRC that it is
whole. The same happens to a slave that was killed while it appended. A record that seems to have lost a sector is not
published, and neither is one in a range that `damaged.json` lists: since an earlier start has listed it, a message that
was acknowledged may have got its queue offset. A batch lies in one file, so the record also lies in the file in which
the log ends; in an earlier file it is damage.

A live view is a read-only view of a store that another process appends to, even during the walk. Nothing before the
log's end changes. But a range that looked damaged may have been in the middle of a write: `recheck_live_log` checks
such ranges once more, unless `damaged.json` lists them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import msgspec

from penstock.format import kernels
from penstock.format.checkpoint import Checkpoint
from penstock.format.constants import MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from penstock.format.kernel_row_types import Reason
from penstock.format.record_layout import size_and_magic
from penstock.format.scan import unpublished_magic
from penstock.store.checkpoint import CheckpointFile
from penstock.store.damage_and_quarantine import (
    MISSING,
    DamagedRange,
    Quarantine,
    inside,
    known_damage,
    merged_by_file,
    write_damage,
)
from penstock.store.dispatch_checkpoint import DispatchState, read_state
from penstock.store.engine_parts import Engine
from penstock.store.files.atomic_files import Natural, read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import (
    MAX_MISSING_IN_A_ROW,
    MappedFileQueue,
    create_missing_file,
    file_name,
    is_missing_file,
)
from penstock.store.log_end_and_damage import (
    NO_DOUBT,
    Doubt,
    Walked,
    doubt_after_crash,
    still_damaged,
    torn_records,
    walk_files,
)
from penstock.store.recovery.report import WALK, OnProgress, ProgressMeter, RecoveryReport
from penstock.store.single_record_reader import RecordReader
from penstock.store.sink.journal import whole_batches

_MAX_UNPUBLISHED = 64 << 20
"""Bytes. No record is larger, so a larger range is damage or a missing file."""
EVERY_SECONDS = 2.0
"""How often a walk saves its state."""
_FILES_AFTER_CLEAN_EXIT = 3
_NOTES_OF_A_KIND = 20
_STRIDE = 16 << 20


class _WalkDocument(msgspec.Struct):
    begin: Natural
    check_crc: bool
    walked: Walked
    doubt: Doubt = Doubt(0, 0)
    """Every record was doubted, in notes of version 0.1."""


class WalkNote:
    """Reads and writes `walked.json`. A read-only view never writes it."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self._last = time.monotonic()

    def find(self, begin: int, files: Sequence[MappedFile], check_crc: bool, doubt: Doubt) -> Walked | None:
        """Returns the result of an earlier walk that began at or before `begin` and ended where one of `files` begins.

        Returns None if there is no such walk, or if it differs in `check_crc` or `doubt`.
        """
        note = read_checksummed(self._io, self._path, _WalkDocument)
        if note is None or (note.check_crc, note.doubt) != (check_crc, doubt) or note.begin > begin:
            return None
        starts = {file.from_offset for file in files[1:]}
        walked = note.walked
        is_possible = (
            note.begin <= walked.end <= walked.reached
            and not walked.unsure
            and not any(each.physical_offset < note.begin or each.end > walked.reached for each in walked.damage)
        )
        return walked if walked.reached in starts and is_possible else None

    def write(self, begin: int, walked: Walked, check_crc: bool, doubt: Doubt) -> None:
        """Saves the walk's state, at most once in EVERY_SECONDS. Raises StoreFailed."""
        if self._io.read_only or walked.unsure or time.monotonic() - self._last < EVERY_SECONDS:
            return
        write_checksummed(self._io, self._path, _WalkDocument(begin, check_crc, walked, doubt))
        self._last = time.monotonic()

    def remove(self) -> None:
        """Removes the file. Callers must first write the results of the walk to disk."""
        if self._io.exists(self._path):
            self._io.unlink(self._path)


class LogRecovery:
    """Inspects the log, then truncates it after the last valid record."""

    def __init__(
        self,
        engine: Engine,
        records: RecordReader,
        *,
        live: bool,
        pending_batch: int | None = None,
    ) -> None:
        """`live`: the log is a live view. `pending_batch`: physical offset of a batch that is incomplete now, if any.

        The log ends there for this view, even if the batch is completed before the inspection.
        """
        self._io = engine.io
        self._layout = engine.layout
        self._log = engine.log
        self._queue = engine.log.queue
        self._records = records
        self._check_crc = engine.settings.check_crc_on_recover
        self._live = live
        self._pending_batch = pending_batch
        self._walk_note = WalkNote(engine.io, engine.layout.walked)
        self._known: list[DamagedRange] = []
        self._known_is_garbage = False
        self._doubt = NO_DOUBT
        self._torn: list[tuple[MappedFile, int]] = []
        """Files that hold bytes after the log's end, each with the position after its last such byte."""
        self._unpublished: list[tuple[DamagedRange, int]] = []
        """Records that a kill left without their size and magic, and that others follow; each with its magic."""
        self._torn_unpublished: list[DamagedRange] = []
        """The same, but these seem to have lost a sector: they stay damage."""
        self.walked_from = 0
        self.end = 0
        self.damage: list[DamagedRange] = []

    # -- inspecting ------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps the files. Raises BadStore if a name or a size is wrong."""
        self._shape = self._queue.listing(max_missing=MAX_MISSING_IN_A_ROW)
        self._queue.map_files(self._shape.offsets)

    def inspect(
        self, clean: bool, checkpoint: Checkpoint, state: DispatchState | None, on_progress: OnProgress
    ) -> None:
        """Walks the log and changes nothing on disk. There must be at least one file."""
        noted = known_damage(self._io, self._layout.damaged)
        self._known, self._known_is_garbage = noted or [], noted is None
        if not clean and not self._live:
            self._doubt = doubt_after_crash(self._io, self._layout, checkpoint, state)
        start = 0 if self._known_is_garbage else self._start_file(clean, checkpoint, state)
        walked = self._walk(start, on_progress)
        if not clean and checkpoint.min_timestamp > walked.newest_timestamp:
            start = min(start, self._file_of_note(state))  # a checkpoint newer than the log proves nothing
            self._doubt = msgspec.structs.replace(self._doubt, since=0)
            walked = self._walk(start, on_progress)
        while start and walked.end == self._queue.files[start].from_offset:
            start -= 1  # no valid record so far: the log ends in an earlier file
            walked = self._walk(start, on_progress)
        self.walked_from = self._queue.files[start].from_offset
        self._log.newest_timestamp = walked.newest_timestamp or self._log.newest_timestamp
        self.end, damage = walked.end, list(walked.damage)
        if self._live:
            self.end, damage = recheck_live_log(self._queue, self.end, damage, self._known)
        whole = whole_batches(self._io, self._layout, self.end) if self._io.read_only else self.end
        if self._pending_batch is not None:
            whole = min(whole, self._pending_batch)  # the batch may have been rolled back since
        is_growing, self.end = self._live or whole < self.end, whole
        stand_ins = [file for file in self._queue.files if is_missing_file(file)]
        damage += [DamagedRange(file.from_offset, file.size, MISSING) for file in stand_ins]
        known_here = inside(self._known, self._queue.files[0].from_offset, self._end_of_files)
        for known in merged_by_file(known_here, self._queue.file_size):
            damage += still_damaged(self._queue, known, self._doubt)
        self.damage = [
            each for each in merged_by_file(damage, self._queue.file_size) if each.physical_offset < self.end
        ]
        if not clean and not self._live:
            self._find_unpublished()
        if not is_growing:
            self._find_torn()

    def _find_unpublished(self) -> None:
        """Takes the records that will be published out of the damage."""
        damage, self.damage = self.damage, []
        for each in damage:
            magic = _unpublished_magic(self._queue, each, self._doubt)
            may_be_batch = _is_in_last_file(self._queue, each, self.end) and not self._known_is_garbage
            if magic is not None and may_be_batch and not _overlaps(each, self._known):
                self._unpublished.append((each, magic))
                continue
            self.damage.append(each)
            if magic is None and _unpublished_magic(self._queue, each, NO_DOUBT) is not None:
                self._torn_unpublished.append(each)

    def assume(self, end: int, damage: list[DamagedRange]) -> None:
        """Call it instead of `inspect` if the log's owner has recovered the log: everything before `end` is final.

        `damage`: the damaged ranges that the owner knows.
        """
        self.walked_from = self.end = end
        self.damage = inside(damage, 0, end)

    @property
    def _end_of_files(self) -> int:
        return self._queue.files[-1].from_offset + self._queue.file_size

    def _start_file(self, clean: bool, checkpoint: Checkpoint, state: DispatchState | None) -> int:
        files = self._queue.files
        if clean:
            return max(0, len(files) - _FILES_AFTER_CLEAN_EXIT)
        safe = checkpoint.min_timestamp
        if not safe:
            return self._file_of_note(state)
        for number in range(len(files) - 1, 0, -1):
            _, magic = size_and_magic(files[number].map.view)
            if magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
                stored = self._records.store_timestamp(files[number].from_offset)
                if 0 < stored <= safe:
                    return number
        return 0

    def _file_of_note(self, state: DispatchState | None) -> int:
        """Returns the number of the file that holds the position of the dispatch note; 0 if there is none.

        The walk begins there if the checkpoint's time is missing or wrong.
        """
        file = None if state is None else self._queue.find(min(state.position, state.flushed))
        return 0 if file is None else self._queue.files.index(file)

    def _walk(self, start: int, on_progress: OnProgress) -> Walked:
        files = self._queue.files[start:]
        begin = files[0].from_offset
        meter = ProgressMeter(on_progress, WALK, len(files) * self._queue.file_size)
        walked = self._walk_note.find(begin, files, self._check_crc, self._doubt)
        if walked is not None:
            # RocketMQ may have written since
            seen = (still_damaged(self._queue, each, self._doubt) for each in walked.damage)
            walked = msgspec.structs.replace(walked, damage=tuple(chain.from_iterable(seen)))
            meter.add(walked.reached - begin)
            files = tuple(file for file in files if file.from_offset >= walked.reached)
        for reached in walk_files(files, self._check_crc, self._doubt, meter.add, walked):
            walked = reached
            self._walk_note.write(begin, walked, self._check_crc, self._doubt)
        assert walked is not None, "there is a log"
        return walked

    def _find_torn(self) -> None:
        for file in self._queue.files:
            position = max(self.end - file.from_offset, 0)
            if position < file.size and (used := _used_end(file, position)) > position:
                self._torn.append((file, used))

    def _is_removed_whole(self, file: MappedFile) -> bool:
        first = file is self._queue.first
        return file.from_offset > self.end or (file.from_offset == self.end and not first)

    @property
    def room_needed(self) -> int:
        """Bytes that will go to the quarantine."""
        return sum(
            self._io.allocated(file.path) if self._is_removed_whole(file) else file.from_offset + used - self.end
            for file, used in self._torn
        )

    # -- applying --------------------------------------------------------------------------------------------

    def apply(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Makes the changes that `inspect` determined. Idempotent. Raises StoreFailed."""
        report.walked_from, report.log_end, report.damage = self.walked_from, self.end, self.damage
        self._publish_first_records(report)
        if self._live:
            for file in self._queue.cut(self.end):
                file.shut_down()
            self._report_damage(report, self.damage)
            return
        self._note_damage(quarantine, report)
        for file in self._queue.files:
            if is_missing_file(file) and file.from_offset < self.end:
                create_missing_file(self._io, file)
                report.notes.append(f"{file.path}: the file is missing and was replaced by zeros")
        self._remove_torn(quarantine, report)
        self._cut(quarantine, report)
        self._queue.remove_unfinished(self._shape)
        self._report_damage(report, self.damage)

    def _publish_first_records(self, report: RecoveryReport) -> None:
        """Completes the records that a kill left unpublished."""
        for each, magic in self._unpublished:
            file = _publish(self._queue, each, magic)
            report.notes.append(
                f"{file.path}: the record at {each.physical_offset}, which a kill had left without its size, is served"
            )

    def _note_damage(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Writes `damaged.json`. Must run before any other change.

        Otherwise a missing file that was replaced by zeros would look like new damage.
        """
        path = self._layout.damaged
        if self._known_is_garbage:
            kept = quarantine.move_in(path)
            report.kept_aside.append(str(kept))
            report.notes.append(f"{path} could not be read and was moved to {kept}: the whole log was walked")
        report.repaired = [
            known
            for known in self._known
            if self._log.min_offset <= known.physical_offset < self.end and not _overlaps(known, self.damage)
        ]
        if self.damage != self._known and not self._io.read_only:
            write_damage(self._io, path, self.damage)

    def add_damage(self, new: list[DamagedRange], report: RecoveryReport) -> None:
        """Adds damage that dispatch found in files that were not walked to `damaged.json`. Raises StoreFailed."""
        before = self.damage
        report.damage = self.damage = merged_by_file([*before, *new], self._queue.file_size)
        if self.damage != before:
            self._report_damage(report, [each for each in self.damage if each not in before])
            if not self._io.read_only:
                write_damage(self._io, self._layout.damaged, self.damage)

    def _remove_torn(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Quarantines and zeroes torn records in damaged ranges, because a later start might take them for valid."""
        for each in () if self._doubt is NO_DOUBT else self.damage:
            file = self._queue.find(each.physical_offset)
            if file is None or is_missing_file(file):
                continue
            whole = each.physical_offset - file.from_offset, each.end - file.from_offset
            for begin, end in [whole] if each in self._torn_unpublished else torn_records(file, each):
                with file.map.view[begin:end] as record:
                    kept = quarantine.keep(f"commitlog-{file_name(file.from_offset + begin)}", record)
                    record[:] = bytes(end - begin)
                report.torn_bytes += end - begin
                report.kept_aside.append(str(kept))
                report.notes.append(
                    f"{file.path}: the record at {file.from_offset + begin}, which no sync had covered, lost a part of "
                    f"its topic or properties; its {end - begin} bytes were kept in {kept}"
                )

    def _cut(self, quarantine: Quarantine, report: RecoveryReport) -> None:
        """Quarantines torn bytes, then zeroes them. Quarantines files after the log's end; deletes files of zeros."""
        torn = {file.from_offset: used for file, used in self._torn}
        for file, used in self._torn:
            offset = max(self.end, file.from_offset)
            report.torn_bytes += file.from_offset + used - offset
            if not self._is_removed_whole(file):
                with file.map.view[offset - file.from_offset : used] as rest:
                    kept = quarantine.keep(f"commitlog-{file_name(offset)}", rest)
                self._report_torn(file, offset, used, str(kept), report)
        for file in self._queue.cut(self.end):
            if file.from_offset in torn:
                kept = quarantine.move_in(file.path)
                self._report_torn(file, file.from_offset, torn[file.from_offset], str(kept), report)
            file.shut_down()
            self._io.unlink(file.path)
        last = self._queue.last
        if last is not None and last.from_offset in torn:
            last.zero(last.wrote)

    @staticmethod
    def _report_torn(file: MappedFile, offset: int, used: int, kept: str, report: RecoveryReport) -> None:
        report.kept_aside.append(kept)
        report.notes.append(
            f"{file.path}: {file.from_offset + used - offset} bytes at {offset} after the last valid record were "
            f"truncated and kept in {kept}"
        )

    def _report_damage(self, report: RecoveryReport, damage: list[DamagedRange]) -> None:
        for each in damage[:_NOTES_OF_A_KIND]:
            report.notes.append(
                f"no valid record in {each.size} bytes at {each.physical_offset} ({each.reason}); records after "
                "them are served, but RocketMQ would truncate the log here: "
                f"run `penstock store repair {self._layout.root}`"
            )
        if len(damage) > _NOTES_OF_A_KIND:
            more = len(damage) - _NOTES_OF_A_KIND
            report.notes.append(f"and {more} more such ranges, all in {self._layout.damaged}")

    def sync(self) -> None:
        """Syncs the walked files: a killed process may have left bytes in the page cache that now count as flushed."""
        for file in self._queue.files:
            if file.from_offset + file.size > self.walked_from:
                file.map.sync()

    def remove_walk_note(self) -> None:
        """Removes `walked.json`. Call it last, when recovery is complete."""
        self._walk_note.remove()


def recheck_live_log(
    log: MappedFileQueue, end: int, damage: list[DamagedRange], known: Sequence[DamagedRange] = ()
) -> tuple[int, list[DamagedRange]]:
    """Checks damaged ranges again. Returns the log's end, and the ranges that the writer has not filled since.

    A writer publishes the first record of a batch last. If that record is not published yet, the log ends before the
    batch. In a range that is `known` to be damaged, no writer is at work.
    """
    real: list[DamagedRange] = []
    for each in damage:
        file = log.find(each.physical_offset)
        assert file is not None, "damage lies in a file of the log"
        data, base, at = file.map.view, file.from_offset, each.physical_offset - file.from_offset
        if kernels.check_record(data, at, base, True) in (Reason.STOP, Reason.BLANK):
            continue
        if not _overlaps(each, known) and _unpublished_magic(log, each, NO_DOUBT) is not None:
            return each.physical_offset, real
        real.append(each)
    return end, real


def _is_in_last_file(log: MappedFileQueue, damage: DamagedRange, end: int) -> bool:
    """Whether a damaged range lies in the file that holds the last byte before the log's end."""
    return damage.physical_offset // log.file_size == (end - 1) // log.file_size


def _overlaps(damage: DamagedRange, known: Sequence[DamagedRange]) -> bool:
    return any(each.physical_offset < damage.end and damage.physical_offset < each.end for each in known)


def _unpublished_magic(log: MappedFileQueue, damage: DamagedRange, doubt: Doubt) -> int | None:
    """Returns the magic of the unpublished record that a damaged range is; None if it is none, or seems torn."""
    file = log.find(damage.physical_offset)
    if file is None or damage.size > _MAX_UNPUBLISHED or is_missing_file(file):
        return None
    at = damage.physical_offset - file.from_offset
    return unpublished_magic(file.map.view, file.from_offset, at, at + damage.size, doubt.offset, doubt.since)


def complete_interrupted_batch(io: Files, layout: Layout, file_size: int) -> None:
    """Publishes the first record of a batch that a kill interrupted, as a start does, in a store without an owner.

    A repair and a rebuild look at the log before they start the store. Changes nothing if the store was closed cleanly,
    or if `damaged.json` is garbage. Raises BadStore if a name or a size of a log file is wrong, StoreFailed or OSError
    if the disk fails.
    """
    known = known_damage(io, layout.damaged)
    if known is None or not io.exists(layout.abort):
        return
    checkpoint = CheckpointFile(io, layout.checkpoint)
    checkpoint.load()
    doubt = doubt_after_crash(io, layout, checkpoint.value, read_state(io, layout.dispatched))
    log = MappedFileQueue(io, layout.commit_log, file_size)
    log.load()
    try:
        if newest := log.files[-_FILES_AFTER_CLEAN_EXIT:]:
            *_, walked = walk_files(newest, True, doubt, lambda count: None)
            if checkpoint.value.min_timestamp > walked.newest_timestamp:  # as in a start
                doubt = msgspec.structs.replace(doubt, since=0)
                *_, walked = walk_files(newest, True, doubt, lambda count: None)
            for each in walked.damage:
                magic = _unpublished_magic(log, each, doubt)
                is_last = _is_in_last_file(log, each, walked.end)
                if magic is not None and is_last and not _overlaps(each, known):
                    _publish(log, each, magic).map.sync()
    finally:
        log.close()


def _publish(log: MappedFileQueue, unpublished: DamagedRange, magic: int) -> MappedFile:
    """Gives a record its size and magic. Returns its file."""
    file = log.find(unpublished.physical_offset)
    assert file is not None, "damage lies in a file of the log"
    kernels.publish(file.map.view, unpublished.physical_offset - file.from_offset, unpublished.size, magic)
    return file


def _used_end(file: MappedFile, position: int) -> int:
    """Returns the position after the file's last nonzero byte; `position` if that is before it.

    The map is unchanged so far. What was read takes no memory if the map is private.
    """
    stop = file.size
    while stop > position:
        begin = max(position, stop - _STRIDE)
        used = file.map.nonzero_end(begin, stop)
        if used > begin:
            return used
        file.map.let_go(begin, stop)
        stop = begin
    return position
