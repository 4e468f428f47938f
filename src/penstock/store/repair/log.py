"""Log files of the right shape: one after the other, each of the full size.

A file that is too short is replaced by a longer copy of itself: what is missing reads as zeros, and the walk judges
them. Of one that is too long the rest is kept aside. A file that is missing between two others is made, all zero. Each
step leaves, after a crash, the file as it was or as it should be.


Covers damaged ranges of the log with valid records, so that every reader, RocketMQ's too, walks past them.

In the middle of a file a range is covered exactly, by one placeholder or, beyond the largest message, by several. A
range that reaches the end of its file gets one placeholder and behind it the filler that a file ends with, or only the
filler where there is no room for both. The bytes are saved and synced first. A range that was covered halfway when the
process was killed is damage again, only smaller; covering it again ends the same.


The log's part of a repair: files get their shape, and every damaged range is saved and covered.

What is going to be covered is noted in `penstock/damaged.json` first, so that a repair that goes on after a crash still
knows, and says, what it is about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import BadStore, disk_refused
from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.hosts import IPV4_HOST_SIZE, encode_host
from penstock.format.kernels import Rows
from penstock.format.placeholder import (
    MIN_PLACEHOLDER_SIZE,
    find_placeholders,
    placeholder_text,
    saved_paths,
    write_placeholder,
)
from penstock.store.damage import MISSING, DamagedRange, Quarantine, merged_by_file, read_damage, write_damage
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import FolderListing, MappedFileQueue, file_name, list_data_files
from penstock.store.repair.compare import OldQueues, QueueName, lost_in
from penstock.store.repair.report import Change, Progress, RepairedRange, within
from penstock.store.repair.survey import (
    DamagedPlace,
    Hidden,
    OddTime,
    OddTimes,
    Sequences,
    Survey,
    joined,
    misplaced,
    restarts,
    set_time,
    survey,
    with_reasons,
)
from penstock.store.repair.target import RepairTarget
from penstock.store.settings import Settings


class Shapes:
    """The files of one store's log, as they were when this was made. Raises BadStore if nothing can be done."""

    def __init__(self, files: Files, layout: Layout, file_size: int, quarantine: Quarantine) -> None:
        self._io = files
        self._root = layout.root
        self._folder = layout.commit_log
        self._file_size = file_size
        self._quarantine = quarantine
        inside = layout.commit_log.is_relative_to(layout.root)
        self._spare = layout.staging if inside else layout.commit_log.with_name(f"{layout.commit_log.name}.mending")
        """A folder on the same disk, where a copy is made before it takes the place of the file."""
        self._shape = list_data_files(files, layout.commit_log, file_size)
        self._refuse(self._shape)

    @property
    def are_right(self) -> bool:
        return not self._shape.wrong_sizes and not self._shape.holes

    @property
    def missing(self) -> list[DamagedRange]:
        """The ranges of the log that there is no file for, or not enough of one."""
        cut = [(offset, size) for offset, size in self._shape.wrong_sizes.items() if size < self._file_size]
        return [
            *(DamagedRange(offset, count * self._file_size, MISSING) for offset, count in self._shape.holes),
            *(DamagedRange(offset + size, self._file_size - size, MISSING) for offset, size in cut),
        ]

    def mend(self) -> list[Change]:
        """Raises StoreFailed; what is done then stays done."""
        changes = [self._mend_size(offset, size) for offset, size in self._shape.wrong_sizes.items()]
        for hole, count in self._shape.holes:
            for offset in range(hole, hole + count * self._file_size, self._file_size):
                path = self._folder / file_name(offset)
                self._io.create_sparse(path, self._file_size)
                changes.append(Change(within(self._root, path), "was missing, and made"))
        self._io.remove_folder(self._spare)
        return changes

    def _refuse(self, shape: FolderListing) -> None:
        for offset in (*shape.misplaced, *(each for each in shape.wrong_sizes if each % self._file_size)):
            raise BadStore(
                "the file's name is not a multiple of the file size; move it elsewhere, or say the size that the files "
                "have with --set mappedFileSizeCommitLog=...",
                path=self._folder / file_name(offset),
                expected=f"a multiple of {self._file_size}",
                found=offset,
            )
        for offset, count in shape.holes:
            if count > max(len(shape.offsets), 8):  # more than there are: it is likelier that a name is wrong
                raise BadStore(
                    f"{count} files are missing before this one; if its name is wrong, move it elsewhere, and if they "
                    "were there, restore them from a copy",
                    path=self._folder / file_name(offset + count * self._file_size),
                )

    def _mend_size(self, offset: int, size: int) -> Change:
        path, saved = self._folder / file_name(offset), ""
        modified = self._io.modified_ms(path)
        if size > self._file_size:
            with contextlib.closing(self._io.open_map(path)) as whole, whole.view[self._file_size :] as rest:
                saved = within(self._root, self._quarantine.keep(f"commitlog-{path.name}-rest", rest))
        self._replace(path, size)
        self._io.set_modified_ms(path, modified)
        now = "lengthened with zeros" if size < self._file_size else "cut"
        return Change(within(self._root, path), f"had {size} bytes, and was {now} to {self._file_size}", saved)

    def _replace(self, path: Path, size: int) -> None:
        copy = self._spare / path.name
        self._io.unlink(copy)
        with contextlib.closing(self._io.create_map(copy, self._file_size)) as target:
            if size:
                length = min(size, self._file_size)
                with contextlib.closing(self._io.open_map(path)) as source:
                    target.view[:length] = source.view[:length]
            target.sync()
        self._io.rename(copy, path)
        self._io.sync_folder(path.parent)


