"""The unit of a queue's extension file. A queue unit refers to it by a tagsCode of -2**31 - 1 or less.

Penstock reads extension files, but never writes them.

OFFSET  SIZE  DESCRIPTION
0       2     size of this unit in bytes, at least 20; -1: the file's last unit is before; 0: unwritten
2       8     tagsCode
10      8     msgStoreTime
18      2     bitMapSize
20      n     bitMap: the consumers' filters that the message passed
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.errors import CorruptData
from penstock.format.kernels import Buffer, view_of

_UNIT = struct.Struct(">hqqh")
_SIZE = struct.Struct(">h")
_END_OF_FILE = -1


class ExtUnit(NamedTuple):
    """The extension data of one message."""

    size: int
    tags_code: int
    store_timestamp: int
    bit_map: bytes


def ext_offset(address: int) -> int:
    """Returns the byte offset that an address stands for, counted over all extension files of the queue."""
    return address + 2**63


def decode_ext_unit(data: Buffer, at: int = 0) -> ExtUnit | None:
    """Returns the unit at data[at], or None after the last unit. Raises CorruptData if the sizes are inconsistent."""
    view = view_of(data)
    if len(view) - at < _SIZE.size:
        return None
    (size,) = _SIZE.unpack_from(view, at)
    if size in (_END_OF_FILE, 0):
        return None
    if not _UNIT.size <= size <= len(view) - at:
        raise CorruptData(
            "an extension unit does not fit",
            offset=at,
            expected=f"{_UNIT.size} to {len(view) - at}",
            found=size,
        )
    _, tags_code, store_timestamp, bit_map_size = _UNIT.unpack_from(view, at)
    if _UNIT.size + bit_map_size != size:
        raise CorruptData(
            "an extension unit does not fit its size",
            offset=at,
            expected=size - _UNIT.size,
            found=bit_map_size,
        )
    return ExtUnit(size, tags_code, store_timestamp, bytes(view[at + _UNIT.size : at + size]))
