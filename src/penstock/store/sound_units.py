"""Which units of a consume queue can be believed, by what they say themselves.

Nothing in a unit is checksummed: a sound one has a possible position and size, and points behind the record of the one
before it. Functions on arrays, without state; whether the records are there is for others to ask.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT, UNIT_SIZE, Units
from penstock.store.mapped_file import MappedFile

UNITS_AT_ONCE: Final = 4096
"""How many are looked at in one go: few enough to stay in the processor's cache."""
_FILES_LOOKED_THROUGH: Final = 3
_MAX_OFFSET: Final = 2**62


def sound_end(files: tuple[MappedFile, ...]) -> int:
    """Where in a queue's files the sound units end, as a position in all of them.

    Of the last three files every unit is looked at, of those before only the first and the last one.
    """
    last: Units | None = None
    for number, file in enumerate(files):
        written = next(iter(file.map.written_ranges(0)), (0, 0))
        size = 0 if written[0] else min(written[1] + UNIT_SIZE - 1, file.size)
        units = view_units(file, 0, size)
        full = len(units) * UNIT_SIZE == file.size
        if number < len(files) - _FILES_LOOKED_THROUGH:
            full = full and count_sound(units[:: max(len(units) - 1, 1)].copy(), last) == min(len(units), 2)
            count = len(units) if full else 0
        else:
            quick = max(_count_in_order(units, last) - 1, 0)
            rest = units[quick:]
            count = quick + count_sound(rest[: _count_whole(rest)], None if quick else last)
            del rest
        last = _last_real(units[:count], last)
        del units
        if count * UNIT_SIZE < file.size:
            return file.from_offset + count * UNIT_SIZE
    return files[-1].from_offset + files[-1].size if files else 0


def view_units(file: MappedFile, position: int, size: int) -> Units:
    """The units of part of a file, in place: drop the view before the file can go."""
    return np.frombuffer(file.map.view, UNIT, size // UNIT_SIZE, position)


def is_real(units: Units) -> npt.NDArray[np.bool_]:
    """Which units can point to a record."""
    sizes = units["size"]
    return np.asarray((sizes != NO_RECORD_SIZE) & (sizes > 0) & (units["offset"] >= 0))


def _count_in_order(units: Units, before: Units | None) -> int:
    """How many units surely point to a record behind that of the unit before; quick, and often fewer than are sound."""
    end = 0 if before is None else int(before["offset"][0]) + int(before["size"][0])
    for start in range(0, len(units), UNITS_AT_ONCE):
        part = units[start : start + UNITS_AT_ONCE]
        offsets, sizes = part["offset"].astype(np.int64), part["size"].astype(np.int64)
        ends = offsets + sizes
        whole = sizes.min() > 0 and sizes.max() != NO_RECORD_SIZE and offsets.max() <= _MAX_OFFSET
        if not whole or offsets[0] < end or not (offsets[1:] >= ends[:-1]).all():
            return start
        end = int(ends[-1])
    return len(units)


def _count_whole(units: Units) -> int:
    """How many units there are before the first that can be none, as in the free space of a file."""
    for start in range(0, len(units), UNITS_AT_ONCE):
        bad = np.flatnonzero(_is_no_unit(units[start : start + UNITS_AT_ONCE]))
        if len(bad):
            return start + int(bad[0])
    return len(units)


def _is_no_unit(units: Units) -> npt.NDArray[np.bool_]:
    offsets = units["offset"]
    return np.asarray((offsets < 0) | (offsets > _MAX_OFFSET) | (units["size"] <= 0))


def _last_real(units: Units, otherwise: Units | None) -> Units | None:
    """The last unit that points to a record."""
    for end in range(len(units), 0, -UNITS_AT_ONCE):
        part = units[max(end - UNITS_AT_ONCE, 0) : end]
        real = np.flatnonzero(part["size"] != NO_RECORD_SIZE)
        if len(real):
            return part[real[-1:]].copy()
    return otherwise


def count_sound(units: Units, before: Units | None) -> int:
    """How many units are whole and in the order of the log; `before` holds the last one of the file before.

    A unit points to a record behind that of the unit before it, or, as both lost theirs, to the same placeholder.
    Where that is not so, one of the two is wrong, and neither counts.
    """
    offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
    bad = np.flatnonzero(_is_no_unit(units))
    count = int(bad[0]) if len(bad) else len(units)
    real = np.flatnonzero(sizes[:count] != NO_RECORD_SIZE)
    if before is not None:
        offsets, sizes = np.append(offsets, before["offset"]), np.append(sizes, before["size"])
        real = np.append(len(units), real)
    offsets, sizes = offsets[real], sizes[real]
    in_order = offsets[1:] >= offsets[:-1] + sizes[:-1]
    same = (offsets[1:] == offsets[:-1]) & (sizes[1:] == sizes[:-1])
    wrong = np.flatnonzero(~(in_order | same))
    if not len(wrong):
        return count
    first = int(real[wrong[0]])
    return first if first < len(units) else 0
