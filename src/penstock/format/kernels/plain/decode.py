"""Records to values: what a page or a query found becomes `Record`s. Twin of decode.pxi. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.errors import CorruptData
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.hosts import decode_host
from penstock.format.kernel_row_types import Reason
from penstock.format.kernels.parameter_types import Buffer, Longs
from penstock.format.kernels.plain.record import check_record, view_of, walk, without_record_crc
from penstock.format.properties import decode_properties
from penstock.format.record_layout import BORN_HOST_AT, LONG, physical_offset_of, store_timestamp_at
from penstock.format.sys_flag import host_sizes

T = TypeVar("T")


def decode_records(data: Buffer, at: int, max_records: int, record_type: Callable[..., T]) -> list[T]:
    """Returns the first `max_records` records of those that lie one after the other from data[at] to its end.

    record_type   called with the fields of `Record`, in its order

    Checks each record's lengths, but not its position or CRC. Raises CorruptData.
    """
    view = view_of(data)
    if not 0 <= at <= len(view):
        raise ValueError(f"{at} is not a position")
    records: list[T] = []
    while at < len(view) and len(records) < max_records:
        fields = _fields(view[at:])
        if isinstance(fields, Reason):
            raise CorruptData(f"not a valid record: {fields.name}", offset=at)
        records.append(record_type(*fields))
        at += int.from_bytes(view[at : at + 4], "big")
    return records


def decode_at(
    offsets: Longs,
    logs: Sequence[Buffer],
    log_base: int,
    file_size: int,
    log_end: int,
    record_type: Callable[..., T],
) -> list[T | None]:
    """Returns the records at these physical offsets, None for each offset at which no valid record starts.

    offsets          int64 numbers
    logs             the files of the log in order, each of `file_size` bytes; the first starts at `log_base`
    log_end          physical offset up to which the log may be read
    record_type      called with the fields of `Record`, in its order

    Checks each record's position and lengths, but not its CRC. Loads what is not in memory without the GIL.
    """
    if file_size <= 0 or log_base < 0:
        raise ValueError("a log file has bytes")
    records: list[T | None] = []
    for offset in offsets.tolist():
        place, at = divmod(offset - log_base, file_size)
        record = None
        if log_base <= offset < log_end and place < len(logs):
            base = log_base + place * file_size
            view = view_of(logs[place])[: log_end - base]
            if at < len(view) and check_record(view, at, base, False) == Reason.STOP:
                record = decode_records(view, at, 1, record_type)[0]
        records.append(record)
    return records


def _fields(view: memoryview) -> tuple[Any, ...] | Reason:
    """Returns the fields of the record at the start of `view`, in the order of `Record`; a Reason if there is none."""
    if len(view) < MIN_RECORD_SIZE:
        return Reason(check_record(view, 0, 0, False))
    rows, _, reason = walk(view, physical_offset_of(view), 0, 1, False, None, 1)
    if not len(rows):
        return Reason(reason)
    row = {name: int(rows[0][name]) for name in rows.dtype.names or ()}
    born_size, store_size = host_sizes(row["sys_flag"])
    store_host_at = store_timestamp_at(row["sys_flag"]) + LONG.size

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
        decode_host(bytes(view[BORN_HOST_AT : BORN_HOST_AT + born_size])),
        row["store_timestamp"],
        decode_host(bytes(view[store_host_at : store_host_at + store_size])),
        row["reconsume_times"],
        row["prepared_transaction_offset"],
        decode_properties(without_record_crc(part("properties"))),
        part("body"),
        row["body_crc"],
    )
