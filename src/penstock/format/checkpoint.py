"""The checkpoint file: the store timestamps (epoch ms) up to which log, queues and index are flushed.

OFFSET  SIZE  DESCRIPTION
0       8     physicMsgTimestamp
8       8     logicsMsgTimestamp
16      8     indexMsgTimestamp
24      4072  zero in 4.9; 5.x stores two offsets here. Penstock keeps these bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.errors import CorruptData

CHECKPOINT_SIZE: Final = 4096
_TIMESTAMPS = struct.Struct(">qqq")
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
