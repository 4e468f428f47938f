"""Repairs the log: gives its files their full size, and saves and covers every damaged range.

A file that is too short is replaced by a longer copy that ends with zeros. A file that is too long is replaced by a
shorter copy; its excess bytes are saved. A file that is missing between two others is created, all zero. A crash leaves
each file as it was or as it should be.

A damaged range is covered with valid records, so that every reader, RocketMQ's too, walks past it. One placeholder
record fills the range exactly, or several if the range is longer than the largest message. A range that reaches the end
of its file gets one placeholder and the filler that ends a file, or only the filler if there is no room for both.

The damaged bytes are saved and synced first. If the process is killed while it covers a range, the next repair finds
the uncovered part as damage and covers it with the same result. The ranges are listed in `penstock/damaged.json` before
they are covered, so that a repair that resumes after a crash still reports them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import BadStore, disk_refused
from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.damage_placeholder import (
    MIN_PLACEHOLDER_SIZE,
    find_placeholders,
    placeholder_text,
    saved_paths,
    write_placeholder,
)
from penstock.format.hosts import IPV4_HOST_SIZE, encode_host
from penstock.format.kernels import Rows
from penstock.store.checkpoint import CheckpointFile
from penstock.store.damage_and_quarantine import (
    MISSING,
    DamagedRange,
    Quarantine,
    merged_by_file,
    read_damage,
    write_damage,
)
from penstock.store.dispatch_checkpoint import read_state
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import FolderListing, MappedFileQueue, file_name, list_data_files
from penstock.store.log_end_and_damage import NO_DOUBT, doubt_after_crash
from penstock.store.rebuild.compare_queues import QueueFolder
from penstock.store.rebuild.log_scan import DamagedFileRange, HiddenRecords, LogScan, merged, scan_log
from penstock.store.rebuild.report import Progress, within
from penstock.store.rebuild.target_store import TargetStore
from penstock.store.repair.lost_messages import find_lost
from penstock.store.repair.records import QueueSequences, WrongTime, WrongTimes, find_misplaced, set_time
from penstock.store.repair.report import Change, RepairedRange
from penstock.store.settings import Settings


class LogFileShapes:
    """Gives the files of one log their full size, and creates missing files. Raises BadStore for wrong names."""

    def __init__(self, files: Files, layout: Layout, file_size: int, quarantine: Quarantine) -> None:
        self._io = files
        self._root = layout.root
        self._folder = layout.commit_log
        self._file_size = file_size
        self._quarantine = quarantine
        inside = layout.commit_log.is_relative_to(layout.root)
        self._scratch = layout.staging if inside else layout.commit_log.with_name(f"{layout.commit_log.name}.mending")
        """A folder on the log's disk, for copies that will replace files."""
        self._shape = list_data_files(files, layout.commit_log, file_size)
        self._refuse(self._shape)

    @property
    def are_right(self) -> bool:
        return not self._shape.wrong_sizes and not self._shape.holes

    @property
    def missing(self) -> list[DamagedRange]:
        """The ranges of the log whose file is missing or too short."""
        cut = [(offset, size) for offset, size in self._shape.wrong_sizes.items() if size < self._file_size]
        return [
            *(DamagedRange(offset, count * self._file_size, MISSING) for offset, count in self._shape.holes),
            *(DamagedRange(offset + size, self._file_size - size, MISSING) for offset, size in cut),
        ]

    @property
    def room_needed(self) -> int:
        """Bytes that will go to the quarantine."""
        return sum(max(size - self._file_size, 0) for size in self._shape.wrong_sizes.values())

    def fix(self) -> list[Change]:
        """Fixes sizes and creates missing files; returns the changes. Raises StoreFailed; earlier fixes stay."""
        changes = [self._fix_size(offset, size) for offset, size in self._shape.wrong_sizes.items()]
        for hole, count in self._shape.holes:
            for offset in range(hole, hole + count * self._file_size, self._file_size):
                path = self._folder / file_name(offset)
                self._io.create_sparse(path, self._file_size)
                changes.append(Change(within(self._root, path), "was missing; created"))
        self._io.remove_folder(self._scratch)
        return changes

    def _refuse(self, shape: FolderListing) -> None:
        for offset in (*shape.misplaced, *(each for each in shape.wrong_sizes if each % self._file_size)):
            raise BadStore(
                "the file's name is not a multiple of the file size; move it elsewhere, or give the files' size with "
                "--set mappedFileSizeCommitLog=...",
                path=self._folder / file_name(offset),
                expected=f"a multiple of {self._file_size}",
                found=offset,
            )
        for offset, count in shape.holes:
            if count > max(len(shape.offsets), 8):  # more than exist: a wrong name is more likely
                raise BadStore(
                    f"{count} files are missing before this one; if its name is wrong, move it elsewhere; otherwise "
                    "restore the missing files from a backup",
                    path=self._folder / file_name(offset + count * self._file_size),
                )

    def _fix_size(self, offset: int, size: int) -> Change:
        path, saved = self._folder / file_name(offset), ""
        modified = self._io.modified_ms(path)
        if size > self._file_size:
            with contextlib.closing(self._io.open_map(path)) as whole, whole.view[self._file_size :] as rest:
                saved = within(self._root, self._quarantine.keep(f"commitlog-{path.name}-rest", rest))
        self._replace(path, size)
        self._io.set_modified_ms(path, modified)
        fix = "extended with zeros" if size < self._file_size else "truncated"
        return Change(within(self._root, path), f"had {size} bytes; {fix} to {self._file_size}", saved)

    def _replace(self, path: Path, size: int) -> None:
        copy = self._scratch / path.name
        self._io.unlink(copy)
        with contextlib.closing(self._io.create_map(copy, self._file_size)) as target:
            if size:
                length = min(size, self._file_size)
                with contextlib.closing(self._io.open_map(path)) as source:
                    target.view[:length] = source.view[:length]
            target.sync()
        self._io.rename(copy, path)
        self._io.sync_folder(path.parent)


