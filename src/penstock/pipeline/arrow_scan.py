"""`scan`: the messages of stores as Arrow batches, for DuckDB, Polars, pandas and all that read an Arrow stream.

A `StoreScan` is a table: the messages of one or more topics, the messages with a key, or every record of the log. Each
read of it makes a new plan, so it shows the messages that exist at that moment. It changes nothing and takes no lock.

A read makes only the columns that it is asked for. Rows that a filter refuses cost the columns of the filter alone.
Topics that fill a good part of the log are read in the order of the log, which is several times faster than through
their queues. Threads read pieces of the log or of queues ahead; the kernels run without the GIL, and batches arrive in
order. Memory is bounded: a thread maps only the piece that it reads, and the batches that wait are limited in bytes.

A damaged place has no row; `ScanNotes` counts them. A record is checked as far as it is read: the checksum of a body
only if the body is read, since it covers nothing else. A body that cannot be unpacked is null, and counted as well.
Needs pyarrow, but no Spark.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.config.setting_parser import nearest
from penstock.errors import BadSettings, PenstockError
from penstock.format.arrow_rows import MESSAGE_SCHEMA, binary_to_text, rows_to_batch, select_columns
from penstock.format.kernels import Buffer, Longs, Rows
from penstock.human_units import parse_time
from penstock.pipeline.offset_ranges import OffsetRange, Queue, ReadTask, TaskLimits, pack_ranges, split_ranges
from penstock.pipeline.options import EARLIEST, Options
from penstock.pipeline.scan_plan import end_offsets, log_instead_of_queues, spans_between, start_offsets
from penstock.pipeline.source_rows import BROKER, ROW_SCHEMA, inflate_bodies, rows_with_keys
from penstock.pipeline.store_read_tasks import LogTask, QueueTask, RecordTask, limited_to_topics
from penstock.pipeline.store_source import StoreSource, log_queue

BODY_TEXT: Final = "body_text"
SCAN_SCHEMA: Final = ROW_SCHEMA.append(pa.field(BODY_TEXT, pa.string()))
"""The columns of a scan: those of the Spark source, and the body as text, null if it is not UTF-8."""
_LOG_PIECE: Final = 16 << 20
"""The bytes of the log that a thread maps and reads at a time."""
_STEP: Final = 16 << 20
"""The bytes of the log that a thread turns into one batch. Between two steps threads wait for each other's GIL."""
_BODY_PIECE: Final = 8 << 20
_BODY_STEP: Final = 4 << 20
"""The same for a read of bodies, which are copied."""
_QUEUE_PIECE: Final = 2 << 20
"""The same for a queue: less, because its records are spread, and reading one maps 64 KB around it."""
_BYTES_AHEAD: Final = 12 << 20
"""The most bytes of batches that wait for the reader."""


class ScanNotes:
    """What reads have met so far. Any thread may add to it and read it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.damaged = 0
        """The damaged places: records, or stretches of the log without a valid record."""
        self.first_damage = ""
        self.bytes_done = 0
        self.bytes_planned = 0
        self.error: PenstockError | KeyboardInterrupt | None = None
        """The error that ended a read, for a caller who gets it through an engine that knows only its text."""

    def add_damage(self, whats: Sequence[str]) -> None:
        if whats:
            with self._lock:
                self.damaged += len(whats)
                self.first_damage = self.first_damage or whats[0]

    def plan(self, size: int) -> None:
        with self._lock:
            self.bytes_planned += size

    def advance(self, size: int) -> None:
        with self._lock:
            self.bytes_done += size


class ScanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan reads. With neither topics nor keys it is the log: every record, also those that are in no queue."""

    paths: tuple[str, ...]
    topics: tuple[str, ...] | None = None
    keys: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    config: str = ""
    settings: tuple[str, ...] = ()
    threads: int = 0
    """The threads that read; 0: one for each core that this process may use."""

    def source_options(self) -> Options:
        return Options(
            path=self.paths,
            subscribe=self.topics or (),
            order="queue" if self.topics else "log",
            keys=self.keys,
            starting_timestamp=self.since_ms,
            ending_timestamp=self.until_ms,
            starting_offsets_by_timestamp_strategy="latest",
            config=self.config,
            settings=self.settings,
            fail_on_data_loss=False,
        )


class ScanPiece(msgspec.Struct, frozen=True):
    """A task of a read, and its size in bytes."""

    task: ReadTask
    size: int


# -- the plan ----------------------------------------------------------------------------------------------------------


