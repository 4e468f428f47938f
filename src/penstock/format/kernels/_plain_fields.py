"""One record as Python values. The plain twin of `_fields.pxi`."""

from __future__ import annotations

import struct
from typing import Any

from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernels._plain_log import check_record, view_of, walk
from penstock.format.kernels._types import Buffer
from penstock.format.properties import decode_properties
from penstock.format.rows import Reason
from penstock.format.sys_flag import host_sizes

_POSITION = struct.Struct(">q")
_BORN_HOST_AT = 48


def record_fields(data: Buffer, at: int) -> tuple[Any, ...] | int:
    """The fields of the record at data[at] in the order of `Record`, hosts as bytes; a Reason's number if none is.

    Checks the record's shape, neither its position nor its CRC.
    """
    whole = view_of(data)
    if not 0 <= at <= len(whole):
        raise ValueError(f"{at} is not a position")
    view = whole[at:]
    if len(view) < MIN_RECORD_SIZE:
        return int(check_record(view, 0, 0, False)) if view else Reason.BEYOND_END
    (physical_offset,) = _POSITION.unpack_from(view, 28)
    rows, _, reason = walk(view, physical_offset, 0, 1, False, None, 1)
    if not len(rows):
        return reason
    row = {name: int(rows[0][name]) for name in rows.dtype.names or ()}
    born_size, store_size = host_sizes(row["sys_flag"])
    stored_at = _BORN_HOST_AT + born_size + 8

    def part(name: str) -> bytes:
        return bytes(view[row[f"{name}_at"] : row[f"{name}_at"] + row[f"{name}_length"]])

    return (
        part("topic").decode("utf-8", "surrogateescape"),
        row["queue_id"],
        row["queue_offset"],
        row["physical_offset"],
        row["size"],
        row["flag"],
        row["sys_flag"],
        row["born_timestamp"],
        bytes(view[_BORN_HOST_AT : _BORN_HOST_AT + born_size]),
        row["store_timestamp"],
        bytes(view[stored_at : stored_at + store_size]),
        row["reconsume_times"],
        row["prepared_transaction_offset"],
        decode_properties(part("properties")),
        part("body"),
        row["body_crc"],
    )
