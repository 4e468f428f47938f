"""The unit of a consume queue: a record's position, its size, and the hash of its tag.

    OFFSET  SIZE  DESCRIPTION
    0       8     physicalOffset
    8       4     size
    12      8     tagsCode: the sign-extended hash of the tag; in the schedule topic, the deliver time in ms;
                  if -2**31 - 1 or less, an address in the queue's extension file

Unit i of a queue is at byte 20 * i of the queue's files. Units have no checksum, but can be rebuilt from the log.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

UNIT_SIZE: Final = 20
UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

Units = npt.NDArray[np.void]
"""An array of `UNIT`."""

_UNIT = struct.Struct(">qiq")
MAX_EXT_ADDRESS: Final = -(2**31) - 1

NO_RECORD_SIZE: Final = 0x7FFFFFFF
"""The size in a unit whose message is not in the log. Such a unit only reserves the queue offset."""

PRE_BLANK: Final = _UNIT.pack(0, NO_RECORD_SIZE, 0)  # pads a queue's first file up to the first known unit


def pack_unit(offset: int, size: int, tags_code: int) -> bytes:
    """Returns the 20 bytes of a unit."""
    return _UNIT.pack(offset, size, tags_code)


def unpack_unit(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """Returns the physical offset, size and tagsCode of the unit at data[at]."""
    return _UNIT.unpack_from(data, at)


def copy_units(data: memoryview, position: int, size: int) -> Units:
    """Returns a copy of the complete units in data[position:position + size].

    Copies bytes, not an array, because numpy copies the units of an array one by one, fifteen times slower.
    """
    return np.frombuffer(bytearray(data[position : position + size - size % UNIT_SIZE]), UNIT)


def is_ext_address(tags_code: int) -> bool:
    """Returns whether a tagsCode is an address in the extension file."""
    return tags_code <= MAX_EXT_ADDRESS