# -- covering damage ----------------------------------------------------------------------------------------------

_PLACEHOLDER_AT_FILE_END = 1024
"""Size in bytes of a placeholder before a filler: long enough for its text."""
_MIN_RECORD_LIMIT = 4096
_SAVED_AT_ONCE = 64 << 20
_MAX_PATHS_IN_TEXT = 8


class CoverRecord(NamedTuple):
    """A placeholder, or the filler of a file, that covers damage. `position`: in the file, in bytes."""

    position: int
    size: int
    is_filler: bool = False


def plan_cover(position: int, size: int, file_size: int, max_record: int) -> list[CoverRecord]:
    """Returns the records that cover a range of a file exactly; an empty list if no records fit.

    `position` counts from the file's start. `max_record`: size of the largest record, in bytes.
    """
    left, max_record = size, max(max_record, _MIN_RECORD_LIMIT)
    if position + size == file_size:
        if size < MIN_PLACEHOLDER_SIZE + BLANK_HEADER_SIZE:
            return [CoverRecord(position, size, True)] if size >= BLANK_HEADER_SIZE else []
        first = min(size - BLANK_HEADER_SIZE, _PLACEHOLDER_AT_FILE_END)
        return [CoverRecord(position, first), CoverRecord(position + first, size - first, True)]
    pieces: list[CoverRecord] = []
    while left >= MIN_PLACEHOLDER_SIZE:
        piece = left if left <= max_record else min(max_record, left - MIN_PLACEHOLDER_SIZE)
        pieces.append(CoverRecord(position, piece))
        position, left = position + piece, left - piece
    return pieces if not left else []


