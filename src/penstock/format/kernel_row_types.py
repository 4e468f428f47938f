"""The row types of the kernels. A walk over a log returns ROWs and a Reason; a put takes PUT_ROWs."""

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
    "topic_id",  # -1 without a topic table
    "body_at",  # the _at fields are relative to the record's first byte
    "body_length",
    "topic_at",
    "topic_length",
    "properties_at",
    "properties_length",
    "reserved",
)

# The compiled kernels have the same structs in the same order.
ROW: Final = np.dtype([(name, np.int64) for name in _LONGS] + [(name, np.int32) for name in _INTS])

_PUT_LONGS = (
    "body_at",  # both _at fields are relative to the start of the batch's bytes
    "properties_at",
    "born_timestamp",  # 0: the store time
    "queue_offset",  # these two are set when the row is written
    "physical_offset",
)
_PUT_INTS = ("body_length", "properties_length", "topic", "queue_id", "queue", "flag", "size", "reserved")

PUT_ROW: Final = np.dtype([(name, np.int64) for name in _PUT_LONGS] + [(name, np.int32) for name in _PUT_INTS])


class Reason(IntEnum):
    """The reason why a walk over a log stopped at a position."""

    STOP = 0  # the next record would start at or after the end of the range
    FULL = 1  # the requested number of rows is reached
    BLANK = 2  # a filler that reaches exactly to the end of the file
    UNWRITTEN = 3  # the magic, or part of it, is zero: not written yet
    BAD_MAGIC = 4
    BAD_SIZE = 5  # below the minimum, or a filler that does not reach the end of the file
    BEYOND_END = 6  # runs past the end of the file
    BAD_POSITION = 7  # the record has another physical offset
    BAD_LENGTHS = 8  # the lengths of the parts do not add up to the size
    BAD_CRC = 9
