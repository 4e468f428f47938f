"""MessageStore: the one door to a store.

Opening takes the lock, recovers, and starts the threads; closing flushes, writes the checkpoint and removes `abort`.
Any number of threads may put and get; one process owns a store. `read_only=True` shows the store as a start would
serve it and leaves every byte on disk as it is, also while another process owns it.

Whoever reads sees every message that was acknowledged before: a read first has the newest part of the log
dispatched if the dispatch thread has not come to it yet.

For callers that must not wait for the disk, as an event loop must not, `append` answers at once, and `get_dispatched`
does not dispatch, which may have to make a file. Under SYNC_FLUSH a message is as safe as that promises when
`flushed_offset` has reached the answer's `end_offset`; `on_flush` says when to look.

Every method is thin: the work is done by the parts that are put together here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.clock import now_ms
from penstock.errors import BadStore, StoreFailed, disk_refused
from penstock.format.kernels import Longs
from penstock.format.message_id import decode_message_id
from penstock.format.record import Record
from penstock.store.append import Putter
from penstock.store.checkpoint import CheckpointFile
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage import MayExceed, never
from penstock.store.derived_flush import CheckpointFlusher, DerivedFlusher
from penstock.store.dispatch import Arrived
from penstock.store.dispatch_state import DispatchNotes
from penstock.store.engine import Engine, only_appends
from penstock.store.external.follower import LogOnlyCleaner, append_only_engine
from penstock.store.external.start import AppendOnlyStart, InlineStart
from penstock.store.flush import FlushFailed, GroupCommit, Syncer, TimedCommit, TimedFlush
from penstock.store.get import Getter
from penstock.store.io import Files
from penstock.store.layout import Layout, allow_many_files, refuse_other_engines
from penstock.store.lock import NO_LOCKS, HeldLocks, StoreLock
from penstock.store.mapped_file import TransientPool
from penstock.store.message import (
    EVERYTHING,
    MAX_BYTES,
    MAX_ROWS,
    ArrowPage,
    ArrowResult,
    BatchResult,
    LogPage,
    Message,
    Page,
    PutResult,
    TagFilter,
    needing_pyarrow,
)
from penstock.store.overlay import OverlayFiles
from penstock.store.preallocate import Allocator, Prefaulter
from penstock.store.query import Boundary, Hits, KeyQuery, TimeSearch
from penstock.store.records import HeaderCheck, Records
from penstock.store.recovery import Progress, RecoveryReport, StartParts
from penstock.store.replication.replica_log import ReplicaLog
from penstock.store.replication.slave_acks import SlaveAcks
from penstock.store.retention.cleaner import Retention, explain_retention
from penstock.store.retention.derived import DerivedCleaner
from penstock.store.retention.explain import Outlook
from penstock.store.retention.policy import GroupOffsets
from penstock.store.retention.topics import TopicCleaner
from penstock.store.running_flags import Trouble
from penstock.store.settings import BrokerRole, FlushDiskType, Settings
from penstock.store.sink.recovery import drop_batches_beyond, resolve_pending_batch
from penstock.store.statistics import Snapshot, Statistics
from penstock.store.worker import Listeners, Worker

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.store.arrow import ArrowReader

log = logging.getLogger("penstock.store")


class MessageStore:
    """An open store. Use `open`, and close it or use it in a `with` block."""

    report: RecoveryReport
    """What the start found and did."""

    def __init__(self, root: Path, settings: Settings, files: Files, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.layout = layout = Layout.of(root, settings)
        make_engine = append_only_engine if only_appends(settings, files) else Engine.inline
        self.engine = engine = make_engine(files, layout, settings, clock)
        self.flags, self.log, self.dispatcher = engine.flags, engine.log, engine.dispatcher
        self.queues, self.index = engine.queues, engine.index
        self.statistics = Statistics(clock(), self.log.appender, appender_answers=settings.puts_answer_at_once)
        self.replicas = SlaveAcks(settings)
        self.master_bytes: ReplicaLog | None = None
        """In a slave: where the bytes of its master's log go."""
        self.retention: Retention | None = None
        """Of a store that was not opened read-only."""
        witness = HeaderCheck(self.queues, self.dispatcher)
        self.records = Records(self.log, verify_crc=settings.verify_crc_on_read, witness=witness)
        self._checkpoint = CheckpointFile(files, layout.checkpoint)
        self._notes = DispatchNotes(engine)
        self._topics = TopicCleaner(engine)
        self._getter = Getter(settings, self.log, self.queues)
        self._times = TimeSearch(self.records)
        self._keys: KeyQuery | None = None
        """None if messageIndexEnable is false."""
        if self.index is not None:
            self._keys = KeyQuery(self.index, self.log, witness, verify_crc=settings.verify_crc_on_read)
        self._lock: StoreLock | None = None
        self._pool: TransientPool | None = None
        self._threads: list[Worker] = []
        self._flush_listeners: Listeners[[]] = Listeners()
        self._syncer = Syncer(self.log.queue, self._flushed, self._fail)
        self._putter: Putter | None = None
        self._put: Callable[[Message], PutResult] = self._refuse
        self._closed = False

    # -- opening and closing ---------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path | None = None,
        settings: Settings | None = None,
        *,
        read_only: bool = False,
        clock: Callable[[], int] = now_ms,
        files: Files | None = None,
        locks: HeldLocks = NO_LOCKS,
        progress: Callable[[Progress], object] = lambda progress: None,
        may_exceed: MayExceed = never,
    ) -> Self:
        """Opens the store in folder `path`, or in storePathRootDir, which is made if it is not there.

        Raises StoreInUse, BadStore, BadSettings or StoreFailed, and then leaves everything as it was. `locks` are those
        that the caller holds already; closing the store releases them. `progress` is called by one thread at a time,
        `may_exceed` before more than quarantineMaxBytes is kept aside.
        """
        settings = settings or Settings()
        root = Path(path or settings.store_path_root_dir)
        if read_only and not root.is_dir():
            raise BadStore("there is no store here: no such folder; check the path", path=root)
        if root.exists() and not root.is_dir():
            raise BadStore("a store is a folder, and this is a file; name a folder", path=root)
        allow_many_files()
        store = cls(root, settings, files or (OverlayFiles() if read_only else Files()), clock)
        store._lock = locks.store
        try:
            store._start(progress, may_exceed, locks.job)
        except BaseException as error:
            store._release()
            if isinstance(error, OSError):
                raise disk_refused("cannot open the store", Path(error.filename or root), 0, error) from error
            raise
        return store

    def _start(self, progress: Callable[[Progress], object], may_exceed: MayExceed, job_lock: StoreLock | None) -> None:
        files, layout = self.engine.io, self.layout
        if not files.read_only:
            self._lock = self._lock or files.lock(layout.lock)
            refuse_other_engines(files, layout)
            for note in self.settings.notes():
                log.warning("%s", note)
        taken_back = (
            "" if files.read_only else resolve_pending_batch(files, layout, self.settings.mapped_file_size_commit_log)
        )
        self._checkpoint.load()
        if files.is_folder(layout.abort):
            raise BadStore("this must be a file, and it is a folder; move it elsewhere", path=layout.abort)
        clean = not files.exists(layout.abort)
        parts = StartParts(
            engine=self.engine,
            records=self.records,
            checkpoint=self._checkpoint.value,
            may_exceed=may_exceed,
            on_progress=progress,
            job_lock=job_lock,
        )
        start = AppendOnlyStart(parts) if self.engine.only_appends else InlineStart(parts)
        with contextlib.closing(start):
            self._topics.load()
            start.inspect(clean)
            if clean:
                files.replace_bytes(layout.abort, b"")
            self.report = start.apply()
        if taken_back:
            self.report.notes.insert(0, taken_back)
        for note in self.report.notes:
            log.warning("%s", note)
        if files.read_only:
            return
        drop_batches_beyond(files, layout, self.report.log_end)
        self._checkpoint.restart(self.log.newest_timestamp, log_only=self.engine.only_appends)
        self._checkpoint.write()
        self._start_threads()

    def _start_threads(self) -> None:
        engine, settings = self.engine, self.settings
        if settings.transient_pool_active:
            self._pool = TransientPool(settings.transient_store_pool_size, settings.mapped_file_size_commit_log)
        self.log.start(Allocator(engine.io, settings, self._pool))
        self.flags.on_change(self.log.set_open)
        self.log.on_append(self.dispatcher.wake)
        group_commit = self._add_flush_threads()
        keeper_type = CheckpointFlusher if engine.only_appends else DerivedFlusher
        self._threads.append(keeper_type(engine, self._checkpoint, self._notes, self.statistics, self._fail))
        self.retention = Retention(engine, self._topics, LogOnlyCleaner if engine.only_appends else DerivedCleaner)
        self._threads += self.retention.threads()
        replicas = self.replicas if settings.broker_role is BrokerRole.SYNC_MASTER else None
        self._threads += [] if replicas is None else [replicas]
        self._putter = Putter(engine, self.statistics, group_commit, replicas)
        if settings.broker_role is BrokerRole.SLAVE:
            self.master_bytes = ReplicaLog.instead_of_puts(self.log, group_commit)
        self._put = self._putter.put
        self.dispatcher.start()
        for thread in self._threads:
            thread.start()

    def _add_flush_threads(self) -> GroupCommit | None:
        """The threads that bring the log to disk, in the order in which they start and stop.

        Returns the one that puts wait for, if they do.
        """
        settings, queue, dispatcher = self.settings, self.log.queue, self.dispatcher
        if settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            group_commit = GroupCommit(queue, self._syncer)
            self._threads.append(group_commit)
            return group_commit
        flush = TimedFlush(settings, self._syncer)
        if settings.transient_pool_active:

            def committed() -> None:
                flush.wake()
                dispatcher.wake()

            self._threads.append(TimedCommit(settings, queue, committed))
        elif not settings.flush_commit_log_timed:
            dispatcher.on_advance(flush.wake)
        self._threads.append(flush)
        if Prefaulter.suits(settings.mapped_file_size_commit_log):
            prefaulter = Prefaulter(queue)
            self.log.on_page_need(prefaulter.wake)
            self._threads.append(prefaulter)
        return None

    def _flushed(self, timestamp: int) -> None:
        self._checkpoint.set_log(timestamp)
        self.dispatcher.wake()
        self._flush_listeners.notify()

    def _fail(self, reason: str) -> None:
        """Puts are refused from now on; only a restart, which recovers, ends that."""
        self.flags.raise_trouble(Trouble.NOT_WRITEABLE, reason)
        self._flush_listeners.notify()

    def close(self) -> None:
        """Brings everything to disk and lets go of the store. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        failed = self.flags.bits & ~Trouble.DISK_FULL != 0
        self.flags.raise_trouble(Trouble.NOT_WRITEABLE, "the store is closed")
        self.log.stop_appends()
        keeper = [thread for thread in self._threads if isinstance(thread, DerivedFlusher)]
        for thread in self._threads:
            if not isinstance(thread, DerivedFlusher):
                thread.stop()
        self.dispatcher.stop()
        for thread in keeper:
            thread.stop()
        failed = failed or self._syncer.failure is not None or any(k.failure is not None for k in keeper)
        is_own_dispatch = not self.engine.only_appends
        drained = not is_own_dispatch or self.dispatcher.behind <= 0
        flushed = self.log.queue.flushed_where >= self.log.queue.wrote_offset
        clean = bool(self._threads) and drained and flushed and not failed
        if clean and is_own_dispatch:
            with contextlib.suppress(StoreFailed):  # without the note the next start takes longer, that is all
                self._notes.write(self._notes.take())
        self._release(clean=clean)

    def _release(self, *, clean: bool = False) -> None:
        """Unmaps everything; the lock goes last, and `abort` stays unless the exit is clean."""
        self._closed = True
        self.log.close()
        self.engine.derived.close()
        self._checkpoint.close()
        if self._pool is not None:
            self._pool.close()
        if clean:
            files = self.engine.io
            with contextlib.suppress(OSError):
                files.unlink(self.layout.abort)
                files.sync_folder(self.layout.root)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed; open it again", path=self.layout.root)

    def _read_only(self) -> StoreFailed:
        return StoreFailed("the store was opened read-only; open it without `read_only`", path=self.layout.root)

    # -- putting ---------------------------------------------------------------------------------------------

    def put(self, message: Message) -> PutResult:
        """Stores one message; returns when it is as safe as flushDiskType promises."""
        return self._put(message)

    def put_many(self, messages: Sequence[Message]) -> BatchResult:
        """Stores all or none, next to each other in the log, with one flush."""
        return self._open_putter().put_many(messages)

    def put_async(self, message: Message) -> Future[PutResult]:
        """As `put`, but the answer comes in a future, once the disk has answered."""
        return self._open_putter().put_async(message)

    def append(self, message: Message) -> PutResult:
        """As `put`, but never waits for the disk."""
        return self._open_putter().append(message)

    def append_many(self, messages: Sequence[Message]) -> BatchResult:
        """As `put_many`, but never waits for the disk."""
        return self._open_putter().put_many(messages, wait=False)

    def put_arrow(self, batch: pa.RecordBatch) -> ArrowResult:
        """Stores the rows of a record batch, next to each other in the log, with one flush.

        Columns: `topic`, `body`; optionally `keys` (list of strings, or a string), `tags`, `properties` (map of
        strings), `queue_id`, `delay_level`, `flag`, `born_timestamp` (a time, or milliseconds). All rows are checked
        before anything is written; one that may not be stored has the batch refused, and `reason` says which and why.

        A batch that fits a log file becomes visible at once. A larger one is split at file ends into as many pieces as
        it needs, and each piece becomes visible at once.
        """
        with needing_pyarrow():
            from penstock.store.arrow import put_batch
        return put_batch(self._open_putter(), self.settings, batch)

    def _refuse(self, message: Message) -> PutResult:
        return self._open_putter().put(message)

    def _open_putter(self) -> Putter:
        if self._putter is None:
            raise self._read_only()
        return self._putter

    # -- the way to disk -------------------------------------------------------------------------------------

    @property
    def flushed_offset(self) -> int:
        """The physical offset up to which the log is on disk."""
        return self.log.queue.flushed_where

    @property
    def flush_failure(self) -> str:
        """Why the log cannot be synced any more; empty while it can."""
        return self._syncer.failure or ""

    def on_flush(self, flushed: Callable[[], object]) -> None:
        """Calls back, on the thread that syncs, after each sync of the log and after one that failed."""
        self._flush_listeners.add(flushed)

    def flush(self) -> None:
        """Returns when all that was put so far is on disk. Raises StoreFailed."""
        try:
            self._syncer.sync(0, all_files=True)
        except FlushFailed as error:
            raise StoreFailed(str(error), path=self.layout.root) from error

    # -- reading queues --------------------------------------------------------------------------------------

    def get(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32, tags: str | TagFilter | None = None
    ) -> Page:
        """Messages of a queue from `offset` on; the page says what was found and where to go on."""
        end = self.log.confirmed_offset
        if self._closed or self.dispatcher.position < end:
            self.catch_up()
        wanted = EVERYTHING if tags is None else tags if isinstance(tags, TagFilter) else TagFilter(tags)
        page = self._getter.get(topic, queue_id, offset, max_messages, wanted, end)
        self._check_open()
        self.statistics.count_get(page)
        return page

    def get_dispatched(self, topic: str, queue_id: int, offset: int, max_messages: int, tags: TagFilter) -> Page:
        """As `get`, of what is dispatched already: the very newest messages may come a moment later."""
        page = self._getter.get(topic, queue_id, offset, max_messages, tags, self.log.confirmed_offset)
        self._check_open()
        self.statistics.count_get(page)
        return page

    def get_arrow(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] | None = None,
    ) -> ArrowPage:
        """Messages of a queue from `offset` on as a record batch: at least one, if there is one.

        `max_bytes` counts whole records. A page may end before both bounds are reached, where a file ends; the page
        says where to go on. `columns` are names of `penstock.format.arrow_schema.MESSAGE_SCHEMA`.
        """
        reader = self._arrow_reader(columns)
        self.catch_up()
        answer = self._getter.get(topic, queue_id, offset, 0, EVERYTHING, self.log.confirmed_offset)
        page = reader.read_page(self.queues.find(topic, queue_id), answer, offset, max_messages, max_bytes)
        self.statistics.count_arrow_page(page)
        return page

    def log_arrow(
        self,
        start_offset: int = 0,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] | None = None,
        max_messages: int = MAX_ROWS,
    ) -> LogPage:
        """Records of the log, of every topic, and the offset at which to go on.

        The first row is the first record that starts at or behind `start_offset`, which may be any byte. There is at
        least one row, unless the log ends here. Bytes that are no record end a page, and are passed over at the
        beginning of the next one, whose first row then lies behind `start_offset`.
        """
        reader = self._arrow_reader(columns)
        self._check_open()
        return reader.read_log(start_offset, max_messages, max_bytes)

    def _arrow_reader(self, columns: Sequence[str] | None) -> ArrowReader:
        with needing_pyarrow():
            from penstock.format.arrow_rows import select_columns
            from penstock.store.arrow import ArrowReader
        return ArrowReader(self.log, select_columns(columns), verify_crc=self.settings.verify_crc_on_read)

    # -- finding by key --------------------------------------------------------------------------------------

    def query(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 2**63 - 1, max_messages: int | None = None
    ) -> Hits:
        """Records with this topic and key (or unique key), stored within the bounds; the newest, oldest first.

        At most `max_messages`, or defaultQueryMaxNum if it is not given, and never more than maxMsgsNumBatch.
        """
        keys = self._key_query()
        log_end = self.log.confirmed_offset
        if self._closed or self.dispatcher.position < log_end:
            self.catch_up()
        settings = self.settings
        wanted = settings.default_query_max_num if max_messages is None else max_messages
        hits = keys.find(topic, key, begin_ms, end_ms, min(wanted, settings.max_msgs_num_batch), log_end)
        self._check_open()
        return hits

    def query_many(
        self, topic: str, keys: list[str], begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> tuple[Longs, Longs]:
        """Where all records with any of many keys lie: numbers of the keys, and physical offsets, as two arrays.

        As exact as `query`, without its limit, and much faster for each key; `look_up` reads a record.
        """
        key_query = self._key_query()
        self.catch_up()
        found = key_query.find_many(topic, keys, begin_ms, end_ms)
        self._check_open()
        return found

    def _key_query(self) -> KeyQuery:
        if self._keys is None:
            raise BadStore(
                "there is no index: messageIndexEnable is false; set it, and run `penstock store rebuild --index`",
                path=self.layout.root,
            )
        return self._keys

    # -- offsets and times -----------------------------------------------------------------------------------

    def look_up(self, physical_offset: int) -> Record | None:
        """The record that begins at a physical offset."""
        self._check_open()
        return self.records.at(physical_offset)

    def look_up_id(self, msg_id: str) -> Record | None:
        """The record with an offset message id. Raises BadMessage if it is no such id."""
        record = self.look_up(decode_message_id(msg_id)[1])
        return record if record is not None and record.msg_id == msg_id.upper() else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.NEAREST) -> int:
        """Queue offset of the message stored at a time; 0 if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else self._times.find(queue, timestamp, boundary)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message, -1 if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return -1 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message will get, 0 if there is no such queue."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of one message, -1 if it is not there."""
        queue = self._queue(topic, queue_id)
        return -1 if queue is None else self._times.store_time(queue, offset)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of the log or of a queue, -1 if there is none."""
        self._check_open()
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        return self.records.store_timestamp(self.log.min_offset) if self.log.max_offset else -1

    def topics(self) -> list[str]:
        """The topics that have a queue, sorted."""
        self.catch_up()
        return self.queues.topics()

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        self.catch_up()
        return self.queues.find(topic, queue_id)

    # -- deleting --------------------------------------------------------------------------------------------

    def delete_expired(self) -> None:
        """Has files deleted that are older than fileReservedTime, at any hour; returns at once, a thread does it."""
        self._open_retention().cleaner.request()

    def delete_topic(self, topic: str) -> bool:
        """Deletes a topic's queues for good; False if there is no such topic. Its messages stay in the log's files.

        They are no longer got, but still found by key, until those files go. What is put under the name from now on
        begins at queue offset 0. Raises StoreFailed: then nothing was deleted, or the next start completes it.
        """
        return self._open_retention().topics.delete_topic(topic)

    def deleted_topics(self) -> Mapping[str, int]:
        """Topics that were deleted, and the physical offset before which their records do not count."""
        return self.engine.deleted_topics.ends

    def delete_as_master(self, ends: Mapping[str, int]) -> list[str]:
        """Deletes what a master's `deleted_topics` names, as `delete_topic` does; returns what was new."""
        return self._open_retention().topics.delete_before(ends)

    def clean_unused_topics(self, known_topics: Collection[str]) -> list[str]:
        """Deletes, as `delete_topic` does, every topic that is not among these; returns their names.

        RocketMQ's own topics for delayed messages and ended transactions are always kept.
        """
        return self._open_retention().topics.delete_unused(known_topics)

    def clean_expired_queues(self) -> list[tuple[str, int]]:
        """Deletes queues none of whose messages is in the log any more; returns their topics and ids.

        The next message of such a queue gets offset 0: consumers that remember an old offset miss what is below it.
        """
        return self._open_retention().topics.delete_expired_queues()

    def explain_retention(self, offsets: GroupOffsets | None = None) -> Outlook:
        """What deletion would do now and at the next hour of deleteWhen, why, and which groups have not read it.

        `offsets` are the groups' next offsets by (topic, group) and queue; unless given, those of the config files.
        Changes nothing. Raises BadStore if a config file cannot be read.
        """
        self.catch_up()
        return explain_retention(self.engine, self.records, offsets)

    def _open_retention(self) -> Retention:
        self.catch_up()
        if self.retention is None:
            raise self._read_only()
        return self.retention

    # -- following -------------------------------------------------------------------------------------------

    def on_arrival(self, arrived: Arrived) -> None:
        """Calls back, on the thread that dispatches, whenever messages became visible in a queue."""
        self.dispatcher.on_arrival(arrived)

    def catch_up(self) -> None:
        """Returns when all that may be shown to consumers is in its queue, or the disk has no room for that.

        Raises StoreFailed if the store is closed, where an empty answer would be taken for an empty queue.
        """
        self._check_open()
        if self.dispatcher.behind > 0:
            with contextlib.suppress(StoreFailed):
                self.dispatcher.catch_up()

    def figures(self) -> Snapshot:
        """Counters, rates and how far flush and dispatch are behind."""
        queue = self.log.queue
        return self.statistics.snapshot(
            dispatch_behind=max(self.dispatcher.behind, 0),
            dispatch_skipped=self.dispatcher.skipped_bytes,
            flush_behind=max(queue.wrote_offset - queue.flushed_where, 0),
            put_lock_held=self.log.locked_for(),
            puts_refused=self.flags.reason,
            retention=None if self.retention is None else self.retention.figures(),
        )
