"""Tasks that read the files of one store on workers: spans of queues, a range of the log, or single records.

A task opens only the files that it needs and checks every record, as the store does. It first compares the files with
what the planner saw (`SeenLog`, `QueueSpan.first`). A host that does not see these files cannot tell "deleted by
retention" from "not mounted here", so this is an error whatever failOnDataLoss says. Memory is bounded: a page has
about 8 MB, or one message if the message is larger.

The mapped-log cache keeps the files of the last two logs mapped between the tasks of a worker process. A queue's
messages are spread over the log, and mapping the same memory pages for each task takes longer than reading them. A new
task unmaps files that were deleted, replaced or truncated meanwhile. Until then, or until the worker ends, a deleted
file still uses disk space. Only one task uses a cached log at a time; a concurrent task maps the log itself.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import BadStore, DataLost
from penstock.format import kernels
from penstock.format.arrow_rows import rows_to_batch, select_columns
from penstock.format.kernels import Buffer, Longs, Rows
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.record_layout import HEAD, is_filler
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from penstock.pipeline.offset_ranges import Flaw, ReadTask, RowPage
from penstock.store.arrow_batches import ArrowReader
from penstock.store.files.layout import path_below
from penstock.store.message import MAX_BYTES, MAX_ROWS
from penstock.store.readonly.view import FilesView, LogView, QueueView, ShippedUnits

# -- the mapped-log cache --------------------------------------------------------------------------------------------

_MAX_CACHED: Final = 2
_cache_lock = threading.Lock()
_cache: dict[tuple[Path, int], FilesView] = {}
"""The cached logs by folder and file size; the least recently used is first."""


class CachedLog(LogView):
    """A view of a log for one task. It takes its files from the cache if they are there; `close` puts them back."""

    def __init__(self, folder: Path, file_size: int, min_offset: int, confirmed_offset: int) -> None:
        self._key = (folder, file_size)
        with _cache_lock:
            files = _cache.pop(self._key, None)
        if files is not None:
            files.unmap_changed()
        super().__init__(folder, file_size, min_offset, confirmed_offset, files)

    def close(self) -> None:
        with _cache_lock:
            surplus = [_cache.pop(self._key, None)]
            _cache[self._key] = self.queue
            if len(_cache) > _MAX_CACHED:
                surplus.append(_cache.pop(next(iter(_cache))))
        for files in surplus:
            if files is not None:
                files.close()


# -- what the planner saw --------------------------------------------------------------------------------------------

_logger = logging.getLogger("penstock.pipeline")


class SeenLog(msgspec.Struct, frozen=True):
    """The log files that the planner saw. A worker must see the same, but for the oldest, which retention may delete.

    The files are named by their first physical offset: `first` to `last`, without `holes`.
    """

    first: int
    last: int
    """The file that holds the last record."""
    holes: tuple[int, ...]
    head: bytes
    """The first bytes of the file `last`: most of the header of a record with its offsets and its time."""

    @classmethod
    def of(cls, files: FilesView, log_min: int, log_end: int) -> SeenLog | None:
        """Returns what there is to see of a log that is read from `log_min` to `log_end`; None if it is empty."""
        if log_min >= log_end:
            return None
        size, offsets = files.file_size, files.offsets()
        last = (log_end - 1) // size * size
        first = min(offsets[0], last) if offsets else last
        holes = set(range(first, last + 1, size)).difference(offsets)
        file = None if last in holes else files.find_any_size(last)
        head = b"" if file is None else bytes(file.map.view[: HEAD.size])
        return cls(first, last, tuple(sorted(holes)), head)

    def check(self, files: FilesView, folder: Path) -> None:
        """Raises BadStore with the host's name if the files in `folder` are not those that the planner saw."""
        offsets = files.offsets()
        if not offsets:
            raise _unseen("does not see the log's files, which", folder)
        expected = set(range(max(self.first, offsets[0]), self.last + 1, files.file_size))
        missing = sorted(expected.difference(self.holes, offsets))
        if missing:
            raise _unseen(f"does not see the log's file {missing[0]:020d}, which", folder)
        if self.head and self.last in offsets:
            file = files.find_any_size(self.last)
            if file is not None and bytes(file.map.view[: HEAD.size]) != self.head:
                raise _unseen(f"sees another store: its file {self.last:020d} begins with another record than", folder)


def _unseen(what: str, folder: Path) -> BadStore:
    return BadStore(
        f"the host {socket.gethostname()} {what} the driver saw when it planned the read; mount the store's folder "
        "under the same path on all hosts, or read through the brokers with namesrv",
        path=folder,
    )


