"""MessageStore: the API of one store.

`open` takes the store's lock, runs recovery and starts the background threads. `close` flushes, writes the checkpoint
and removes the file `abort`. One process owns a store; any number of its threads may put and get. `read_only=True`
opens a read-only view: it recovers in memory, changes no byte on disk, and works while another process owns the store.
Read-your-writes: reads first dispatch the confirmed messages that the dispatch thread has not processed yet.

Event loops and other callers that must not block use `append`, `try_get`, `try_look_up` and `try_catch_up`, which do
not wait for the disk. What they cannot do at once, `read_cold` does in a thread. `watermarks.wait` calls them back once
an appended message is on disk and on a slave, as far as flushDiskType and brokerRole require.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from penstock.clock import now_ms
from penstock.errors import BadStore, StoreFailed, disk_refused
from penstock.format.kernels import Longs
from penstock.format.message_id import decode_message_id
from penstock.format.record import Record
from penstock.store.append import PutPath
from penstock.store.background_threads import StoreThreads
from penstock.store.checkpoint import CheckpointFile
from penstock.store.cold_reads import ColdRead, ColdReads, try_read
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage_and_quarantine import MayExceed, never_exceed
from penstock.store.derived_flush import CheckpointFlusher, DerivedFlusher
from penstock.store.dispatch import Arrived
from penstock.store.dispatch_checkpoint import DispatchNotes
from penstock.store.engine_parts import Engine, only_appends
from penstock.store.external_dispatch.follower import LogOnlyCleaner, append_only_engine
from penstock.store.external_dispatch.start_without_queues import AppendOnlyStart
from penstock.store.files.file_io import Files, NotResident
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout, allow_many_files, refuse_other_engines
from penstock.store.files.lock import NO_LOCKS, HeldLocks, StoreLock
from penstock.store.files.mapped_file import TransientPool
from penstock.store.files.preallocate import Allocator
from penstock.store.flush import FlushFailed, LogSyncer
from penstock.store.get import PageGetter
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
from penstock.store.put_and_get_statistics import Snapshot, Statistics
from penstock.store.query import Boundary, Hits, KeyQuery, TimeSearch
from penstock.store.recovery import Progress, RecoveryReport, StartParts
from penstock.store.recovery.start_without_external_job import InlineStart
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.replication.replica_log import ReplicaLog
from penstock.store.replication.tail_cut import carry_out_cut
from penstock.store.retention.cleaner import Retention, explain_retention
from penstock.store.retention.derived import DerivedCleaner
from penstock.store.retention.explain import Outlook
from penstock.store.retention.policy import GroupOffsets
from penstock.store.retention.topic_deletion import TopicCleaner
from penstock.store.role_changes import RoleChanges, enter_first_epoch, limit_to_confirmed
from penstock.store.running_flags import StoreFault
from penstock.store.settings import Settings
from penstock.store.single_record_reader import RecordProof, RecordReader
from penstock.store.sink.recovery import drop_batches_beyond, resolve_pending_batch

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.store.arrow_batches import ArrowReader

log = logging.getLogger("penstock.store")
T = TypeVar("T")


class MessageStore:
    """An open store. Create it with `open`. Close it with `close`, or use it in a `with` block."""

    report: RecoveryReport
    """The problems that recovery found and the changes that it made."""

    def __init__(self, root: Path, settings: Settings, files: Files, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.layout = layout = Layout.of(root, settings)
        make_engine = append_only_engine if only_appends(settings, files) else Engine.inline
        self.engine = engine = make_engine(files, layout, settings, clock)
        self.flags, self.log, self.dispatcher = engine.flags, engine.log, engine.dispatcher
        self.queues, self.index = engine.queues, engine.index
        self.statistics = Statistics(clock(), self.log.appender)
        self.watermarks = self.log.watermarks
        self.epochs = engine.epochs
        self._roles: RoleChanges | None = None
        """None if the store was opened read-only."""
        self.retention: Retention | None = None
        """None if the store was opened read-only."""
        proof = RecordProof(self.log, self.queues, self.dispatcher)
        self.records = RecordReader(self.log, verify_crc=settings.verify_crc_on_read, proof=proof)
        self._cold_reads = ColdReads(layout.root)
        self._checkpoint = CheckpointFile(files, layout.checkpoint)
        self._notes = DispatchNotes(engine)
        self._topics = TopicCleaner(engine)
        self.pages = PageGetter(settings, self.log, self.queues)
        self._times = TimeSearch(self.records)
        self._keys: KeyQuery | None = None
        """None if messageIndexEnable is false."""
        if self.index is not None:
            self._keys = KeyQuery(engine, self.index, proof)
        self._lock: StoreLock | None = None
        self._pool: TransientPool | None = None
        self._syncer = LogSyncer(self.log.queue, self.watermarks, self._checkpoint.set_log, self._fail)
        self._threads = StoreThreads(engine, self._syncer, self._stop_writes)
        self._put_path: PutPath | None = None
        self._closed = False

    @property
    def dead_threads(self) -> Mapping[str, str]:
        """The background threads that ended by an exception, each with that exception."""
        return self._threads.dead

    @property
    def confirmed_at_start(self) -> int:
        """Up to which offset every replica of a set had the log, as far as the checkpoint that the start found says."""
        return self._checkpoint.found.confirmed

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
        may_exceed: MayExceed = never_exceed,
        in_sync_set: bool = False,
    ) -> Self:
        """Opens the store in the folder `path` (default: storePathRootDir); creates the folder if it is missing.

        The store takes over the `locks` that the caller already holds, and releases them when it closes. Recovery calls
        `progress` from one thread at a time. It calls `may_exceed` before the quarantine grows past quarantineMaxBytes.
        If recovery fails while it changes files, the next open resumes it. `in_sync_set` is for a slave of a sync set:
        it shows only what is known to be confirmed, because its tail may be cut. Raises StoreInUse, BadStore,
        BadSettings or StoreFailed.
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
            store._start(progress, may_exceed, locks.job, in_sync_set)
        except BaseException as error:
            store._release()
            if isinstance(error, OSError):
                raise disk_refused("cannot open the store", Path(error.filename or root), 0, error) from error
            raise
        return store

    def _start(
        self,
        progress: Callable[[Progress], object],
        may_exceed: MayExceed,
        job_lock: StoreLock | None,
        in_sync_set: bool,
    ) -> None:
        files, layout, log_file = self.engine.io, self.layout, self.settings.mapped_file_size_commit_log
        if not files.read_only:
            self._lock = self._lock or files.lock(layout.lock)
            refuse_other_engines(files, layout)
            for note in self.settings.notes():
                log.warning("%s", note)
        notes: list[str] = []
        if not files.read_only:
            notes.append(carry_out_cut(files, layout, self.epochs, log_file, self.engine.clock))
            notes.append(resolve_pending_batch(files, layout, log_file))
        self._checkpoint.load()
        if not files.read_only:
            self.epochs.load()
            limit_to_confirmed(self.engine, self._checkpoint.value.confirmed, in_sync_set)
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
        self.report.notes[:0] = filter(None, notes)
        for note in self.report.notes:
            log.warning("%s", note)
        if files.read_only:
            return
        enter_first_epoch(self.engine)
        drop_batches_beyond(files, layout, self.report.log_end)
        is_dispatched = not self.engine.only_appends and self.dispatcher.position >= self.watermarks.stored
        self._checkpoint.restart(self.log.newest_timestamp, log_only=not is_dispatched)
        self._checkpoint.write()
        self._start_threads()

    def _start_threads(self) -> None:
        engine, settings = self.engine, self.settings
        if settings.transient_pool_active:
            self._pool = TransientPool(settings.transient_store_pool_size, settings.mapped_file_size_commit_log)
        self.log.start(Allocator(engine.io, settings, self._pool, self._threads.died))
        self.flags.on_change(self.log.set_open)
        self.log.on_visible(self.dispatcher.wake)
        self._threads.add_flush()
        flusher_type = CheckpointFlusher if engine.only_appends else DerivedFlusher
        self._threads.add(flusher_type(engine, self._checkpoint, self._notes, self.statistics, self._fail))
        self.retention = Retention(engine, self._topics, LogOnlyCleaner if engine.only_appends else DerivedCleaner)
        self._threads.add(*self.retention.threads())
        self._put_path = PutPath(engine, self.statistics)
        self.put = self._put_path.put  # type: ignore[assignment, method-assign]  # a call less for each message
        self._threads.start()
        self._roles = RoleChanges(engine, self._topics, self._put_path, self._threads, self.flush)

    def _fail(self, reason: str) -> None:
        """Makes the store refuse puts until a restart runs recovery."""
        self.flags.raise_fault(StoreFault.NOT_WRITEABLE, reason)

    def _stop_writes(self, reason: str) -> None:
        """Refuses messages, a master's bytes, and every wait for an ack, until a restart."""
        if self.replica_log is not None:
            self.replica_log.refuse(reason)
        try:
            self._fail(reason)
        finally:  # the flag is raised first; a listener may fail
            self.watermarks.close(reason)

    def close(self) -> None:
        """Flushes everything and releases the store. Idempotent."""
        if self._closed:
            return
        self._closed = True
        failed = self.flags.bits & ~StoreFault.DISK_FULL != 0
        self.flags.raise_fault(StoreFault.NOT_WRITEABLE, "the store is closed")
        self.log.stop_appends()
        sound = self._threads.stop()
        self._syncer.stop()
        self.watermarks.close("the store is closed")
        failed = failed or not sound or self.watermarks.failure is not None
        dispatches = not self.engine.only_appends
        drained = not dispatches or self.dispatcher.behind <= 0
        flushed = self.watermarks.flushed >= self.watermarks.appended
        clean = drained and flushed and not failed
        if clean and dispatches:
            with contextlib.suppress(StoreFailed):  # without it the next start only takes longer
                self._notes.write(self._notes.snapshot())
        self._release(clean=clean)

    def _release(self, *, clean: bool = False) -> None:
        """Unmaps all files, then releases the store's lock. Removes the file `abort` if `clean`."""
        self._closed = True
        self._cold_reads.close()
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
        """Stores one message. Returns after the waits for disk and slave that flushDiskType and brokerRole require."""
        return self._writer().put(message)

    def put_many(self, messages: Sequence[Message]) -> BatchResult:
        """Stores all messages or none. They are contiguous in the log and share one flush."""
        return self._writer().put_many(messages)

    def put_async(self, message: Message) -> Future[PutResult]:
        """Like `put`, but returns a future without waiting for disk or slave. The future completes after the waits."""
        return self._writer().put_async(message)

    def append(self, message: Message, again: bool = False) -> PutResult:
        """Like `put`, but waits neither for the disk nor for a slave; OS_PAGECACHE_BUSY then means: try again.

        `again` is for a message of this store that gets another topic: limits that changed since do not refuse it.
        """
        return (self._put_path or self._writer()).append(message, again)

    def append_many(self, messages: Sequence[Message]) -> BatchResult:
        """Like `put_many`, but waits neither for the disk nor for a slave."""
        return self._writer().put_many(messages, wait=False)

    def put_arrow(self, batch: pa.RecordBatch) -> ArrowResult:
        """Stores the rows of a record batch. They are contiguous in the log and share one flush.

        Columns: `topic`, `body`; optionally `keys` (list of strings, or a string), `tags`, `properties` (map of
        strings), `queue_id`, `delay_level`, `flag`, `born_timestamp` (a time, or milliseconds). If one row is invalid,
        the whole batch is refused, and the result's `reason` names the row and its fault. A batch becomes visible
        atomically; one that is larger than a log file is split at file boundaries, and each part is atomic.
        """
        with needing_pyarrow():
            from penstock.store.put_arrow_batches import put_batch
        return put_batch(self._writer(), self.settings, batch)

    def _writer(self) -> PutPath:
        if self._put_path is None:
            raise self._read_only()
        return self._put_path

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Syncs the log up to its current end. Raises StoreFailed."""
        try:
            self._syncer.sync(0, all_files=True)
        except FlushFailed as error:
            raise StoreFailed(str(error), path=self.layout.root) from error

    def change_settings(self, **changes: Any) -> None:
        """Changes attributes of the settings that are in `settings.LIVE`. Raises BadSettings; then nothing changes."""
        put_path = self._writer()
        self.settings = settings = self.settings.with_live_changes(**changes)
        put_path.change_settings(settings)
        if self.retention is not None:
            self.retention.change_settings(settings)

    # -- the role --------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What this store may do in replication; brokerRole at the start, later changed by `change_role`."""
        return self.log.role

    def on_role_change(self, changed: Callable[[Role], object]) -> None:
        """Calls `changed` with the new role after each `change_role`, on the thread that changed it."""
        self.watermarks.on_role_change(changed)

    def change_role(self, role: Role) -> None:
        """Exchanges the role of an open store. Its epoch must be higher than all that this store knows.

        Puts that are being appended end under the former role. A put that still waits for a slave gets
        FLUSH_SLAVE_TIMEOUT. A slave must have stopped to follow its master: it flushes and dispatches what it has, then
        continues its queues; its `replica_log` refuses bytes from then on. The epoch of a master is on disk, with the
        log's end as its start, before this returns. A master that becomes a slave gets a new `replica_log`. A set of
        required replicas is empty afterwards. Raises BadSettings, or StoreFailed; then the role is unchanged.
        """
        self.roles.change(role)

    def require_replicas(self, replicas: frozenset[int] | None) -> None:
        """Puts a set of required replicas into force: see `Watermarks.require`. minInSyncReplicas applies from now on.

        `replicas` are the ids of the others; None ends the rule.
        """
        self.watermarks.require(replicas)
        self.log.reopen()

    @property
    def replica_log(self) -> ReplicaLog | None:
        """Appends the bytes of the master's log; None unless this is a slave."""
        return None if self._roles is None else self._roles.replica_log

    @property
    def roles(self) -> RoleChanges:
        """Changes the role, and begins and follows epochs. Raises StoreFailed if the store is closed or read-only."""
        self._check_open()
        if self._roles is None:
            raise self._read_only()
        return self._roles

    # -- reading queues --------------------------------------------------------------------------------------

    def get(
        self, topic: str, queue_id: int, offset: int, max_messages: int = 32, tags: str | TagFilter | None = None
    ) -> Page:
        """Returns messages of a queue from the queue offset `offset` on, with the status and the next queue offset.

        `tags` is a tag expression such as `a || b`; None selects all messages.
        """
        started, end = perf_counter(), self.watermarks.visible
        if self._closed or self.dispatcher.position < end:
            self.catch_up()
        wanted = EVERYTHING if tags is None else tags if isinstance(tags, TagFilter) else TagFilter(tags)
        page = self.pages.get(topic, queue_id, offset, max_messages, wanted, end)
        if self._closed:
            self._check_open()
        self.statistics.count_get(page, perf_counter() - started)
        return page

    def try_get(
        self, topic: str, queue_id: int, offset: int, max_messages: int, tags: TagFilter
    ) -> Page | ColdRead[Page]:
        """Like `get`, but never waits for dispatch or the disk. Returns a ColdRead if the page is not in memory.

        The newest messages are missing until the dispatch thread reaches them, or `try_catch_up` succeeds.
        """
        started = perf_counter()
        try:
            page = self.pages.get(topic, queue_id, offset, max_messages, tags, self.watermarks.visible, True)
        except NotResident:
            return ColdRead(partial(self.get, topic, queue_id, offset, max_messages, tags))
        if self._closed:
            self._check_open()
        self.statistics.count_get(page, perf_counter() - started)
        return page

    def read_cold(self, read: Callable[[], T], key: Hashable) -> Future[T]:
        """Runs a ColdRead, or another read that may block, in a thread of the store.

        One read of each `key` runs at a time; further ones wait for it. The future fails with StoreFailed if the disk
        cannot read the bytes. `close` cancels reads that have not begun.
        """
        return self._cold_reads.submit(read, key)

    def get_arrow(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] | None = None,
    ) -> ArrowPage:
        """Returns messages of a queue from the queue offset `offset` on as a record batch.

        `max_bytes` limits the total size of the messages' log records. A page ends at the end of a log or queue file,
        even below both limits; `next_begin_offset` continues it. `columns` are names of
        `penstock.format.arrow_schema.MESSAGE_SCHEMA`; None selects all columns.
        """
        started, reader = perf_counter(), self._arrow_reader(columns)
        self.catch_up()
        status_page = self.pages.get(topic, queue_id, offset, 0, EVERYTHING, self.watermarks.visible)
        page = reader.read_page(self.queues.find(topic, queue_id), status_page, offset, max_messages, max_bytes)
        self.statistics.count_arrow_page(page, perf_counter() - started)
        return page

    def log_arrow(
        self,
        start_offset: int = 0,
        max_bytes: int = MAX_BYTES,
        columns: Sequence[str] | None = None,
        max_messages: int = MAX_ROWS,
    ) -> LogPage:
        """Returns records of all topics in log order, and the physical offset of the next page.

        The first row is the first record at or after `start_offset`, which need not be the start of a record. A page is
        empty only if no record follows. Damaged bytes end a page. The next page skips them, so its first row may lie
        after its `start_offset`.
        """
        reader = self._arrow_reader(columns)
        self._check_open()
        return reader.read_log(start_offset, max_messages, max_bytes)

    def _arrow_reader(self, columns: Sequence[str] | None) -> ArrowReader:
        with needing_pyarrow():
            from penstock.format.arrow_rows import select_columns
            from penstock.store.arrow_batches import ArrowReader
        return ArrowReader(self.log, select_columns(columns), verify_crc=self.settings.verify_crc_on_read)

    # -- querying by key -------------------------------------------------------------------------------------

    def query(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 2**63 - 1, max_messages: int | None = None
    ) -> Hits:
        """Returns the newest records with this topic and key (or unique key), oldest first.

        Their store times lie within `begin_ms` and `end_ms`, inclusive. Returns at most `max_messages` records
        (default: defaultQueryMaxNum), and never more than maxMsgsNumBatch.
        """
        keys, log_end = self._key_query()
        wanted = self.settings.default_query_max_num if max_messages is None else max_messages
        hits = keys.find(topic, key, begin_ms, end_ms, min(wanted, self.settings.max_msgs_num_batch), log_end)
        self._check_open()
        return hits

    def query_many(
        self, topic: str, keys: list[str], begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> tuple[Longs, Longs]:
        """Finds all records that have any of these keys. Returns two arrays: positions in `keys`, and physical offsets.

        The number of records is not limited. Much faster per key than `query`, with the same checks.
        """
        key_query, log_end = self._key_query()
        hits = key_query.find_many(topic, keys, begin_ms, end_ms, log_end)
        self._check_open()
        return hits

    def query_many_messages(
        self, topic: str, keys: list[str], begin_ms: int = 0, end_ms: int = 2**63 - 1
    ) -> tuple[Longs, list[Record]]:
        """Like `query_many`, with the messages instead of their physical offsets."""
        key_query, log_end = self._key_query()
        hits = key_query.read_many(topic, keys, begin_ms, end_ms, log_end)
        self._check_open()
        return hits

    def _key_query(self) -> tuple[KeyQuery, int]:
        """Returns the search by key, and the physical offset up to which it may read; dispatches up to there."""
        if self._keys is None:
            raise BadStore(
                "there is no index: messageIndexEnable is false; set it, and run `penstock store rebuild --index`",
                path=self.layout.root,
            )
        log_end = self.watermarks.visible
        if self._closed or self.dispatcher.position < log_end:
            self.catch_up()
        return self._keys, log_end

    # -- offsets and times -----------------------------------------------------------------------------------

    def look_up(self, physical_offset: int, *, at_once: bool = False) -> Record | None:
        """Returns the record at a physical offset, from a stranger perhaps; None if no record of the log begins there.

        With `at_once`, all three look-ups raise NotResident instead of waiting for disk or dispatch. See `try_read`.
        """
        self._check_open()
        return self.records.at(physical_offset, at_once=at_once)

    def try_look_up(self, physical_offset: int) -> Record | ColdRead[Record | None] | None:
        """Like `look_up`, but never waits for the disk: returns a ColdRead if the record is not in memory."""
        return try_read(self.look_up, physical_offset)

    def look_up_encoded(self, physical_offset: int, *, at_once: bool = False) -> bytes | None:
        """Like `look_up`, but returns the record's bytes."""
        self._check_open()
        return self.records.encoded_at(physical_offset, at_once=at_once)

    def look_up_id(self, msg_id: str, *, at_once: bool = False) -> Record | None:
        """Returns the record with this offset message id, or None. Raises BadMessage if the id is malformed."""
        record = self.look_up(decode_message_id(msg_id)[1], at_once=at_once)
        return record if record is not None and record.msg_id == msg_id.upper() else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.NEAREST) -> int:
        """Returns the queue offset that `boundary` selects for a store time in ms; 0 if the queue does not exist."""
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else self._times.find(queue, timestamp, boundary)

    def min_offset(self, topic: str, queue_id: int, *, at_once: bool = False) -> int:
        """Queue offset of the oldest message, -1 if the queue does not exist. See `look_up` for `at_once`."""
        queue = self._queue(topic, queue_id, at_once)
        return -1 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int, *, at_once: bool = False) -> int:
        """Queue offset that the next message will get; 0 if the queue does not exist. See `look_up` for `at_once`."""
        queue = self._queue(topic, queue_id, at_once)
        return 0 if queue is None else queue.max_offset

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time in ms of the message at a queue offset; -1 if the message does not exist."""
        queue = self._queue(topic, queue_id)
        return -1 if queue is None else self._times.store_time(queue, offset)

    def earliest_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time in ms of the oldest message of a queue, or without `topic` of the log; -1 if there is none."""
        self._check_open()
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        return self.records.store_timestamp(self.log.min_offset) if self.log.max_offset else -1

    def topics(self) -> list[str]:
        """The topics that have a queue, sorted."""
        self.catch_up()
        return self.queues.topics()

    def _queue(self, topic: str, queue_id: int, at_once: bool = False) -> ConsumeQueue | None:
        if not at_once:
            self.catch_up()
        elif not self.try_catch_up():
            raise NotResident
        return self.queues.find(topic, queue_id)

    # -- deleting --------------------------------------------------------------------------------------------

    def delete_expired(self) -> None:
        """Asks the cleaner to delete files older than fileReservedTime now, ignoring deleteWhen. Returns at once."""
        self._open_retention().cleaner.request()

    def delete_topic(self, topic: str) -> bool:
        """Deletes a topic's queues for good. Returns False if the topic does not exist.

        The topic's messages stay in the log until the log files expire: `get` no longer returns them, `query` still
        does. Messages put later under the same topic start at queue offset 0. If it raises StoreFailed, either nothing
        was deleted, or the next start completes the deletion.
        """
        return self._open_retention().topics.delete_topic(topic)

    def deleted_topics(self) -> Mapping[str, int]:
        """Returns, by deleted topic, the physical offset before which the topic's records are ignored."""
        return self.engine.deleted_topics.ends

    def delete_as_master(self, ends: Mapping[str, int]) -> list[str]:
        """Repeats the deletions in a master's `deleted_topics`, as far as this log reaches. Returns the new ones."""
        return self._open_retention().topics.delete_before(ends)

    def clean_unused_topics(self, known_topics: Collection[str]) -> list[str]:
        """Deletes every topic that is not in `known_topics`, like `delete_topic`. Returns the deleted topics.

        RocketMQ's own topics for delayed messages and ended transactions are always kept.
        """
        return self._open_retention().topics.delete_unused(known_topics)

    def clean_expired_queues(self) -> list[tuple[str, int]]:
        """Deletes queues that have no message left in the log. Returns their (topic, queue id).

        The next message of such a queue gets queue offset 0. A consumer whose offset is higher misses the messages
        below its offset. The queues of delayed messages and transactions stay.
        """
        return self._open_retention().topics.delete_expired_queues()

    def explain_retention(self, offsets: GroupOffsets | None = None) -> Outlook:
        """Returns the files that retention would delete now and at the next deleteWhen hour.

        The outlook gives the reason, and the consumer groups that have not read those files. `offsets` are the next
        queue offsets of the groups by (topic, group) and queue id; default: those in the config files. Changes nothing.
        Raises BadStore if a config file cannot be read.
        """
        self.catch_up()
        return explain_retention(self.engine, self.settings, self.records, offsets)

    def _open_retention(self) -> Retention:
        self.catch_up()
        if self.retention is None:
            raise self._read_only()
        return self.retention

    # -- following -------------------------------------------------------------------------------------------

    def on_arrival(self, arrived: Arrived) -> None:
        """Calls `arrived` when messages become visible in a queue, on the thread that dispatched them."""
        self.dispatcher.on_arrival(arrived)

    def catch_up(self) -> None:
        """Dispatches all confirmed messages. Stops early without an error if the disk has no room for queues or index.

        Raises StoreFailed if the store is closed, because a get would look like one of an empty queue.
        """
        self._check_open()
        if self.dispatcher.behind > 0:
            with contextlib.suppress(StoreFailed):
                self.dispatcher.catch_up()

    def try_catch_up(self) -> bool:
        """Like `catch_up`, but returns False at once if another thread dispatches, or keeps dispatch paused."""
        self._check_open()
        try:
            return self.dispatcher.behind <= 0 or self.dispatcher.try_catch_up()
        except StoreFailed:
            return True

    def figures(self) -> Snapshot:
        """Returns counters, rates, and the lag of flush and dispatch."""
        return self.statistics.snapshot(
            dispatch=self.dispatcher.lag(),
            dispatch_skipped=self.dispatcher.skipped_bytes,
            flush_behind=max(self.watermarks.appended - self.watermarks.flushed, 0),
            put_lock_held=self.log.locked_for(),
            transient_buffers_free=2**31 - 1 if self._pool is None else self._pool.available,
            puts_refused=self.flags.reason,
            retention=None if self.retention is None else self.retention.figures(),
        )