class DamageCover:
    """Saves and covers damaged ranges, one at a time."""

    def __init__(self, files: Files, root: Path, settings: Settings, quarantine: Quarantine, now: int) -> None:
        self._io = files
        self._root = root
        self._quarantine = quarantine
        self._max_record = settings.max_message_size
        self._when = datetime.fromtimestamp(now / 1000).astimezone().isoformat(timespec="seconds")
        self._now = now
        host = encode_host(settings.store_host)
        self._host = host if len(host) == IPV4_HOST_SIZE else encode_host(f"127.0.0.1:{settings.listen_port}")

    def bytes_to_save(self, file: MappedFile, changed: DamagedFileRange | HiddenRecords | WrongTime) -> int:
        return _written(file, changed.physical_offset - file.from_offset, changed.size)

    def cover(self, file: MappedFile, damage: DamagedFileRange) -> RepairedRange:
        """Saves the bytes of a range, then covers it. Raises StoreFailed; callers can then repeat it."""
        begin, size = damage.physical_offset, damage.size
        repaired = RepairedRange(within(self._root, file.path), begin, size, damage.reason)
        pieces = plan_cover(begin - file.from_offset, size, file.size, self._max_record)
        if not pieces:
            repaired.not_repaired = (
                f"{size} bytes are too few for a record, and a valid one follows them; nothing was changed here"
            )
            return repaired
        repaired.saved = self._save(file, begin, size)
        text = placeholder_text(begin, size, damage.reason, self._when, repaired.saved[:_MAX_PATHS_IN_TEXT])
        with self._changing(file):
            self._write(file, pieces, damage.timestamp or self._now, text)
        return repaired

    def _write(self, file: MappedFile, pieces: list[CoverRecord], timestamp: int, text: str) -> None:
        view = file.map.view
        for piece in pieces:
            file.map.allocate(piece.position, piece.position + (BLANK_HEADER_SIZE if piece.is_filler else piece.size))
        for piece in reversed(pieces):
            if piece.is_filler:
                kernels.write_blank(view, piece.position, piece.size)
            else:
                offset = file.from_offset + piece.position
                write_placeholder(view, piece.position, offset, piece.size, timestamp, self._host, text)

    # -- other fixes of a log file ---------------------------------------------------------------------------

    def zero_hidden(self, file: MappedFile, hidden: HiddenRecords) -> Change:
        """Saves and zeroes the records hidden in a filler. Raises StoreFailed."""
        saved = self._save(file, hidden.physical_offset, hidden.size)
        with self._changing(file):
            file.zero(hidden.physical_offset - file.from_offset)
        what = f"had truncated records hidden in its filler from {hidden.physical_offset} on; zeroed"
        return Change(within(self._root, file.path), what, ", ".join(saved))

    def correct_time(self, file: MappedFile, wrong: WrongTime) -> Change:
        """Saves a record with a wrong store time, then corrects the time. Raises StoreFailed."""
        saved = self._save(file, wrong.physical_offset, wrong.size)
        with self._changing(file):
            set_time(file, wrong)
        what = f"the record at {wrong.physical_offset} had store time {wrong.stored} ms; it is now {wrong.corrected}"
        return Change(within(self._root, file.path), what, ", ".join(saved))

    @contextlib.contextmanager
    def _changing(self, file: MappedFile) -> Iterator[None]:
        """Syncs the changes at the end, and keeps the file's modification time: retention depends on it."""
        modified = self._io.modified_ms(file.path)
        try:
            yield
            file.map.sync()
        except OSError as error:
            raise disk_refused("cannot write", file.path, file.size, error) from error
        self._io.set_modified_ms(file.path, modified)

    # -- saving ----------------------------------------------------------------------------------------------

    def _save(self, file: MappedFile, offset: int, size: int) -> list[str]:
        begin = offset - file.from_offset
        end = begin + _written(file, begin, size)
        saved = []
        for at in range(begin, end, _SAVED_AT_ONCE):
            with file.map.view[at : min(at + _SAVED_AT_ONCE, end)] as piece:
                kept = self._quarantine.keep(f"commitlog-{file.from_offset + at:020d}", piece)
            saved.append(within(self._root, kept))
        return saved


def _written(file: MappedFile, begin: int, size: int) -> int:
    """Returns the length of a range without its trailing zeros, in bytes."""
    for end in range(begin + size, begin, -_SAVED_AT_ONCE):
        start = max(end - _SAVED_AT_ONCE, begin)
        written = len(file.map.view[start:end].tobytes().rstrip(b"\0"))
        if written:
            return start + written - begin
    return 0


# -- the whole repair ---------------------------------------------------------------------------------------------


class RepairedLog(msgspec.Struct):
    """The bounds of a repaired log, and the changes that the repair made."""

    begin: int = 0
    end: int = 0
    newest: int = 0
    """Store time of the last record with a possible time, in ms."""
    ranges: list[RepairedRange] = []
    changes: list[Change] = []
    placeholders: list[tuple[int, int]] = []
    """(begin, end) of each placeholder and of each range that this repair covered, sorted."""

    @property
    def damage(self) -> list[DamagedRange]:
        """The ranges that could not be covered."""
        uncovered = [each for each in self.ranges if each.not_repaired]
        return [DamagedRange(each.physical_offset, each.size, each.reason) for each in uncovered]


