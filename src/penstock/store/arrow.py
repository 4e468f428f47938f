"""Pages of a queue or of the log as Arrow record batches. Needs pyarrow.

A page never crosses the end of a log file, nor that of a queue file. What is damaged, or not the message that its
place promises, is passed over, and only that.


Putting Arrow record batches: the columns are planned, then appended in one go. Needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from penstock.errors import BadMessage
from penstock.format import kernels
from penstock.format.arrow_puts import PutBatch
from penstock.format.arrow_rows import rows_to_batch
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.hosts import encode_host
from penstock.format.kernels import Buffer, Ints, Longs, Rows
from penstock.format.put_rows import PutLimits, PutRows, RowRefused, plan_puts
from penstock.format.queue_unit import NO_RECORD_SIZE, Units
from penstock.format.rows import ROW, Reason
from penstock.store.append import Putter
from penstock.store.mapped_file import MappedFile
from penstock.store.message import ArrowPage, ArrowResult, GetStatus, LogPage, Message, Page, PutStatus
from penstock.store.prepare import PutRefused, prepare
from penstock.store.settings import Settings

_LEAST_UNITS_EXAMINED: Final = 800
_MAX_BYTES: Final = 512 << 20  # offsets in the columns have 32 bits, and text can grow to three times its size
T = TypeVar("T")


class Folder(Protocol):
    """Files that cover ranges of offsets."""

    @property
    def file_size(self) -> int: ...

    def find(self, offset: int) -> MappedFile | None: ...


class LogToRead(Protocol):
    """What of a commit log is needed to read it: that of an open store, or a view of its files."""

    @property
    def queue(self) -> Folder: ...

    @property
    def min_offset(self) -> int: ...

    @property
    def confirmed_offset(self) -> int: ...

    def roll_next(self, offset: int) -> int: ...


class QueueToRead(Protocol):
    """What of a consume queue is needed to read its messages."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    @property
    def units_in_file(self) -> int: ...

    def page(self, queue_offset: int, most: int) -> Units | None: ...