def open_stores(options: ScanOptions) -> StoreSource:
    """Opens the stores of a scan. Raises BadStore or BadSettings."""
    return StoreSource(options.source_options())


def find_topic(name: str, existing: Iterable[str]) -> str:
    """Returns a topic by its name; its case may differ if that is unambiguous. Raises BadSettings."""
    topics = list(existing)
    if name in topics:
        return name
    same = [topic for topic in topics if topic.lower() == name.lower()]
    if len(same) == 1:
        return same[0]
    if same:
        raise BadSettings(f"the topics {' and '.join(same)} differ in case only; write the name as it is")
    near = nearest(name, topics)
    if near:
        raise BadSettings(f"there is no topic '{name}'; did you mean '{near}'?")
    some = ", ".join(topics[:10]) + (f" and {len(topics) - 10} more" if len(topics) > 10 else "")
    raise BadSettings(f"there is no topic '{name}'; " + (f"there are {some}" if topics else "the store has none"))


def plan_scan(options: ScanOptions, log_piece: int = _LOG_PIECE) -> list[ScanPiece]:
    """Returns the pieces of a read, in the order of the rows. Raises BadStore, BadSettings.

    A piece of the log has at most `log_piece` bytes.
    """
    given = options.source_options()
    with closing(StoreSource(given)) as source:
        if options.topics is None:
            logs = [log_queue(broker) for broker in source.brokers]
            return _log_pieces(source, _spans(source, logs, given), None, log_piece)
        for topic in options.topics:
            find_topic(topic, source.topics())
        queues = source.queues(options.topics)
        spans = _spans(source, queues, given)
        if options.keys:
            return [ScanPiece(task, 0) for task in source.key_tasks(options.keys, spans)]
        if (by_log := log_instead_of_queues(source, queues, spans, given)) is not None:
            return _log_pieces(source, by_log, options.topics, log_piece)
        pieces = split_ranges(spans, TaskLimits(_QUEUE_PIECE))
        groups = pack_ranges(pieces, _QUEUE_PIECE)
        return [ScanPiece(task, sum(span.size for span in group)) for group in groups for task in source.tasks([group])]


def _spans(source: StoreSource, queues: Sequence[Queue], options: Options) -> list[OffsetRange]:
    first = start_offsets(source, queues, options, otherwise=EARLIEST)
    return spans_between(source, first, end_offsets(source, queues, options), options)


def _log_pieces(
    source: StoreSource, spans: Sequence[OffsetRange], topics: tuple[str, ...] | None, log_piece: int
) -> list[ScanPiece]:
    pieces = split_ranges(spans, TaskLimits(log_piece))
    tasks = source.tasks([[piece] for piece in pieces])
    if topics is not None:
        tasks = limited_to_topics(tasks, topics)
    return [ScanPiece(task, piece.size) for task, piece in zip(tasks, pieces, strict=True)]


# -- the table ---------------------------------------------------------------------------------------------------------


class RowFilter(Protocol):
    """A filter that a read applies before it makes the other columns."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the filter needs."""
        ...

    def matching(self, rows: pa.RecordBatch) -> Longs:
        """Returns the numbers of the rows for which the filter is true, ascending. Runs in any thread."""
        ...


class ExpressionFilter:
    """A pyarrow expression as a filter."""

    def __init__(self, expression: pc.Expression) -> None:
        self._expression = expression
        # pyarrow does not tell the columns of an expression, but its text has them. A word of a constant that is the
        # name of a column costs a column too many, and nothing else.
        words = set(re.findall(r"\w+", str(expression)))
        self.names = tuple(name for name in SCAN_SCHEMA.names if name in words)

    def matching(self, rows: pa.RecordBatch) -> Longs:
        numbers = pa.array(np.arange(rows.num_rows))
        numbered = pa.RecordBatch.from_arrays([*rows.columns, numbers], [*rows.schema.names, "_row"])
        found: Longs = numbered.filter(self._expression).column("_row").to_numpy(zero_copy_only=False)
        return found


