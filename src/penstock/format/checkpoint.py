"""The checkpoint file: the store timestamps (epoch ms) up to which log, queues and index are flushed.

OFFSET  SIZE  DESCRIPTION
0       8     physicMsgTimestamp
8       8     logicsMsgTimestamp
16      8     indexMsgTimestamp
24      8     zero in 4.9; an offset of 5.x, which Penstock keeps
32      8     confirmPhyOffset, of 5.x: up to where consumers saw the log of a store with epochs; 0 if that is not known
40      4056  zero; Penstock keeps these bytes
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.errors import CorruptData

CHECKPOINT_SIZE: Final = 4096
_TIMESTAMPS = struct.Struct(">qqq")
_CONFIRMED = struct.Struct(">q")
_CONFIRMED_AT = 8
"""Where the offset lies in the bytes after the timestamps."""
_REST_SIZE = CHECKPOINT_SIZE - _TIMESTAMPS.size
_SAFETY_MARGIN = 3_000


class Checkpoint(msgspec.Struct, frozen=True):
    """The three timestamps, in epoch milliseconds, and the bytes after them."""

    physic: int = 0
    logics: int = 0
    index: int = 0
    rest: bytes = bytes(_REST_SIZE)

    @property
    def min_timestamp(self) -> int:
        """The store timestamp up to which records are flushed in the log and in the queues, less a margin of 3 s."""
        return max(0, min(self.physic, self.logics) - _SAFETY_MARGIN)

    @property
    def min_timestamp_index(self) -> int:
        """The store timestamp up to which records are flushed in the log, the queues and the index."""
        return min(self.min_timestamp, self.index)

    @property
    def confirmed(self) -> int:
        """The physical offset up to which consumers saw the log; 0 if that is not known."""
        return max(0, int(_CONFIRMED.unpack_from(self.rest, _CONFIRMED_AT)[0]))

    def with_confirmed(self, offset: int) -> Checkpoint:
        """Returns the checkpoint with another confirmed offset."""
        end = _CONFIRMED_AT + _CONFIRMED.size
        rest = self.rest[:_CONFIRMED_AT] + _CONFIRMED.pack(offset) + self.rest[end:]
        return msgspec.structs.replace(self, rest=rest)

    def pack(self) -> bytes:
        """Returns the 4096 bytes of the file."""
        if len(self.rest) != _REST_SIZE:
            raise ValueError(f"rest must be {_REST_SIZE} bytes, not {len(self.rest)}")
        return _TIMESTAMPS.pack(self.physic, self.logics, self.index) + self.rest

    @classmethod
    def unpack(cls, data: bytes) -> Checkpoint:
        """Returns the checkpoint in the 4096 bytes of the file. Raises CorruptData for another size."""
        if len(data) != CHECKPOINT_SIZE:
            raise CorruptData("the checkpoint has the wrong size", expected=CHECKPOINT_SIZE, found=len(data))
        physic, logics, index = _TIMESTAMPS.unpack_from(data)
        return cls(physic, logics, index, bytes(data[_TIMESTAMPS.size :]))
