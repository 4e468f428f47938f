"""What the walk over a log yields, one ROW per record and the Reason why it stopped; and PUT_ROW, the way back."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

_LONGS = (
    "physical_offset",
    "queue_offset",
    "store_timestamp",
    "born_timestamp",
    "prepared_transaction_offset",
    "tags_code",  # 0 until tag_codes() fills it
)
_INTS = (
    "size",
    "body_crc",
    "queue_id",
    "flag",
    "sys_flag",
    "reconsume_times",
    "topic_id",  # -1 where no topic table was given
    "body_at",  # the _at fields count from the record's first byte
    "body_length",
    "topic_at",
    "topic_length",
    "properties_at",
    "properties_length",
    "reserved",
)

# The compiled kernels have the same structs: keep the order.
ROW: Final = np.dtype([(name, np.int64) for name in _LONGS] + [(name, np.int32) for name in _INTS])

_PUT_LONGS = (
    "body_at",  # both _at fields count from the start of the batch's own bytes
    "properties_at",
    "born_timestamp",  # 0: the store time
    "queue_offset",  # these two are filled in when the row is written
    "physical_offset",
)
_PUT_INTS = ("body_length", "properties_length", "topic", "queue_id", "queue", "flag", "size", "reserved")

PUT_ROW: Final = np.dtype([(name, np.int64) for name in _PUT_LONGS] + [(name, np.int32) for name in _PUT_INTS])


class Reason(IntEnum):
    """Why a walk stopped at a position."""

    STOP = 0  # the next record would start at or after the end of the range
    FULL = 1  # as many rows as were asked for
    BLANK = 2  # a filler that reaches exactly to the end of the file
    UNWRITTEN = 3  # the magic, or a part of it, is zero: nothing was written here yet
    BAD_MAGIC = 4
    BAD_SIZE = 5  # below the minimum, or a filler that does not reach the end of the file
    BEYOND_END = 6  # runs past the end of the file
    BAD_POSITION = 7  # the record says that it lies elsewhere
    BAD_LENGTHS = 8  # the lengths of the parts do not add up to the size
    BAD_CRC = 9