_AT_A_FILES_END = 1024
"""As long as the text needs, and more."""
_LEAST_MOST = 4096
_SAVED_AT_ONCE = 64 << 20
_PATHS_SAID = 8


class CoverRecord(NamedTuple):
    """What is to be written somewhere: a placeholder, or the filler of a file."""

    position: int
    size: int
    is_filler: bool = False


def plan(position: int, size: int, file_size: int, most: int) -> list[CoverRecord]:
    """The pieces that cover a range of a file exactly; none if that cannot be done.

    Positions count from the file's start; `most` is the size of the largest record.
    """
    left, most = size, max(most, _LEAST_MOST)
    if position + size == file_size:
        if size < MIN_PLACEHOLDER_SIZE + BLANK_HEADER_SIZE:
            return [CoverRecord(position, size, True)] if size >= BLANK_HEADER_SIZE else []
        first = min(size - BLANK_HEADER_SIZE, _AT_A_FILES_END)
        return [CoverRecord(position, first), CoverRecord(position + first, size - first, True)]
    pieces: list[CoverRecord] = []
    while left >= MIN_PLACEHOLDER_SIZE:
        piece = left if left <= most else min(most, left - MIN_PLACEHOLDER_SIZE)
        pieces.append(CoverRecord(position, piece))
        position, left = position + piece, left - piece
    return pieces if not left else []