class StoreScan:
    """The table of one scan. Several reads of it may run at the same time."""

    def __init__(self, options: ScanOptions, notes: ScanNotes | None = None) -> None:
        self.options = options
        self.notes = notes or ScanNotes()
        self.schema = SCAN_SCHEMA

    def reader(self, columns: Sequence[str] | None = None, row_filter: RowFilter | None = None) -> pa.RecordBatchReader:
        """Returns a stream of the rows for which `row_filter` is true. Raises BadSettings or BadStore.

        The rows come in the order of the log, or of the queues. The end of the stream, or of its last reference, ends
        the threads.
        """
        shape = _Shape(_checked(columns), row_filter, self.options.keys, self.notes)
        with self._noting_errors():
            pieces = plan_scan(self.options, shape.log_piece)
        self.notes.plan(sum(piece.size for piece in pieces))
        return pa.RecordBatchReader.from_batches(shape.schema, self._read(pieces, shape))

    def _read(self, pieces: Sequence[ScanPiece], shape: _Shape) -> Iterator[pa.RecordBatch]:
        threads = self.options.threads or len(os.sched_getaffinity(0))
        with self._noting_errors():
            yield from _read_ahead(pieces, shape.batches, threads)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except (PenstockError, KeyboardInterrupt) as error:
            self.notes.error = error
            raise


def _checked(columns: Sequence[str] | None) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise BadSettings("columns must be a list of names, not a single text")
    names = tuple(SCAN_SCHEMA.names if columns is None else columns)
    for name in names:
        if name not in SCAN_SCHEMA.names:
            near = nearest(name, SCAN_SCHEMA.names)
            hint = f"did you mean '{near}'? " if near else ""
            raise BadSettings(f"there is no column '{name}'; {hint}there are {', '.join(SCAN_SCHEMA.names)}")
    if len(set(names)) != len(names):
        raise BadSettings("columns must name each column only once")
    return names


