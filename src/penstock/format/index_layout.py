"""The index file: a header, hash slots, and the items of each slot, linked from newest to oldest.

    OFFSET              SIZE       DESCRIPTION
    0                   8          beginTimestamp: store timestamp of the first item
    8                   8          endTimestamp: store timestamp of the last item
    16                  8          beginPhyOffset
    24                  8          endPhyOffset
    32                  4          hashSlotCount: slots in use
    36                  4          indexCount: the number of the next item; 0 or less reads as 1
    40                  4 * slots  the number of the slot's newest item, 0 if empty
    40 + 4 * slots      20 * items keyHash 4, phyOffset 8, seconds since beginTimestamp 4, previous item 4

Item 0 is never used. The file does not store its geometry (the numbers of slots and items). It has no checksum, but can
be rebuilt from the log. Different keys may have the same hash, so a lookup must compare the key itself.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

from penstock.format import kernels

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ITEM_SIZE: Final = 20
DEFAULT_SLOTS: Final = 5_000_000
DEFAULT_ITEMS: Final = 20_000_000
_HEADER = struct.Struct(">qqqqii")
COUNT: Final = struct.Struct(">i")
COUNT_AT: Final = 36
"""Position of the header's `index_count`, for readers that need nothing else."""
_ITEM = struct.Struct(">iqii")


class IndexHeader(msgspec.Struct, frozen=True):
    """The fields of the header, as stored."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 0

    def pack(self) -> bytes:
        """Returns the 40 bytes of the header."""
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.hash_slot_count,
            self.index_count,
        )

    @classmethod
    def unpack(cls, data: kernels.Buffer) -> IndexHeader:
        """Reads the first 40 bytes of a file."""
        return cls(*_HEADER.unpack(kernels.view_of(data)[:HEADER_SIZE]))

    def with_end(self, physical_offset: int, timestamp: int) -> IndexHeader:
        """Returns the header with another last item: its record's physical offset and store timestamp."""
        return msgspec.structs.replace(self, end_physical_offset=physical_offset, end_timestamp=timestamp)


class IndexItem(NamedTuple):
    """The index entry for one key of one record. `seconds` counts from beginTimestamp; `previous` is an item number."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


def pack_item(key_hash: int, physical_offset: int, seconds: int, previous: int) -> bytes:
    """Returns the 20 bytes of an item."""
    return _ITEM.pack(key_hash, physical_offset, seconds, previous)


def unpack_item(data: kernels.Buffer, at: int = 0) -> IndexItem:
    """Returns the item at data[at]."""
    return IndexItem(*_ITEM.unpack(kernels.view_of(data)[at : at + ITEM_SIZE]))


class IndexGeometry(NamedTuple):
    """The capacity of an index file in slots and items. Its last item has the number `items` - 1."""

    slots: int = DEFAULT_SLOTS
    items: int = DEFAULT_ITEMS

    @property
    def file_size(self) -> int:
        """The exact size of an index file in bytes."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * self.items

    def slot_of(self, key_hash: int) -> int:
        return key_hash % self.slots

    def slot_position(self, slot: int) -> int:
        """Returns the byte position of a slot in the file."""
        return HEADER_SIZE + SLOT_SIZE * slot

    def item_position(self, number: int) -> int:
        """Returns the byte position of an item in the file."""
        return HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * number


_TAG_TYPE: Final = "T"


def key_hash(topic: str, key: str) -> int:
    """Returns the hash of a key in the index: the absolute value of Java's hashCode of `topic#key`.

    Returns 0 if the hashCode is -2**31, because Java's int has no absolute value of it.
    """
    code = abs(kernels.java_hash(as_java_reads(f"{topic}#{key}")))
    return 0 if code == 2**31 else code


def tag_hash(topic: str, tags: str) -> int:
    """Returns the hash of the item that RocketMQ 5.5 adds for a message with tags. Penstock writes no such items."""
    return key_hash(topic, f"{_TAG_TYPE}#{tags}")


def as_java_reads(text: str) -> str:
    """Converts text decoded with surrogateescape to Java's decoding: invalid UTF-8 becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
