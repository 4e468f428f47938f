"""Walks the log: finds its end, and the ranges that hold no valid record. Used by recovery, audit and repair.

A record lies in one file, so files are walked separately: several at a time, on threads, if they have 64 MiB or more.
Bytes that are not a record are damage if a valid record or filler follows, in the same file or a later one. Otherwise
they are the tail. The functions change no file.

A torn record passes every check, but seems to have lost a sector of its topic or properties (`kernels.first_torn`).
That is a guess, so it is made only where a `Doubt` allows it: after a crash, behind what is known to be on disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from penstock.format import kernels
from penstock.format.checkpoint import Checkpoint
from penstock.format.kernel_row_types import Reason
from penstock.format.record_layout import size_and_magic
from penstock.format.scan import next_valid
from penstock.store.damage_and_quarantine import MISSING, DamagedRange
from penstock.store.dispatch_checkpoint import DispatchState
from penstock.store.files.atomic_files import Natural
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import MappedFileQueue, is_missing_file

_PIECE = 16 << 20
"""Bytes walked between two progress reports."""
_MIN_FOR_THREADS = 64 << 20
_MAX_THREADS = 4

Count = Callable[[int], None]


class Doubt(msgspec.Struct, frozen=True):
    """Which records may have lost a sector to a power loss. A record must meet both conditions."""

    offset: int
    """Physical offset up to which the log was on disk; only records that end after it are doubted."""
    since: int
    """Store time in ms of the newest record known to be on disk; only records that are not older are doubted."""


NO_DOUBT = Doubt(2**63 - 1, 0)
"""For a store that was closed cleanly, or that another process has open: the page cache has every byte."""


class Walked(msgspec.Struct, frozen=True):
    """The result of a walk over several files, up to the end of the last one. Positions are physical offsets."""

    reached: Natural
    """Physical offset at which the walk stopped."""
    end: Natural
    """Physical offset at which the last valid record or filler ends."""
    newest_timestamp: Natural
    """Store time in ms of the last valid record; 0 if there is none."""
    damage: tuple[DamagedRange, ...] = ()
    unsure: tuple[DamagedRange, ...] = ()
    """Undecided ranges after `end`: damage if a later file has a valid record or filler, otherwise the tail."""


def doubt_after_crash(files: Files, layout: Layout, checkpoint: Checkpoint, state: DispatchState | None) -> Doubt:
    """Returns what to doubt in a store that was not closed: what neither the dispatch note nor the checkpoint covers.

    Under external dispatch another process writes the note, and that process does not know what is on disk.
    """
    if state is None or files.exists(layout.dispatch_terms):
        return Doubt(0, checkpoint.physic)
    return Doubt(state.flushed, checkpoint.physic)


class FileWalk(NamedTuple):
    """The result of walking one file. `end` counts from the file's start; the ranges have physical offsets."""

    end: int
    """Position at which the last valid record or filler ends; the walk's start if there is none."""
    newest_timestamp: int
    damage: list[DamagedRange]
    rest: DamagedRange | None
    """The bytes after `end`, which are not a record; None if the walk reached its stop."""


def walk_range(
    file: MappedFile, start: int, stop: int, check_crc: bool, doubt: Doubt, count: Count, *, lets_go: bool = False
) -> FileWalk:
    """Walks the records of a file that begin in [start, stop). Calls `count` with the number of bytes just walked.

    `lets_go`: the map is unchanged so far, and what was walked takes no memory if the map is private.
    """
    base, position, end, newest = file.from_offset, start, start, 0
    damage: list[DamagedRange] = []
    broken: tuple[int, str] | None = None
    while position < stop:
        piece_end = min(position + _PIECE, stop)
        reached, code, timestamp = kernels.find_valid_end(
            file.map.view, base, position, piece_end, check_crc, doubt.offset, doubt.since
        )
        if code == Reason.BLANK:
            reached = file.size
        if reached > position:
            if broken is not None:
                damage.append(_range(base, broken, position))
                broken = None
            end = reached
        newest = timestamp or newest
        count(reached - position)
        if lets_go:
            file.map.let_go(position, reached)
        position = reached
        if code not in (Reason.BLANK, Reason.STOP):
            broken = broken or (position, MISSING if is_missing_file(file) else Reason(code).name)
            after = next_begin(file, position + 1, stop, lets_go=lets_go)
            count(after - position)
            position = after
    return FileWalk(end, newest, damage, None if broken is None else _range(base, broken, stop))


def next_begin(file: MappedFile, position: int, stop: int, *, lets_go: bool = False) -> int:
    """Returns the first position in [position, stop) where a valid record or filler begins; `stop` if there is none.

    `lets_go` is as for `walk_range`.
    """
    while position < stop:
        end = min(position + _PIECE, stop)
        found = next_valid(file.map.view, file.from_offset, position, end, file.map.written_ranges)
        if found >= 0:
            return found
        if lets_go:
            file.map.let_go(position, end)
        position = end
    return stop


def _range(base: int, broken: tuple[int, str], end: int) -> DamagedRange:
    return DamagedRange(base + broken[0], end - broken[0], broken[1])


def walk_files(
    files: Sequence[MappedFile], check_crc: bool, doubt: Doubt, count: Count, begun: Walked | None = None
) -> Iterator[Walked]:
    """Walks whole files. Yields the cumulative result after each file. `begun` is the result of earlier files."""
    result = begun or Walked(files[0].from_offset, files[0].from_offset, 0)

    def walk(file: MappedFile) -> FileWalk:
        return walk_range(file, 0, file.size, check_crc, doubt, count, lets_go=True)

    if sum(file.size for file in files) < _MIN_FOR_THREADS:
        for file in files:
            yield (result := _joined(result, file, walk(file)))
        return
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "penstock-walk") as pool:
        for file, file_walk in zip(files, pool.map(walk, files), strict=True):
            yield (result := _joined(result, file, file_walk))


def _joined(before: Walked, file: MappedFile, found: FileWalk) -> Walked:
    reached = file.from_offset + file.size
    rest = () if found.rest is None else (found.rest,)
    if not found.end:
        return msgspec.structs.replace(before, reached=reached, unsure=(*before.unsure, *rest))
    file.store_timestamp = found.newest_timestamp
    return Walked(
        reached,
        file.from_offset + found.end,
        found.newest_timestamp or before.newest_timestamp,
        (*before.damage, *before.unsure, *found.damage),
        rest,
    )


def still_damaged(log: MappedFileQueue, known: DamagedRange, doubt: Doubt) -> list[DamagedRange]:
    """Returns the parts of a known damaged range that still hold no valid record. The range must lie in one file."""
    file = log.find(known.physical_offset)
    if file is None:
        return []
    begin = known.physical_offset - file.from_offset
    found = walk_range(file, begin, min(begin + known.size, file.size), True, doubt, lambda walked: None)
    rest = () if found.rest is None else (found.rest,)
    return [msgspec.structs.replace(each, reason=known.reason) for each in (*found.damage, *rest)]


def torn_records(file: MappedFile, damage: DamagedRange) -> Iterator[tuple[int, int]]:
    """Yields (begin, end), as positions in the file, of torn records in a damaged range: a plain check accepts them."""
    base, view = file.from_offset, file.map.view
    position, stop = damage.physical_offset - base, damage.end - base
    while (begin := next_valid(view, base, position, stop)) >= 0:
        position = begin + size_and_magic(view, begin)[0]
        yield begin, position