# -- tasks -----------------------------------------------------------------------------------------------------------

_POSITIONS_PER_READ = 1000
_BYTES_PER_ROW = 1024  # of a step: a step of small records is shorter, so that its rows stay in the CPU cache
T = TypeVar("T")
BY_RETENTION: Final = "most likely deleted by retention"


class StorePaths(msgspec.Struct, frozen=True):
    """The paths and file sizes of a store, and the physical offsets between which its log may be read."""

    broker: str
    commit_log: str
    consume_queue: str
    log_file_size: int
    queue_file_size: int
    log_min: int
    log_end: int
    seen: SeenLog | None = None
    keeps_maps: bool = True
    """Whether the log's files stay mapped for the next task; without it a task needs less memory."""
    verify_crc: bool = True
    """Whether the checksum of each body is checked."""

    def log(self) -> LogView:
        """Opens the log. Raises BadStore if this host sees other files than the planner saw."""
        folder = Path(self.commit_log)
        kind = CachedLog if self.keeps_maps else LogView
        view = kind(folder, self.log_file_size, self.log_min, self.log_end)
        if self.seen is not None:
            try:
                self.seen.check(view.queue, folder)
            except BaseException:
                view.close()
                raise
        return view


class QueueSpan(msgspec.Struct, frozen=True):
    """Queue offsets `start` to `stop` (exclusive) of one queue. `units` replace the units in the queue's files."""

    topic: str
    queue_id: int
    start: int
    stop: int
    units: bytes = b""
    first: int = -1
    """The physical offset in the unit of `start` when the read was planned; -1 if unknown."""


def with_columns(columns: Sequence[str], *needed: str) -> list[str]:
    """Returns the columns, followed by the names of `needed` that they lack."""
    return [*columns, *(name for name in needed if name not in columns)]


def _reader(files: StorePaths, log: LogView, columns: Sequence[str]) -> ArrowReader:
    return ArrowReader(log, select_columns(columns), verify_crc=files.verify_crc)


class QueueTask(msgspec.Struct, frozen=True):
    """A task that reads ranges of queues."""

    files: StorePaths
    spans: tuple[QueueSpan, ...]
    fail_on_data_loss: bool

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        with closing(self.files.log()) as log:
            reader = _reader(self.files, log, columns)
            for span in self.spans:
                with closing(self._open_units(span)) as queue:
                    yield from self._span(log, reader, queue, span)

    def _open_units(self, span: QueueSpan) -> QueueView | ShippedUnits:
        if span.units:
            return ShippedUnits(span.topic, span.queue_id, span.start, span.units)
        folder = path_below(Path(self.files.consume_queue), span.topic, span.queue_id)
        files = FilesView(folder, self.files.queue_file_size)
        if span.first >= 0 and max(files.offsets(), default=-1) < _file_of(span.stop - 1, files.file_size):
            raise _unseen("does not see the queue's files (or the topic was deleted since), which", folder)
        return QueueView(files, span.topic, span.queue_id, span.start, span.stop)

    def _span(
        self, log: LogView, reader: ArrowReader, queue: QueueView | ShippedUnits, span: QueueSpan
    ) -> Iterator[RowPage]:
        at = span.start
        begin = queue.page(at, 1)
        if span.first >= 0 and begin is not None and int(begin["offset"][0]) != span.first:
            self._report_loss(span, at, span.stop, "the topic was deleted and created again since the read was planned")
            return
        while at < span.stop:
            page = reader.read_queue(queue, at, MAX_ROWS, MAX_BYTES)
            flaws = [
                Flaw(span.topic, span.queue_id, number, None, f"the record of queue offset {number} is damaged")
                for number in page.damaged
            ]
            if not page.batch.num_rows and queue.page(at, 1) is None:
                self._report_loss(span, at, min(page.next_begin_offset, span.stop))
            for first, last in _runs(page.missing):
                units = queue.page(first, 1)
                if units is None or _is_gone(log, int(units["offset"][0])):
                    self._report_loss(span, first, last + 1)
                    continue
                flaws += [
                    Flaw(span.topic, span.queue_id, number, None, f"the record of queue offset {number} is missing")
                    for number in range(first, last + 1)
                ]
            if page.batch.num_rows or flaws:
                yield RowPage(self.files.broker, page.batch, tuple(flaws))
            at = page.next_begin_offset

    def _report_loss(self, span: QueueSpan, start: int, stop: int, why: str = BY_RETENTION) -> None:
        error = lost_messages(span.topic, self.files.broker, span.queue_id, start, stop, why)
        if self.fail_on_data_loss:
            raise error
        _logger.warning("rocketmq: %s", error)


