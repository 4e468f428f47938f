"""The unit of a consume queue: a record's position, its size, and the hash of its tag.

    OFFSET  SIZE  DESCRIPTION
    0       8     physicalOffset
    8       4     size
    12      8     tagsCode: the sign-extended hash of the tag; the deliver time in the schedule topic;
                  -2**31 - 1 or less: an address in the queue's extension file

Unit i of a queue is at byte 20 * i of the queue's files. Nothing is checksummed; units can be rebuilt from the log.
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
"""The size in a unit that only reserves the queue offset of a message that is not in the log."""

PRE_BLANK: Final = _UNIT.pack(0, NO_RECORD_SIZE, 0)  # pads a queue's first file up to the first known unit


def pack_unit(offset: int, size: int, tags_code: int) -> bytes:
    """The 20 bytes of a unit."""
    return _UNIT.pack(offset, size, tags_code)


def unpack_unit(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int]:
    """(offset, size, tags_code)."""
    return _UNIT.unpack_from(data, at)


def copy_units(data: memoryview, position: int, size: int) -> Units:
    """A copy of the complete units in data[position:position + size].

    Copies the bytes, not the array: numpy copies records one by one, which is fifteen times slower.
    """
    return np.frombuffer(bytearray(data[position : position + size - size % UNIT_SIZE]), UNIT)


def is_ext_address(tags_code: int) -> bool:
    """Whether tagsCode is an address in the extension file rather than a tag's hash."""
    return tags_code <= MAX_EXT_ADDRESS
