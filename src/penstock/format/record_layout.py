"""Where the fields of a CommitLog record are. Readers and writers of single fields, and the plain kernels, use it.

    OFFSET       SIZE     DESCRIPTION
    0            4        totalSize
    4            4        magic
    8            4        bodyCRC: CRC-32 of the body as stored, top bit cleared
    12           4        queueId
    16           4        flag: set by the user
    20           8        queueOffset
    28           8        physicalOffset
    36           4        sysFlag
    40           8        bornTimestamp
    48           8 or 20  bornHost (20: IPv6, by sysFlag)
    …            8        storeTimestamp
    …            8 or 20  storeHost
    …            4        reconsumeTimes
    …            8        preparedTransactionOffset
    …            4 + n    body
    …            1 + n    topic (V2: 2 + n)
    …            2 + n    properties

bodyCRC covers the body only: not the header, the topic or the properties. A record that ends with the property
RECORD_CRC has a CRC of everything before that property.

The functions take the position `at` of a record in `data`. They check nothing, and raise struct.error if the bytes of a
field are not all there. To check a record, use the kernels.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.format.constants import BLANK_MAGIC, MESSAGE_MAGIC_V2, MIN_RECORD_SIZE, MIN_RECORD_SIZE_V2
from penstock.format.sys_flag import host_sizes

HEAD: Final = struct.Struct(">iIiiiqqiq")
"""All fields before the born host."""
MIDDLE: Final = struct.Struct(">iqi")
"""Reconsume times, prepared transaction offset, length of the body; they follow the store host."""
LONG: Final = struct.Struct(">q")
BORN_HOST_AT: Final = HEAD.size
PHYSICAL_OFFSET_AT: Final = 28
SIZE_AND_MAGIC: Final = struct.Struct(">iI")

Bytes = bytes | bytearray | memoryview


class RecordHead(NamedTuple):
    """The fields before the born host."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int


def head_of(data: Bytes, at: int = 0) -> RecordHead:
    return RecordHead._make(HEAD.unpack_from(data, at))


def size_and_magic(data: Bytes, at: int = 0) -> tuple[int, int]:
    return SIZE_AND_MAGIC.unpack_from(data, at)


def is_filler(data: Bytes, at: int = 0) -> bool:
    """Whether the bytes have the magic of a filler."""
    return size_and_magic(data, at)[1] == BLANK_MAGIC


def physical_offset_of(data: Bytes, at: int = 0) -> int:
    (offset,) = LONG.unpack_from(data, at + PHYSICAL_OFFSET_AT)
    return int(offset)


def store_timestamp_at(sys_flag: int) -> int:
    """Returns the position of the store timestamp in a record with this sysFlag."""
    return BORN_HOST_AT + host_sizes(sys_flag)[0]


def body_length_at(sys_flag: int) -> int:
    """Returns the position of the body's length in a record with this sysFlag."""
    return store_timestamp_at(sys_flag) + LONG.size + host_sizes(sys_flag)[1] + MIDDLE.size - 4


def belongs_to(record: Bytes, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether the header of a valid record has this topic, queue id and queue offset."""
    head = head_of(record)
    if head.queue_id != queue_id or head.queue_offset != queue_offset:
        return False
    at = body_length_at(head.sys_flag)
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    digits = 2 if head.magic == MESSAGE_MAGIC_V2 else 1
    length = int.from_bytes(record[at : at + digits], "big")
    return record[at + digits : at + digits + length] == topic


def size_of_parts(data: Bytes, at: int) -> int | None:
    """Returns the record size that the lengths of the parts add up to; None if they are negative or exceed the data."""
    head = head_of(data, at)
    size, digits = (MIN_RECORD_SIZE_V2, 2) if head.magic == MESSAGE_MAGIC_V2 else (MIN_RECORD_SIZE, 1)
    size += sum(host_sizes(head.sys_flag)) - 16
    position = at + body_length_at(head.sys_flag)
    for width in (4, digits, 2):
        if position > len(data) - width:
            return None
        part = int.from_bytes(data[position : position + width], "big", signed=True)
        if part < 0:
            return None
        size, position = size + part, position + width + part
    return size