def lost_messages(topic: str, broker: str, queue_id: int, start: int, stop: int, why: str = BY_RETENTION) -> DataLost:
    """Returns the error for messages `start` to `stop` (exclusive) of a queue, which no longer exist."""
    return DataLost(
        f"messages {start} to {stop - 1} of topic {topic} queue {queue_id} (broker {broker}) are gone, {why}; set "
        "failOnDataLoss=false to continue without them"
    )


def _file_of(queue_offset: int, file_size: int) -> int:
    """Returns the position at which the queue file begins that holds the unit of `queue_offset`."""
    return queue_offset * UNIT_SIZE // file_size * file_size


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the runs of consecutive numbers, each as its first and last number."""
    runs = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        members = [number for _, number in group]
        runs.append((members[0], members[-1]))
    return runs


def _is_gone(log: LogView, offset: int) -> bool:
    """Returns whether retention deleted the file of the record at `offset`, that is, the log begins after it.

    A file that is missing in the middle of the log is damage, not retention.
    """
    if log.queue.find(offset) is not None:
        return False
    first = next(iter(log.queue.offsets()), None)
    return first is None or offset < first


class LogTask(msgspec.Struct, frozen=True):
    """A task that reads the records that begin in a byte range of a log; with `topics`, those in their queues."""

    files: StorePaths
    start: int
    stop: int
    fail_on_data_loss: bool
    topics: tuple[str, ...] | None = None

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        schema = select_columns(columns)

        def make(data: Buffer, starts: Longs, rows: Rows) -> pa.RecordBatch:
            return rows_to_batch(data, starts, rows, schema)

        for batch, flaws in self.map_records(make, MAX_BYTES):
            rows = pa.RecordBatch.from_pylist([], schema) if batch is None else batch
            yield RowPage(self.files.broker, rows, flaws)

    def map_records(
        self, make: Callable[[Buffer, Longs, Rows], T], step: int = 4 << 20
    ) -> Iterator[tuple[T | None, tuple[Flaw, ...]]]:
        """Calls `make` for `step` bytes of records at a time. Yields its result, and the flaws before these records.

        `make` gets bytes of the log, the positions of the records in these bytes, and the records' ROWs. `make` must
        not keep the bytes. The result is None if a step has only flaws. Building no columns makes this fast.
        """
        named = None if self.topics is None else tuple(topic.encode() for topic in self.topics)
        with closing(self.files.log()) as log:
            reader = _reader(self.files, log, ["physical_offset"])

            def map_own(data: Buffer, starts: Longs, rows: Rows) -> tuple[T | None, Longs]:
                offsets = rows["physical_offset"].copy()
                count = int(np.searchsorted(offsets, self.stop))
                starts, rows = starts[:count], rows[:count]
                if named is not None and (kept := _in_queues_of(data, starts, rows, named)) is not None:
                    starts, rows = starts[kept], rows[kept]
                return make(data, starts, rows) if len(rows) else None, offsets

            def read(at: int) -> tuple[T | None, Longs, int]:
                size = max(min(step, self.stop - at), 1)
                found, next_offset = reader.use_log(at, step // _BYTES_PER_ROW, size, map_own)
                made, offsets = found or (None, np.empty(0, np.int64))
                return made, offsets, next_offset

            for made, _, flaws in self._walk(log, read):
                if made is not None or flaws:
                    yield made, flaws

    def _walk(
        self, log: LogView, read: Callable[[int], tuple[T, Longs, int]]
    ) -> Iterator[tuple[T, int, tuple[Flaw, ...]]]:
        """Yields for each step: the result of `read`, how many of its records belong to this task, the flaws before.

        `read` reads some records from a physical offset on. It returns a result, the offsets of its records, and the
        next offset to read. Flaws are gaps between records. The task that reads the record before a gap reports the
        gap, even if that record crosses the end of the task's range.
        """
        at, at_record = self.start, self.start == log.min_offset  # whether a record must begin at `at`
        while at < self.stop or at_record:
            if at < self.stop and _is_gone(log, at):
                at = self._report_loss(log, at)
                at_record = at < self.stop
                continue
            found, offsets, next_offset = read(at)
            begin = int(offsets[0]) if len(offsets) else next_offset
            flaws = self._gap(log, at, min(begin, self.files.log_end)) if at_record else ()
            count = int(np.searchsorted(offsets, self.stop))
            if count or flaws:
                yield found, count, flaws
            if not count or count < len(offsets):
                return  # the next record, if any, belongs to another task
            at, at_record = next_offset, True

    def _report_loss(self, log: LogView, at: int) -> int:
        first = next(iter(log.queue.offsets()), self.stop)
        error = DataLost(
            f"bytes {at} to {min(first, self.stop) - 1} of the log of {self.files.broker} are gone, {BY_RETENTION}; "
            "set failOnDataLoss=false to continue without them"
        )
        if self.fail_on_data_loss:
            raise error
        _logger.warning("rocketmq: %s", error)
        return first

    def _gap(self, log: LogView, start: int, stop: int) -> tuple[Flaw, ...]:
        """Returns the flaws between `start`, where a record must begin, and `stop`, where the next record begins.

        The filler at a file's end is no flaw. Raises DataLost for files that retention deleted, unless
        `fail_on_data_loss` is false.
        """
        flaws = []
        begins = [start, *range(log.roll_next(start), stop, log.queue.file_size)] if start < stop else []
        for begin in begins:
            end = min(log.roll_next(begin), stop)
            file = log.queue.find(begin)
            if file is None and _is_gone(log, begin):
                if begin < self.stop:
                    self._report_loss(log, begin)
                continue
            if file is None:
                what = f"the file with bytes {begin} to {end - 1} of the log is missing"
            elif end == log.roll_next(begin) and is_filler(file.map.view, begin - file.from_offset):
                continue
            else:
                what = f"{end - begin} bytes at {begin} of the log hold no valid record"
            flaws.append(Flaw(None, None, None, begin, what))
        return tuple(flaws)


def limited_to_topics(tasks: Iterable[ReadTask], topics: Sequence[str]) -> list[ReadTask]:
    """Returns tasks over logs that read only the records that are in queues of the topics."""
    limited: list[ReadTask] = []
    for task in tasks:
        assert isinstance(task, LogTask), "a task over a log"
        limited.append(msgspec.structs.replace(task, topics=tuple(topics)))
    return limited


def _in_queues_of(data: Buffer, starts: Longs, rows: Rows, topics: tuple[bytes, ...]) -> Longs | None:
    """Returns the numbers of the rows that are in a queue of the topics; None if all are."""
    places, lengths = kernels.row_fields(rows, ("topic_at", "topic_length"))
    hits = kernels.is_one_of(data, starts + places, lengths, topics)
    kinds = rows["sys_flag"] & TRANSACTION_MASK
    hits &= (kinds == TRANSACTION_NONE) | (kinds == TRANSACTION_COMMIT)
    return None if hits.all() else np.flatnonzero(hits)


class RecordTask(msgspec.Struct, frozen=True):
    """A task that reads single records at physical offsets from the index. Skips records outside of `spans`."""

    files: StorePaths
    positions: tuple[int, ...]
    spans: tuple[QueueSpan, ...]
    fail_on_data_loss: bool

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        with closing(self.files.log()) as log:
            names = with_columns(columns, "topic", "queue_id", "queue_offset", "physical_offset")
            reader = _reader(self.files, log, names)
            for _, group in groupby(self.positions, lambda offset: offset // self.files.log_file_size):
                offsets = list(group)
                if _is_gone(log, offsets[0]):
                    self._report_loss(offsets)
                    continue
                for first in range(0, len(offsets), _POSITIONS_PER_READ):
                    yield self._page(reader, offsets[first : first + _POSITIONS_PER_READ], columns)

    def _page(self, reader: ArrowReader, offsets: list[int], columns: Sequence[str]) -> RowPage:
        batch = reader.read_at(offsets)
        keys = zip(*(batch.column(name).to_pylist() for name in ("topic", "queue_id", "queue_offset")), strict=True)
        wanted = {(span.topic, span.queue_id): range(span.start, span.stop) for span in self.spans}
        inside = [at in wanted.get((topic, queue_id), ()) for topic, queue_id, at in keys]
        unread = sorted(set(offsets).difference(batch.column("physical_offset").to_pylist()))
        flaws = (Flaw(None, None, None, at, f"the record at {at} of the log is damaged or missing") for at in unread)
        return RowPage(
            self.files.broker, batch.filter(pa.array(inside, pa.bool_())).select(list(columns)), tuple(flaws)
        )

    def _report_loss(self, offsets: Sequence[int]) -> None:
        error = DataLost(
            f"{len(offsets)} messages with the keys are gone, in bytes {offsets[0]} to {offsets[-1]} of the log of "
            f"{self.files.broker}, {BY_RETENTION}; set failOnDataLoss=false to continue without them"
        )
        if self.fail_on_data_loss:
            raise error
        _logger.warning("rocketmq: %s", error)