class _Shape:
    """The columns and the filter of one read. Its methods run in any thread."""

    def __init__(
        self, names: tuple[str, ...], row_filter: RowFilter | None, keys: tuple[str, ...], notes: ScanNotes
    ) -> None:
        self.schema = pa.schema([SCAN_SCHEMA.field(name) for name in names])
        self._filter = row_filter
        self._keys = pa.array(keys, pa.string()) if keys else None
        self._notes = notes
        self._tested = () if row_filter is None else row_filter.names
        self._columns = select_columns(_native(names))
        self._tested_columns = select_columns(_native(self._tested))
        self._paged = _native((*names, *self._tested, *(("keys", "properties") if keys else ())))
        self.log_piece, self._step = (_BODY_PIECE, _BODY_STEP) if "body" in self._paged else (_LOG_PIECE, _STEP)

    def batches(self, piece: ScanPiece) -> Iterator[pa.RecordBatch]:
        task = piece.task
        assert isinstance(task, LogTask | QueueTask | RecordTask), "a task over files"
        # This process planned the read a moment ago, so it sees the same files; a task on another host must look.
        files = msgspec.structs.replace(task.files, keeps_maps=False, verify_crc="body" in self._paged, seen=None)
        task = msgspec.structs.replace(task, files=files)
        if isinstance(task, LogTask):
            yield from self._of_log(task)
            self._notes.advance(piece.size)
            return
        for page in task.pages(self._paged):
            self._notes.add_damage([flaw.what for flaw in page.flaws])
            batch = page.batch
            if self._keys is not None:
                batch = batch.filter(rows_with_keys(batch, self._keys))
            if self._filter is not None and batch.num_rows:
                batch = batch.take(pa.array(self._matching(self._filter, batch, page.broker)))
            yield from self._finished(batch, page.broker, self.schema.names)
        self._notes.advance(piece.size)

    def _of_log(self, task: LogTask) -> Iterator[pa.RecordBatch]:
        broker = task.files.broker

        def make(data: Buffer, starts: Longs, rows: Rows) -> pa.RecordBatch | None:
            if self._filter is not None:
                tested = rows_to_batch(data, starts, rows, self._tested_columns)
                kept = self._matching(self._filter, tested, broker)
                if len(kept) < len(rows):
                    starts, rows = starts[kept], rows[kept]
            return rows_to_batch(data, starts, rows, self._columns) if len(rows) else None

        for batch, flaws in task.map_records(make, self._step):
            self._notes.add_damage([flaw.what for flaw in flaws])
            if batch is not None:
                yield from self._finished(batch, broker, self.schema.names)

    def _matching(self, row_filter: RowFilter, batch: pa.RecordBatch, broker: str) -> Longs:
        """Returns the numbers of the rows for which the filter is true."""
        matching: list[Longs] = []
        first = 0
        for tested in self._finished(batch, broker, self._tested, counted=False):
            matching.append(first + row_filter.matching(tested))
            first += tested.num_rows
        return np.concatenate(matching) if matching else np.empty(0, np.int64)

    def _finished(
        self, batch: pa.RecordBatch, broker: str, names: Sequence[str], *, counted: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yields the batch with bodies unpacked and the columns `names`; in several batches if bodies are large."""
        if not batch.num_rows:
            return
        if "body" not in batch.schema.names or not {"body", BODY_TEXT} & set(names):
            yield _columns(batch, broker, names)
            return
        for piece in inflate_bodies(batch, batch.column("sys_flag")):
            found = piece.batch
            if piece.failures:
                if counted:
                    self._notes.add_damage([f"a body cannot be unpacked: {why}" for _, why in piece.failures])
                found = _without_bodies(found, [row for row, _ in piece.failures])
            yield _columns(found, broker, names)


def _native(names: Sequence[str]) -> list[str]:
    """Returns the columns of a message from which the columns `names` are made; at least one, which counts the rows."""
    needed = {"body" if name == BODY_TEXT else name for name in names if name != BROKER}
    if "body" in needed:
        needed.add("sys_flag")
    return [name for name in MESSAGE_SCHEMA.names if name in needed] or ["queue_id"]


def _columns(batch: pa.RecordBatch, broker: str, names: Sequence[str]) -> pa.RecordBatch:
    if not names:  # a batch without columns cannot say how many rows it has otherwise
        return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None]))
    columns = [
        pa.repeat(pa.scalar(broker), batch.num_rows)
        if name == BROKER
        else binary_to_text(batch.column("body"))
        if name == BODY_TEXT
        else batch.column(name)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([SCAN_SCHEMA.field(name) for name in names]))


def _without_bodies(batch: pa.RecordBatch, rows: list[int]) -> pa.RecordBatch:
    keeps = np.ones(batch.num_rows, np.bool_)
    keeps[rows] = False
    at = batch.schema.get_field_index("body")
    bodies = pc.if_else(pa.array(keeps), batch.column(at), pa.scalar(None, pa.binary()))
    return batch.set_column(at, batch.schema.field(at), bodies)


# -- threads -----------------------------------------------------------------------------------------------------------


class _Ahead:
    """What the threads have read of each piece, and which piece is delivered. `lock` guards all of it.

    A wake-up takes longer than a small batch, and the thread that wakes another has the GIL meanwhile. So the reader is
    woken only for the piece that it waits for, and the threads only if one of them waits for room.
    """

    def __init__(self, pieces: Sequence[ScanPiece]) -> None:
        self.lock = threading.Lock()
        self.arrived = threading.Condition(self.lock)
        """The reader waits here for a batch of the piece `delivered`, or for its end."""
        self.left = threading.Condition(self.lock)
        """The threads wait here for room."""
        self.reader_waits = False
        self.threads_waiting = 0
        self.pieces = pieces
        self.taken = 0
        self.delivered = 0
        """The number of the piece whose batches are delivered now."""
        self.held = 0
        self.waiting: dict[int, deque[pa.RecordBatch]] = {}
        self.done: set[int] = set()
        self.error: BaseException | None = None
        self.closed = False

    # -- the threads, with the lock ------------------------------------------------------------------------------

    def take(self) -> int | None:
        """Returns the number of the next piece to read; None if there is none, or the reader has left."""
        if self.closed or self.error is not None or self.taken == len(self.pieces):
            return None
        self.waiting[self.taken] = deque()
        self.taken += 1
        return self.taken - 1

    def add(self, number: int, batch: pa.RecordBatch) -> bool:
        """Adds a batch of piece `number` when there is room. Returns False if the reader has left."""
        size = batch.nbytes
        while not self.closed and not self._has_room(number, size):
            self.threads_waiting += 1
            self.left.wait()
            self.threads_waiting -= 1
        if self.closed:
            return False
        self.held += size
        self.waiting[number].append(batch)
        self.wake_reader(number)
        return True

    def _has_room(self, number: int, size: int) -> bool:
        """Whether a batch of piece `number` may be held. The reader's own piece may always have one."""
        return self.held + size <= _BYTES_AHEAD or (number == self.delivered and not self.waiting[number])

    def wake_reader(self, number: int) -> None:
        if self.reader_waits and number == self.delivered:
            self.reader_waits = False
            self.arrived.notify()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.wake_reader(self.delivered)

    # -- the reader, with the lock -------------------------------------------------------------------------------

    def next_batch(self) -> pa.RecordBatch | None:
        """Waits for the next batch and returns it; None after the last one. Raises the error of a thread."""
        while self.delivered < len(self.pieces):
            batches = self.waiting.get(self.delivered)
            if self.error is not None:
                raise self.error
            if batches:
                batch = batches.popleft()
                self.held -= batch.nbytes
            elif self.delivered in self.done:
                del self.waiting[self.delivered]
                self.delivered += 1
                batch = None
            else:
                self.reader_waits = True
                self.arrived.wait()
                continue
            if self.threads_waiting:
                self.left.notify_all()
            if batch is not None:
                return batch
        return None

    def close(self) -> None:
        self.closed = True
        self.left.notify_all()


def _read_ahead(
    pieces: Sequence[ScanPiece], read: Callable[[ScanPiece], Iterator[pa.RecordBatch]], threads: int
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of all pieces, in order, which `threads` threads read ahead."""
    state = _Ahead(pieces)
    workers = [
        threading.Thread(target=_work, args=(state, read), name="penstock-scan", daemon=True)
        for _ in range(min(threads, len(pieces)))
    ]
    for worker in workers:
        worker.start()
    try:
        while True:
            with state.lock:
                batch = state.next_batch()
            if batch is None:
                return
            yield batch
    finally:
        with state.lock:
            state.close()
        for worker in workers:
            worker.join()


def _work(state: _Ahead, read: Callable[[ScanPiece], Iterator[pa.RecordBatch]]) -> None:
    """Reads pieces until there are no more, or the reader has left. An error goes to the reader."""
    try:
        while True:
            with state.lock:
                number = state.take()
            if number is None:
                return
            for batch in read(state.pieces[number]):
                with state.lock:
                    if not state.add(number, batch):
                        return
            with state.lock:
                state.done.add(number)
                state.wake_reader(number)
    except BaseException as error:
        with state.lock:
            state.fail(error)


# -- the public functions ----------------------------------------------------------------------------------------------

StorePath = str | os.PathLike[str]
Moment = str | int | datetime | None


def scan_options(
    path: StorePath | Sequence[StorePath],
    topics: str | Sequence[str] | None,
    keys: str | Sequence[str],
    since: Moment,
    until: Moment,
    config: StorePath | None,
    settings: Sequence[str],
    threads: int,
) -> ScanOptions:
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    names = (topics,) if isinstance(topics, str) else topics
    wanted = (keys,) if isinstance(keys, str) else tuple(keys)
    if wanted and names is None:
        raise BadSettings("keys are looked up by topic; name the topics as well")
    if names is not None and not names:
        raise BadSettings("'topics' is empty; name at least one topic, or leave it out to read the log")
    if threads < 0:
        raise BadSettings(f"threads={threads}: it must be at least 1, or 0 for one per core")
    return ScanOptions(
        paths=tuple(str(Path(each)) for each in paths),
        topics=None if names is None else tuple(names),
        keys=wanted,
        since_ms=_milliseconds("since", since),
        until_ms=_milliseconds("until", until),
        config="" if config is None else str(config),
        settings=tuple(settings),
        threads=threads,
    )


def _milliseconds(name: str, moment: Moment) -> int | None:
    if isinstance(moment, datetime):
        return int(moment.timestamp() * 1000)
    if moment is None or isinstance(moment, int):
        return moment
    try:
        return parse_time(moment)
    except ValueError:
        raise BadSettings(
            f"{name}: not a valid time: '{moment}'; it must be like 2026-11-16T08:00, now-1h, or milliseconds"
        ) from None


def scan(
    path: StorePath | Sequence[StorePath],
    topics: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    since: Moment = None,
    until: Moment = None,
    *,
    keys: str | Sequence[str] = (),
    filter: pc.Expression | None = None,  # noqa: A002
    config: StorePath | None = None,
    settings: Sequence[str] = (),
    threads: int = 0,
) -> pa.RecordBatchReader:
    """Returns the messages of stores as a stream of Arrow batches, also for a store that a broker has open.

    `path` is a store's folder, a glob, or several. Without `topics` every record of the log is read. `columns` are all
    by default. `since` (inclusive) and `until` (exclusive) limit the store time: a datetime, epoch milliseconds, or a
    text such as 2026-11-16T08:00 or now-1h. `keys` reads only the messages of `topics` with one of these keys, through
    the index. `filter` is a pyarrow expression over the columns. `config` is the store's broker.conf and `settings` are
    texts `name=value`, if its file sizes are not the defaults. Raises BadStore or BadSettings.
    """
    given = scan_options(path, topics, keys, since, until, config, settings, threads)
    return StoreScan(given).reader(columns, None if filter is None else ExpressionFilter(filter))