class LogRepair:
    """One repair of one log. `run` raises BadStore or StoreFailed; another repair resumes."""

    def __init__(self, target: TargetStore, progress: Progress) -> None:
        self._target = target
        self._io = target.files
        self._layout = target.layout
        self._progress = progress
        self._known = read_damage(target.files, target.layout.damaged)
        self._doubt = NO_DOUBT
        if not target.closed_cleanly:
            checkpoint = CheckpointFile(target.files, target.layout.checkpoint)
            checkpoint.load()
            state = read_state(target.files, target.layout.dispatched)
            self._doubt = doubt_after_crash(target.files, target.layout, checkpoint.value, state)
        self._result = RepairedLog()
        self._sequences = QueueSequences()
        self._times = WrongTimes(target.clock())
        self._queues = QueueFolder(
            target.files, target.layout.consume_queue, target.settings.mapped_file_size_consume_queue
        )

    def run(self) -> RepairedLog:
        layout, size = self._layout, self._target.settings.mapped_file_size_commit_log
        shapes = LogFileShapes(self._io, layout, size, self._target.quarantine)
        if not shapes.are_right:
            self._target.quarantine.reserve(shapes.room_needed)
            self._target.mark_unclean()
            self._note_damage(shapes.missing)
            self._result.changes += shapes.fix()
        log = MappedFileQueue(self._io, layout.commit_log, size)
        log.load()
        try:
            scan = self._scan(log)
            self._result.begin, self._result.end, self._result.newest = scan.begin, scan.end, scan.newest
            self._resume(log)
            self._cover(log, scan)
        finally:
            log.close()
        return self._result

    def update_noted_damage(self) -> None:
        """Leaves only the ranges that could not be covered in `damaged.json`. Call it at the end of a repair."""
        uncovered = self._result.damage
        if uncovered or read_damage(self._io, self._layout.damaged):
            write_damage(self._io, self._layout.damaged, uncovered)

    def _note_damage(self, ranges: list[DamagedRange]) -> None:
        self._known = merged_by_file([*self._known, *ranges], self._target.settings.mapped_file_size_commit_log)
        write_damage(self._io, self._layout.damaged, self._known)

    # -- scanning --------------------------------------------------------------------------------------------

    def _scan(self, log: MappedFileQueue) -> LogScan:
        """Scans the log. Its result counts records with damaged headers as damage, too."""
        scan = scan_log(
            log.files,
            topics=self._sequences.topics,
            on_rows=self._on_rows,
            has_units=lambda begin, end: any(find_lost(queue, [(begin, end)]) for queue in self._queues),
            cuts=[each.physical_offset for each in self._known if each.reason == MISSING],
            doubt=self._doubt,
            now=self._target.clock(),
            progress=self._progress,
        )
        misplaced = find_misplaced(self._sequences, self._queues, log, scan.begin)
        scan.damage = merged([*_with_reasons(scan.damage, self._known), *misplaced])
        return scan

    def _on_rows(self, data: memoryview, rows: Rows) -> None:
        self._sequences.on_rows(data, rows)
        self._times.on_rows(data, rows)
        for offset, size in find_placeholders(rows, self._sequences.topics.name):
            self._result.placeholders.append((offset, offset + size))

    def _resume(self, log: MappedFileQueue) -> None:
        """Adds to the result the ranges that an earlier repair covered before it was killed."""
        for begin, end in self._result.placeholders:
            known = next((each for each in self._known if each.physical_offset <= begin < each.end), None)
            file = log.find(begin)
            if known is not None and file is not None:
                saved = saved_paths(file.map.view[begin - file.from_offset : end - file.from_offset].tobytes())
                path = within(self._layout.root, file.path)
                self._result.ranges.append(RepairedRange(path, begin, end - begin, known.reason, saved=saved))

    # -- covering --------------------------------------------------------------------------------------------

    def _cover(self, log: MappedFileQueue, scan: LogScan) -> None:
        covered = [(each.physical_offset, each.end) for each in scan.damage]
        wrong = [each for each in self._times.isolated() if not any(a <= each.physical_offset < b for a, b in covered)]
        if not scan.damage and not scan.hidden and not wrong:
            return
        target, files = self._target, {file.from_offset: file for file in log.files}
        cover = DamageCover(self._io, self._layout.root, target.settings, target.quarantine, target.clock())
        timed = [(self._file_of(log, each), each) for each in wrong]
        needed = sum(cover.bytes_to_save(files[each.file], each) for each in scan.damage)
        needed += sum(cover.bytes_to_save(files[each.file], each) for each in scan.hidden)
        target.quarantine.reserve(needed + sum(starmap(cover.bytes_to_save, timed)))
        target.mark_unclean()
        self._note_damage([DamagedRange(each.physical_offset, each.size, each.reason) for each in scan.damage])
        done_bytes, total = 0, sum(each.size for each in scan.damage)
        for each in scan.damage:
            self._progress("cover damage", done_bytes, total)
            done_bytes += each.size
            repaired = cover.cover(files[each.file], each)
            self._result.ranges.append(repaired)
            if not repaired.not_repaired:
                self._result.placeholders.append((each.physical_offset, each.end))
        self._result.ranges.sort(key=lambda each: each.physical_offset)
        self._result.placeholders.sort()
        self._result.changes += [cover.zero_hidden(files[each.file], each) for each in scan.hidden]
        self._result.changes += list(starmap(cover.correct_time, timed))

    @staticmethod
    def _file_of(log: MappedFileQueue, wrong: WrongTime) -> MappedFile:
        file = log.find(wrong.physical_offset)
        assert file is not None, "the scan has read this file"
        return file


def _with_reasons(damage: list[DamagedFileRange], known: list[DamagedRange]) -> list[DamagedFileRange]:
    """Returns the same ranges, with the reasons of the `known` ranges that contain them, if any."""
    named: list[DamagedFileRange] = []
    for each in damage:
        reason = next((k.reason for k in known if k.physical_offset <= each.physical_offset < k.end), each.reason)
        named.append(msgspec.structs.replace(each, reason=reason))
    return named
