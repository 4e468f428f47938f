"""Walking the log: where it ends, and which ranges in it hold no valid record.

No record lies in two files, so each file is walked on its own, several at a time where there is much to walk. Bytes
that are no record are damage if something valid follows, in the same file or in a later one; else they are the tail. A
record that passes every check, but whose topic or properties lost a sector, is none (`kernels.first_torn`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from penstock.format import kernels
from penstock.format.rows import Reason
from penstock.store.damage import MISSING, DamagedRange
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MappedFileQueue, is_stand_in

_PIECE = 64 << 20
"""So much is walked in one go; then progress is told."""
_WORTH_THREADS = 64 << 20
_MAX_THREADS = 4
_HEADER = 8

Count = Callable[[int], None]


class Walked(msgspec.Struct, frozen=True):
    """What a walk found, up to the end of some file."""

    reached: int
    """Up to where was walked."""
    end: int
    """Behind the last valid record or filler."""
    newest_timestamp: int
    """Store time of the last record, 0 if there is none."""
    damage: tuple[DamagedRange, ...] = ()
    unsure: tuple[DamagedRange, ...] = ()
    """Damage if something valid follows, the tail if nothing does."""


class FileWalk(NamedTuple):
    """What one file holds; positions count from its start."""

    end: int
    """Behind the last valid record or filler, where the walk began if there is none."""
    newest_timestamp: int
    damage: list[DamagedRange]
    rest: DamagedRange | None
    """What lies behind the end and is no record."""


def walk_range(file: MappedFile, start: int, stop: int, check_crc: bool, count: Count) -> FileWalk:
    """Walks the records of a file that begin from position `start` on and before `stop`."""
    base, position, end, newest = file.from_offset, start, start, 0
    damage: list[DamagedRange] = []
    broken: tuple[int, str] | None = None
    while position < stop:
        piece_end = min(position + _PIECE, stop)
        reached, code, timestamp = kernels.find_valid_end(file.map.view, base, position, piece_end, check_crc)
        if code == Reason.BLANK:
            reached = file.size
        if reached > position:
            if broken is not None:
                damage.append(_range(base, broken, position))
                broken = None
            end = reached
        newest = timestamp or newest
        count(reached - position)
        position = reached
        if code not in (Reason.BLANK, Reason.STOP):
            broken = broken or (position, MISSING if is_stand_in(file) else Reason(code).name)
            after = next_valid(file, position, stop)
            count(after - position)
            position = after
    return FileWalk(end, newest, damage, None if broken is None else _range(base, broken, stop))


def _range(base: int, broken: tuple[int, str], end: int) -> DamagedRange:
    return DamagedRange(base + broken[0], end - broken[0], broken[1])


def next_valid(file: MappedFile, position: int, stop: int) -> int:
    """Where the next valid record or filler begins, `stop` if none does. Holes are not read."""
    for begin, end in file.map.written_ranges(position + 1):
        begin = max(begin - _HEADER, position + 1)  # the first bytes of a size may be zeros at the end of a hole
        found = kernels.find_record(file.map.view, file.from_offset, begin, min(end, stop), True)
        if found >= 0:
            return found
        if end >= stop:
            break
    return stop


def walk_files(
    files: Sequence[MappedFile], check_crc: bool, count: Count, begun: Walked | None = None
) -> Iterator[Walked]:
    """Walks whole files; after each one says what was found so far, beginning with what was found before."""
    found = begun or Walked(files[0].from_offset, files[0].from_offset, 0)

    def walk(file: MappedFile) -> FileWalk:
        return walk_range(file, 0, file.size, check_crc, count)

    if sum(file.size for file in files) < _WORTH_THREADS:
        for file in files:
            yield (found := _joined(found, file, walk(file)))
        return
    with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "penstock-walk") as pool:
        for file, result in zip(files, pool.map(walk, files), strict=True):
            yield (found := _joined(found, file, result))


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


def still_damaged(log: MappedFileQueue, known: DamagedRange) -> list[DamagedRange]:
    """What of a known range holds no valid record even now; it lies in one file."""
    file = log.find(known.physical_offset)
    if file is None:
        return []
    begin = known.physical_offset - file.from_offset
    found = walk_range(file, begin, min(begin + known.size, file.size), True, lambda walked: None)
    rest = () if found.rest is None else (found.rest,)
    return [msgspec.structs.replace(each, reason=known.reason) for each in (*found.damage, *rest)]


def torn_records(file: MappedFile, damage: DamagedRange) -> Iterator[tuple[int, int]]:
    """(begin, end) in the file of what would pass for a record inside a damaged range."""
    base, view = file.from_offset, file.map.view
    position, stop = damage.physical_offset - base, damage.end - base
    while (begin := kernels.find_record(view, base, position, stop, True)) >= 0:
        position = begin + int.from_bytes(view[begin : begin + 4], "big")
        yield begin, position