class Cover:
    """Saves and covers one range after the other."""

    def __init__(self, files: Files, root: Path, settings: Settings, quarantine: Quarantine, now: int) -> None:
        self._io = files
        self._root = root
        self._quarantine = quarantine
        self._most = settings.max_message_size
        self._when = datetime.fromtimestamp(now / 1000).astimezone().isoformat(timespec="seconds")
        self._now = now
        host = encode_host(settings.store_host)
        self._host = host if len(host) == IPV4_HOST_SIZE else encode_host(f"127.0.0.1:{settings.listen_port}")

    def room(self, file: MappedFile, found: DamagedPlace) -> int:
        """How many bytes will be kept aside for a range."""
        return _written(file, found.physical_offset - file.from_offset, found.size)

    def cover(self, file: MappedFile, found: DamagedPlace) -> RepairedRange:
        """Raises StoreFailed, and then the range can be covered again."""
        done = RepairedRange(within(self._root, file.path), found.physical_offset, found.size, found.reason)
        position = found.physical_offset - file.from_offset
        pieces = plan(position, found.size, file.size, self._most)
        if not pieces:
            done.not_repaired = (
                f"{found.size} bytes are too few for a record, and a valid one follows them; nothing was changed here"
            )
            return done
        done.saved = self._save(file, found.physical_offset, found.size)
        text = placeholder_text(found.physical_offset, found.size, found.reason, self._when, done.saved[:_PATHS_SAID])
        with self._changing(file):
            self._write(file, pieces, found.timestamp or self._now, text)
        return done

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

    # -- other changes of a log file -------------------------------------------------------------------------

    def clear(self, file: MappedFile, hidden: Hidden) -> Change:
        """Saves what lies hidden in a filler, and zeroes it. Raises StoreFailed."""
        saved = self._save(file, hidden.physical_offset, hidden.size)
        with self._changing(file):
            file.zero(hidden.physical_offset - file.from_offset)
        what = f"records lay hidden in its filler from {hidden.physical_offset} on, cut off once; they were zeroed"
        return Change(within(self._root, file.path), what, ", ".join(saved))

    def correct(self, file: MappedFile, odd: OddTime) -> Change:
        """Saves a record whose store time cannot be, and sets the time. Raises StoreFailed."""
        saved = self._save(file, odd.physical_offset, odd.size)
        with self._changing(file):
            set_time(file, odd)
        what = f"the record at {odd.physical_offset} said it was stored at {odd.said} ms; now it says {odd.right}"
        return Change(within(self._root, file.path), what, ", ".join(saved))

    @contextlib.contextmanager
    def _changing(self, file: MappedFile) -> Iterator[None]:
        """Syncs what is changed, and leaves the file's time as it is: RocketMQ deletes by it."""
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
    """How many bytes of a range there are up to the last one that is not zero."""
    for end in range(begin + size, begin, -_SAVED_AT_ONCE):
        start = max(end - _SAVED_AT_ONCE, begin)
        written = len(file.map.view[start:end].tobytes().rstrip(b"\0"))
        if written:
            return start + written - begin
    return 0


class MendedLog(msgspec.Struct):
    """The log, walkable from its beginning to its end, and what had to be done."""

    begin: int = 0
    end: int = 0
    newest: int = 0
    """Store time of its last record."""
    ranges: list[RepairedRange] = []
    changes: list[Change] = []
    placeholders: list[tuple[int, int]] = []
    """(begin, end) of every placeholder in it, in order."""
    restarts: dict[QueueName, int] = {}
    """Where queues begin anew."""

    @property
    def damage(self) -> list[DamagedRange]:
        """What could not be covered."""
        left = [each for each in self.ranges if each.not_repaired]
        return [DamagedRange(each.physical_offset, each.size, each.reason) for each in left]


