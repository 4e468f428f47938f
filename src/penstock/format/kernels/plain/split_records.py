"""A pulled page: concatenated records, taken apart for a consumer."""

from __future__ import annotations

from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernel_row_types import Reason
from penstock.format.kernels.parameter_types import Buffer
from penstock.format.kernels.plain.record import check_record, view_of, walk
from penstock.format.record_layout import physical_offset_of
from penstock.format.sys_flag import COMPRESSED

SplitRecord = tuple[bytes, str, int, int, bytes | None]


def split_records(data: Buffer) -> tuple[list[SplitRecord], int, int]:
    """Returns the records in `data`, which is nothing but records, the position where the walk ended, and its Reason.

    A record is (its bytes, topic, queue offset, reconsume times, body), with None for a body that is compressed.
    The walk ends at the end of `data` with STOP, or at the first record that is not valid. Checks a record's lengths,
    but not its position or CRC.
    """
    whole, at = view_of(data), 0
    found: list[SplitRecord] = []
    while at < len(whole):
        view = whole[at:]
        if len(view) < MIN_RECORD_SIZE:
            return found, at, int(check_record(view, 0, 0, False))
        rows, _, reason = walk(view, physical_offset_of(view), 0, 1, False, None, 1)
        if not len(rows):
            return found, at, int(reason)
        row = {name: int(rows[0][name]) for name in rows.dtype.names or ()}
        topic = bytes(view[row["topic_at"] : row["topic_at"] + row["topic_length"]])
        body = bytes(view[row["body_at"] : row["body_at"] + row["body_length"]])
        found.append(
            (
                bytes(view[: row["size"]]),
                topic.decode("utf-8", "surrogateescape"),
                row["queue_offset"],
                row["reconsume_times"],
                None if row["sys_flag"] & COMPRESSED else body,
            )
        )
        at += row["size"]
    return found, at, int(Reason.STOP)