class ArrowReader:
    """Reads with one set of columns; keeps nothing between pages."""

    def __init__(self, commit_log: LogToRead, schema: pa.Schema, *, verify_crc: bool) -> None:
        self._log = commit_log
        self._schema = schema
        self._verify_crc = verify_crc

    def nothing(self) -> pa.RecordBatch:
        """A batch without rows."""
        return rows_to_batch(b"", np.empty(0, np.int64), np.empty(0, ROW), self._schema)

    # -- a queue ---------------------------------------------------------------------------------------------

    def read_page(
        self, queue: QueueToRead | None, answer: Page, offset: int, max_messages: int, max_bytes: int
    ) -> ArrowPage:
        """The messages from `offset` on, if there may be some by `answer`, which is that of a get of none."""
        if answer.status is GetStatus.NO_MATCHED_MESSAGE and queue is not None and max_messages > 0:
            return self.read_queue(queue, offset, max_messages, max_bytes)
        lowest, highest = answer.min_offset, answer.max_offset
        return ArrowPage(answer.status, answer.next_begin_offset, lowest, highest, self.nothing())

    def read_queue(self, queue: QueueToRead, offset: int, max_messages: int, max_bytes: int) -> ArrowPage:
        """The messages from `offset` on, which lies between the queue's minimum and maximum."""
        lowest, highest = queue.min_offset, queue.max_offset
        units = queue.page(offset, max(max_messages, _LEAST_UNITS_EXAMINED))
        if units is None:
            next_offset = offset + queue.units_in_file - offset % queue.units_in_file
            return ArrowPage(GetStatus.OFFSET_FOUND_NULL, next_offset, lowest, highest, self.nothing())
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int32)
        live = np.flatnonzero((sizes != NO_RECORD_SIZE) & (offsets >= self._log.min_offset))
        taken = live[: min(max_messages, self._fitting(offsets[live], sizes[live], max_bytes))]
        next_offset = offset + (int(live[len(taken)]) if len(taken) < len(live) else len(units))
        numbers = offset + taken
        batch, reasons = self._records(queue, offsets[taken], sizes[taken], numbers)
        status = GetStatus.FOUND if batch.num_rows else GetStatus.MESSAGE_WAS_REMOVING
        damaged = numbers[(reasons != Reason.STOP) & (reasons != Reason.UNWRITTEN)].tolist()
        missing = numbers[reasons == Reason.UNWRITTEN].tolist()
        found = int(sizes[taken][reasons == Reason.STOP].sum(dtype=np.int64))
        return ArrowPage(status, next_offset, lowest, highest, batch, tuple(damaged), tuple(missing), found)

    def _fitting(self, offsets: Longs, sizes: Ints, max_bytes: int) -> int:
        """How many units make a page: those of the first one's log file, at least one, within the bytes."""
        if not len(offsets):
            return 0
        files = offsets // self._log.queue.file_size
        elsewhere = files != files[0]
        same_file = int(elsewhere.argmax()) if elsewhere.any() else len(files)
        ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
        return min(same_file, max(1, int(np.searchsorted(ends, min(max_bytes, _MAX_BYTES), "right"))))

    def _records(self, queue: QueueToRead, offsets: Longs, sizes: Ints, numbers: Longs) -> tuple[pa.RecordBatch, Ints]:
        """The records that units of one log file point to, and what was found for each unit."""
        file = self._log.queue.find(int(offsets[0])) if len(offsets) else None
        if file is None or not file.hold():
            return self.nothing(), np.full(len(offsets), Reason.UNWRITTEN, np.int32)
        try:
            sizes = np.where(sizes > file.readable, np.int32(0), sizes)  # no unit of a sound queue has such a size
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
        """The next records that start at or behind `start_offset`, and the offset behind them."""

        def batch(data: Buffer, starts: Longs, rows: Rows) -> pa.RecordBatch:
            return rows_to_batch(data, starts, rows, self._schema)

        found, at = self.use_log(start_offset, max_messages, max_bytes, batch)
        return LogPage(self.nothing() if found is None else found, at)

    def use_log(
        self, start_offset: int, max_messages: int, max_bytes: int, use: Callable[[Buffer, Longs, Rows], T]
    ) -> tuple[T | None, int]:
        """What `use` makes of the next records, None if there are none; and the offset behind them.

        It gets the bytes of their file, where in them they begin, and their rows; it must not keep the bytes.
        """
        log, end = self._log, self._log.confirmed_offset
        most_rows, most_bytes = max(1, max_messages), max(1, min(max_bytes, _MAX_BYTES))
        at = max(start_offset, log.min_offset, 0)
        while at < end:
            file = log.queue.find(at)
            if file is None or not file.hold():
                at = max(log.min_offset, log.roll_next(at))
                continue
            try:
                stop = min(end - file.from_offset, file.readable)
                rows, reached = self._walk(file, at - file.from_offset, stop, most_rows, most_bytes)
                at = file.from_offset + reached
                if len(rows):
                    return use(file.map.view, rows["physical_offset"] - file.from_offset, rows), at
            finally:
                file.release()
        return None, end

    def read_at(self, offsets: Sequence[int]) -> pa.RecordBatch:
        """The records that begin at these offsets of one log file; where none does, there is no row."""
        file = self._log.queue.find(offsets[0]) if len(offsets) else None
        if file is None or not file.hold():
            return self.nothing()
        try:
            rows, count = np.empty(len(offsets), ROW), 0
            for offset in offsets:
                at = offset - file.from_offset
                found, _, _ = kernels.fill_rows(
                    file.map.view, file.from_offset, at, at + 1, self._verify_crc, rows[count : count + 1]
                )
                count += found
            starts = rows["physical_offset"][:count] - file.from_offset
            return rows_to_batch(file.map.view, starts, rows[:count], self._schema)
        finally:
            file.release()

    def _walk(self, file: MappedFile, start: int, stop: int, most_rows: int, most_bytes: int) -> tuple[Rows, int]:
        """Records of a file within the bounds, and the position behind them; without any, where to look further."""
        data, base = file.map.view, file.from_offset
        limit = min(stop, start + most_bytes)
        # Of Arrow's pool, which uses the memory again; numpy would get it anew from the system, page by page.
        rows_needed = min(most_rows, (limit - start) // MIN_RECORD_SIZE + 1)
        room = np.frombuffer(pa.allocate_buffer(ROW.itemsize * rows_needed), ROW)
        count, reached, reason = kernels.fill_rows(data, base, start, limit, self._verify_crc, room)
        rows = room[:count]
        if len(rows) > 1 and reached > limit:
            reached -= int(rows["size"][-1])
            return rows[:-1], reached
        if reason == Reason.BLANK:
            return rows, file.size
        if not len(rows):
            found = kernels.find_record(data, base, start + 1, stop, True)
            reached = stop if found < 0 else found
        return rows, reached


def put_batch(putter: Putter, settings: Settings, batch: pa.RecordBatch) -> ArrowResult:
    """Stores all rows; see `MessageStore.put_arrow`."""
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a pyarrow.RecordBatch is needed, not {type(batch).__name__}")
    return putter.put_rows(lambda: _plan(batch, settings))


def check_batch(batch: pa.RecordBatch, settings: Settings) -> None:
    """Raises RowRefused if a put would refuse the batch: with the row, -1 if it is not one row's fault, and why."""
    try:
        _planned(batch, settings)
    except _Unfit as unfit:
        raise RowRefused(unfit.number, unfit.reason) from None


class _Unfit(Exception):
    """A batch that may not be stored, because of one row, or as a whole (-1)."""

    def __init__(self, number: int, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.number, self.status, self.reason = number, status, reason


def _plan(batch: pa.RecordBatch, settings: Settings) -> PutRows:
    try:
        return _planned(batch, settings)
    except _Unfit as unfit:
        reason = unfit.reason if unfit.number < 0 else f"row {unfit.number}: {unfit.reason}"
        raise PutRefused(unfit.status, reason) from None


def _planned(batch: pa.RecordBatch, settings: Settings) -> PutRows:
    limits = PutLimits(
        settings.max_message_size,
        settings.max_record_size,
        len(settings.delay_levels),
        encode_host(Message("", b"").born_host),
        encode_host(settings.store_host),
    )
    try:
        columns = PutBatch(batch)
        return plan_puts(columns.columns(), limits)
    except (BadMessage, ValueError) as error:
        raise _Unfit(-1, PutStatus.MESSAGE_ILLEGAL, str(error)) from None
    except RowRefused as refused:
        why = _explain(columns, refused, settings)
        raise _Unfit(refused.number, why.status, why.reason) from None


def _explain(columns: PutBatch, refused: RowRefused, settings: Settings) -> PutRefused:
    """Why a put of that row alone would be refused."""
    if refused.reason:
        return PutRefused(PutStatus.MESSAGE_ILLEGAL, refused.reason)
    try:
        prepare(
            Message(**columns.fields(refused.number)),
            store_host=settings.store_host,
            max_message_size=settings.max_message_size,
            max_record_size=settings.max_record_size,
            delay_levels=len(settings.delay_levels),
        )
    except PutRefused as why:
        return why
    raise AssertionError(f"row {refused.number} was refused, though a put would take it")