class LogRepair:
    """One repair of one log. Raises BadStore or StoreFailed; run again, it goes on."""

    def __init__(self, place: RepairTarget, progress: Progress) -> None:
        self._place = place
        self._io = place.files
        self._layout = place.layout
        self._progress = progress
        self._known = read_damage(place.files, place.layout.damaged)
        self._mended = MendedLog()
        self._sequences = Sequences()
        self._times = OddTimes(place.clock())
        self._queues = OldQueues(place.files, place.layout, place.settings.mapped_file_size_consume_queue)

    def mend(self) -> MendedLog:
        layout, size = self._layout, self._place.settings.mapped_file_size_commit_log
        shapes = Shapes(self._io, layout, size, self._place.quarantine)
        if not shapes.are_right:
            self._place.mark_unclean()
            self._note(shapes.missing)
            self._mended.changes += shapes.mend()
        log = MappedFileQueue(self._io, layout.commit_log, size)
        log.load()
        try:
            found = self._walk(log)
            self._mended.begin, self._mended.end, self._mended.newest = found.begin, found.end, found.newest
            self._mended.restarts = restarts(self._sequences, self._queues)
            self._resume(log)
            self._cover(log, found)
        finally:
            log.close()
        return self._mended

    def forget(self) -> None:
        """At the end of a repair: what is covered is damage no more; what could not be is remembered."""
        left = self._mended.damage
        if left or read_damage(self._io, self._layout.damaged):
            write_damage(self._io, self._layout.damaged, left)

    def _note(self, ranges: list[DamagedRange]) -> None:
        self._known = merged_by_file([*self._known, *ranges], self._place.settings.mapped_file_size_commit_log)
        write_damage(self._io, self._layout.damaged, self._known)

    # -- looking ---------------------------------------------------------------------------------------------

    def _walk(self, log: MappedFileQueue) -> Survey:
        """Damage is what the walk finds, and records whose headers are wrong."""
        found = survey(
            log.files,
            topics=self._sequences.topics,
            watch=self._watch,
            is_served=lambda begin, end: any(lost_in(queue, [(begin, end)]) for queue in self._queues),
            cuts=[each.physical_offset for each in self._known if each.reason == MISSING],
            now=self._place.clock(),
            progress=self._progress,
        )
        misread = misplaced(self._sequences, self._queues, log, found.begin)
        found.found = joined([*with_reasons(found.found, self._known), *misread])
        return found

    def _watch(self, data: memoryview, rows: Rows) -> None:
        self._sequences.watch(data, rows)
        self._times.watch(data, rows)
        for offset, size in find_placeholders(rows, self._sequences.topics.name):
            self._mended.placeholders.append((offset, offset + size))

    def _resume(self, log: MappedFileQueue) -> None:
        """A repair before this one was killed when it had covered these, and could not say so."""
        for begin, end in self._mended.placeholders:
            known = next((each for each in self._known if each.physical_offset <= begin < each.end), None)
            file = log.find(begin)
            if known is not None and file is not None:
                saved = saved_paths(file.map.view[begin - file.from_offset : end - file.from_offset].tobytes())
                path = within(self._layout.root, file.path)
                self._mended.ranges.append(RepairedRange(path, begin, end - begin, known.reason, saved=saved))

    # -- covering --------------------------------------------------------------------------------------------

    def _cover(self, log: MappedFileQueue, found: Survey) -> None:
        covered = [(each.physical_offset, each.end) for each in found.found]
        odd = [each for each in self._times.found() if not any(a <= each.physical_offset < b for a, b in covered)]
        if not found.found and not found.hidden and not odd:
            return
        place, files = self._place, {file.from_offset: file for file in log.files}
        cover = Cover(self._io, self._layout.root, place.settings, place.quarantine, place.clock())
        place.quarantine.reserve(sum(cover.room(files[each.file], each) for each in found.found))
        place.mark_unclean()
        self._note([DamagedRange(each.physical_offset, each.size, each.reason) for each in found.found])
        done_bytes, total = 0, sum(each.size for each in found.found)
        for each in found.found:
            self._progress("cover damage", done_bytes, total)
            done_bytes += each.size
            done = cover.cover(files[each.file], each)
            self._mended.ranges.append(done)
            if not done.not_repaired:
                self._mended.placeholders.append((each.physical_offset, each.end))
        self._mended.ranges.sort(key=lambda each: each.physical_offset)
        self._mended.placeholders.sort()
        self._mended.changes += [cover.clear(files[each.file], each) for each in found.hidden]
        self._mended.changes += [self._correct(cover, log, each) for each in odd]

    @staticmethod
    def _correct(cover: Cover, log: MappedFileQueue, odd: OddTime) -> Change:
        file = log.find(odd.physical_offset)
        assert file is not None, "the walk came from there"
        return cover.correct(file, odd)
