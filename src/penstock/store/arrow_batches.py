"""Reads pages of a queue or of the log as Arrow record batches. Needs pyarrow.

A page ends at the end of a log file or queue file at the latest. A record is skipped if it is damaged, or if its header
does not name the queue and queue offset of its unit; the page continues after it. `ArrowReader` keeps no state between
pages. It works on an open store or on a read-only view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from penstock.format import kernels
from penstock.format.arrow_rows import rows_to_batch
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernel_row_types import ROW, Reason
from penstock.format.kernels import Buffer, Ints, Longs, Rows
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.format.scan import next_valid
from penstock.store.message import ArrowPage, GetStatus, LogPage, Page

if TYPE_CHECKING:  # a reader of files in a worker needs no store
    from penstock.store.consume_queue import ReadableQueue
    from penstock.store.files.mapped_file import MappedFile

_MIN_UNITS_EXAMINED: Final = 800
_MAX_BYTES: Final = 512 << 20  # column offsets have 32 bits, and text can grow to three times its size
T = TypeVar("T")


class ReadableFiles(Protocol):
    """Files of one size that can be found by offset."""

    @property
    def file_size(self) -> int: ...

    def find(self, offset: int) -> MappedFile | None: ...


class ReadableLog(Protocol):
    """A commit log to read: the `CommitLog` of an open store, or a read-only view."""

    @property
    def queue(self) -> ReadableFiles: ...

    @property
    def min_offset(self) -> int: ...

    @property
    def confirmed_offset(self) -> int: ...

    def roll_next(self, offset: int) -> int: ...


class ArrowReader:
    """A reader of pages that all have the columns of `schema`."""

    def __init__(self, commit_log: ReadableLog, schema: pa.Schema, *, verify_crc: bool) -> None:
        self._log = commit_log
        self._schema = schema
        self._verify_crc = verify_crc

    def empty_batch(self) -> pa.RecordBatch:
        return rows_to_batch(b"", np.empty(0, np.int64), np.empty(0, ROW), self._schema)

    # -- a queue ---------------------------------------------------------------------------------------------

    def read_page(
        self, queue: ReadableQueue | None, status_page: Page, offset: int, max_messages: int, max_bytes: int
    ) -> ArrowPage:
        """Returns the messages from `offset` on. `status_page` is the result of a get of 0 messages at `offset`."""
        if status_page.status is GetStatus.NO_MATCHED_MESSAGE and queue is not None and max_messages > 0:
            return self.read_queue(queue, offset, max_messages, max_bytes)
        lowest, highest = status_page.min_offset, status_page.max_offset
        return ArrowPage(status_page.status, status_page.next_begin_offset, lowest, highest, self.empty_batch())

    def read_queue(self, queue: ReadableQueue, offset: int, max_messages: int, max_bytes: int) -> ArrowPage:
        """Returns the messages from `offset` on. The caller must check that `offset` lies within the queue."""
        lowest, highest = queue.min_offset, queue.max_offset
        units = queue.page(offset, max(max_messages, _MIN_UNITS_EXAMINED))
        if units is None:
            next_offset = offset + queue.units_in_file - offset % queue.units_in_file
            return ArrowPage(GetStatus.OFFSET_FOUND_NULL, next_offset, lowest, highest, self.empty_batch())
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int32)
        live = np.flatnonzero((sizes != NO_RECORD_SIZE) & (offsets >= self._log.min_offset))
        taken = live[: min(max_messages, self._fitting(offsets[live], sizes[live], max_bytes))]
        next_offset = offset + (int(live[len(taken)]) if len(taken) < len(live) else len(units))
        numbers = offset + taken
        batch, reasons = self._records(queue, offsets[taken], sizes[taken], numbers)
        status = GetStatus.FOUND if batch.num_rows else GetStatus.MESSAGE_WAS_REMOVING
        damaged = numbers[(reasons != Reason.STOP) & (reasons != Reason.UNWRITTEN)].tolist()
        missing = numbers[reasons == Reason.UNWRITTEN].tolist()
        record_bytes = int(sizes[taken][reasons == Reason.STOP].sum(dtype=np.int64))
        return ArrowPage(status, next_offset, lowest, highest, batch, tuple(damaged), tuple(missing), record_bytes)

    def _fitting(self, offsets: Longs, sizes: Ints, max_bytes: int) -> int:
        """Returns how many units fit a page: within the first unit's log file and `max_bytes`, but at least one."""
        if not len(offsets):
            return 0
        files = offsets // self._log.queue.file_size
        elsewhere = files != files[0]
        same_file = int(elsewhere.argmax()) if elsewhere.any() else len(files)
        ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
        return min(same_file, max(1, int(np.searchsorted(ends, min(max_bytes, _MAX_BYTES), "right"))))

    def _records(
        self, queue: ReadableQueue, offsets: Longs, sizes: Ints, numbers: Longs
    ) -> tuple[pa.RecordBatch, Ints]:
        """Returns the records that the units point to, all in one log file, and a Reason per unit (STOP: valid)."""
        file = self._log.queue.find(int(offsets[0])) if len(offsets) else None
        if file is None or not file.acquire():
            return self.empty_batch(), np.full(len(offsets), Reason.UNWRITTEN, np.int32)
        try:
            sizes = np.where(sizes > file.readable, np.int32(0), sizes)  # no valid unit has such a size
            records = pa.allocate_buffer(int(np.maximum(sizes, 0).sum(dtype=np.int64)))
            rows, reasons = kernels.unit_rows(
                file.map.view,
                file.from_offset,
                file.readable,
                offsets,
                sizes,
                numbers,
                queue.topic.encode(),
                queue.queue_id,
                self._verify_crc,
                records,
            )
        finally:
            file.release()
        lengths = rows["size"].astype(np.int64)
        return rows_to_batch(records, np.cumsum(lengths) - lengths, rows, self._schema), reasons

    # -- the log ---------------------------------------------------------------------------------------------

    def read_log(self, start_offset: int, max_messages: int, max_bytes: int) -> LogPage:
        """Returns the next records at or after `start_offset`, and the physical offset after them."""

        def batch(data: Buffer, starts: Longs, rows: Rows) -> pa.RecordBatch:
            return rows_to_batch(data, starts, rows, self._schema)

        page, at = self.use_log(start_offset, max_messages, max_bytes, batch)
        return LogPage(self.empty_batch() if page is None else page, at)

    def use_log(
        self, start_offset: int, max_messages: int, max_bytes: int, use: Callable[[Buffer, Longs, Rows], T]
    ) -> tuple[T | None, int]:
        """Calls `use` with the next records. Returns its result, None if there are none, and the offset after them.

        `use` gets the log file's bytes, the positions of the records in these bytes, and their rows. It must not keep
        the bytes.
        """
        log, end = self._log, self._log.confirmed_offset
        max_rows, byte_limit = max(1, max_messages), max(1, min(max_bytes, _MAX_BYTES))
        at = max(start_offset, log.min_offset, 0)
        while at < end:
            file = log.queue.find(at)
            if file is None or not file.acquire():
                at = max(log.min_offset, log.roll_next(at))
                continue
            try:
                stop = min(end - file.from_offset, file.readable)
                rows, reached = self._walk(file, at - file.from_offset, stop, max_rows, byte_limit)
                at = file.from_offset + reached
                if len(rows):
                    return use(file.map.view, rows["physical_offset"] - file.from_offset, rows), at
            finally:
                file.release()
        return None, end

    def read_at(self, offsets: Sequence[int]) -> pa.RecordBatch:
        """Returns the records at these physical offsets of one log file. Omits offsets without a valid record."""
        file = self._log.queue.find(offsets[0]) if len(offsets) else None
        if file is None or not file.acquire():
            return self.empty_batch()
        try:
            rows, count = np.empty(len(offsets), ROW), 0
            for offset in offsets:
                at = offset - file.from_offset
                filled, _, _ = kernels.fill_rows(
                    file.map.view, file.from_offset, at, at + 1, self._verify_crc, rows[count : count + 1]
                )
                count += filled
            starts = rows["physical_offset"][:count] - file.from_offset
            return rows_to_batch(file.map.view, starts, rows[:count], self._schema)
        finally:
            file.release()

    def _walk(self, file: MappedFile, start: int, stop: int, max_rows: int, max_bytes: int) -> tuple[Rows, int]:
        """Returns the records of a file within the limits, and the position at which to continue.

        Walks by itself, to fill rows in Arrow's memory, and to end a page before the record that exceeds `max_bytes`.
        """
        data, base = file.map.view, file.from_offset
        limit = min(stop, start + max_bytes)
        # From Arrow's pool, which reuses memory; numpy would get fresh pages from the system each time.
        rows_needed = min(max_rows, (limit - start) // MIN_RECORD_SIZE + 1)
        buffer = np.frombuffer(pa.allocate_buffer(ROW.itemsize * rows_needed), ROW)
        count, reached, reason = kernels.fill_rows(data, base, start, limit, self._verify_crc, buffer)
        rows = buffer[:count]
        if len(rows) > 1 and reached > limit:
            reached -= int(rows["size"][-1])
            return rows[:-1], reached
        if reason == Reason.BLANK:
            return rows, file.size
        if not len(rows):
            next_record = next_valid(data, base, start + 1, stop)
            reached = stop if next_record < 0 else next_record
        return rows, reached
