"""MessageStore: the one door to a store.

Opening takes the lock, recovers, and starts the threads; closing flushes, writes the checkpoint and removes `abort`.
Any number of threads may put and get; one process owns a store. `read_only=True` shows the store as a start would
serve it and leaves every byte on disk as it is, also while another process owns it.

Whoever reads sees every message that was acknowledged before: a read first has the newest part of the log
dispatched if the dispatch thread has not come to it yet.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.clock import now_ms
from penstock.errors import BadStore, StoreFailed
from penstock.store.allocate import Allocator
from penstock.store.arrow_methods import ArrowMethods
from penstock.store.checkpoint_file import CheckpointFile
from penstock.store.commit_log import CommitLog
from penstock.store.deleted_topics import DeletedTopics
from penstock.store.descriptors import allow_many_files
from penstock.store.disk_errors import disk_refused
from penstock.store.dispatch import Arrived, Dispatcher
from penstock.store.dispatch_state import DispatchNotes
from penstock.store.external.follower import ExternalDispatch
from penstock.store.external.start import AppendOnlyStart
from penstock.store.files import Files
from penstock.store.flush import Syncer
from penstock.store.flush_methods import FlushMethods
from penstock.store.flush_threads import make_flush_threads
from penstock.store.get import Getter
from penstock.store.inline_start import InlineStart
from penstock.store.keeper import CheckpointKeeper, Keeper
from penstock.store.key_methods import KeyMethods
from penstock.store.layout import Layout
from penstock.store.master_bytes import MasterBytes
from penstock.store.message import Message
from penstock.store.other_engines import refuse_other_engines
from penstock.store.overlay_files import OverlayFiles
from penstock.store.position_methods import PositionMethods
from penstock.store.put import Putter
from penstock.store.quarantine import MayExceed, never
from penstock.store.query import KeyQuery, TimeSearch
from penstock.store.queues_and_index import QueuesAndIndex
from penstock.store.records import Records
from penstock.store.recovery import Progress, RecoveryReport, StartParts
from penstock.store.replicas import Replicas
from penstock.store.retention.methods import RetentionMethods
from penstock.store.retention.retention import Retention
from penstock.store.running_flags import RunningFlags, Trouble
from penstock.store.settings import BrokerRole, Dispatch, Settings
from penstock.store.sink.finish import finish_batch, forget_beyond
from penstock.store.statistics import Snapshot, Statistics
from penstock.store.status import BatchResult, Page, PutResult
from penstock.store.store_lock import StoreLock
from penstock.store.tag_filter import EVERYTHING, TagFilter
from penstock.store.transient_pool import TransientPool
from penstock.store.witness import Witness
from penstock.store.worker import Worker

log = logging.getLogger("penstock.store")


class MessageStore(ArrowMethods, FlushMethods, KeyMethods, PositionMethods, RetentionMethods):
    """An open store. Use `open`, and close it or use it in a `with` block."""

    report: RecoveryReport
    """What the start found and did."""

    def __init__(self, root: Path, settings: Settings, files: Files, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.layout = layout = Layout.of(root, settings)
        self._io = files
        self._clock = clock
        self.flags = RunningFlags()
        self._checkpoint = CheckpointFile(files, layout.checkpoint)
        self.log = CommitLog(files, layout.commit_log, settings, clock)
        self.statistics = Statistics(clock(), self.log.appender, appender_answers=settings.puts_answer_at_once)
        self.replicas = Replicas(settings)
        self.master_bytes: MasterBytes | None = None
        self._external = settings.dispatch is Dispatch.EXTERNAL and not files.read_only
        derived = OverlayFiles() if self._external else files
        self._derived = QueuesAndIndex.of(derived, layout, settings, clock)
        self.queues, self.index = self._derived.queues, self._derived.index
        parts = self.log, self.queues, self.index
        self.dispatcher = (
            ExternalDispatch(files, layout, settings, *parts, self.flags)
            if self._external
            else Dispatcher(*parts, settings.delay_levels, self.flags)
        )
        self._notes = DispatchNotes(files, layout.dispatched, *parts, self.dispatcher, settings)
        self._deleted_topics = DeletedTopics(files, layout.deleted_topics)
        self.retention: Retention | None = None
        self._getter = Getter(settings, self.log, self.queues)
        witness = Witness(self.queues, self.dispatcher)
        self.records = Records(self.log, verify_crc=settings.verify_crc_on_read, witness=witness)
        self._times = TimeSearch(self.records)
        self._keys: KeyQuery | None = None
        if self.index is not None:
            self._keys = KeyQuery(self.index, self.log, witness, verify_crc=settings.verify_crc_on_read)
        self._lock: StoreLock | None = None
        self._pool: TransientPool | None = None
        self._threads: list[Worker] = []
        self._flush_listeners: list[Callable[[], object]] = []
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
        lock: StoreLock | None = None,
        job_lock: StoreLock | None = None,
        progress: Callable[[Progress], object] = lambda progress: None,
        may_exceed: MayExceed = never,
    ) -> Self:
        """Opens the store in folder `path`, or in storePathRootDir, which is made if it is not there.

        Raises StoreInUse, BadStore, BadSettings or StoreFailed, and then leaves everything as it was. Who holds the
        store's lock gives it as `lock`, which closing the store releases, and that of external dispatch as `job_lock`.
        `progress` is called by one thread at a time, `may_exceed` before more than quarantineMaxBytes is kept aside.
        """
        settings = settings or Settings()
        root = Path(path or settings.store_path_root_dir)
        if read_only and not root.is_dir():
            raise BadStore("there is no store here: no such folder; check the path", path=root)
        if root.exists() and not root.is_dir():
            raise BadStore("a store is a folder, and this is a file; name a folder", path=root)
        allow_many_files()
        store = cls(root, settings, files or (OverlayFiles() if read_only else Files()), clock)
        store._lock = lock
        try:
            store._start(progress, may_exceed, job_lock)
        except BaseException as error:
            store._release()
            if isinstance(error, OSError):
                raise disk_refused("cannot open the store", Path(error.filename or root), 0, error) from error
            raise
        return store

    def _start(self, progress: Callable[[Progress], object], may_exceed: MayExceed, job_lock: StoreLock | None) -> None:
        files, layout = self._io, self.layout
        if not files.read_only:
            self._lock = self._lock or files.lock(layout.lock)
            refuse_other_engines(files, layout)
            for note in self.settings.notes():
                log.warning("%s", note)
        taken_back = "" if files.read_only else finish_batch(files, layout, self.settings.mapped_file_size_commit_log)
        self._checkpoint.load()
        if files.is_folder(layout.abort):
            raise BadStore("this must be a file, and it is a folder; move it elsewhere", path=layout.abort)
        clean = not files.exists(layout.abort)
        parts = StartParts(
            files=files,
            layout=layout,
            settings=self.settings,
            log=self.log,
            records=self.records,
            checkpoint=self._checkpoint.value,
            clock=self._clock,
            may_exceed=may_exceed,
            tell=progress,
            job_lock=job_lock,
        )
        start = AppendOnlyStart(parts) if self._external else InlineStart(parts, self._derived, self.dispatcher)
        with contextlib.closing(start):
            self._load_deletions(external=self._external)
            start.look(clean)
            if clean:
                files.replace_bytes(layout.abort, b"")
            self.report = start.act()
        if taken_back:
            self.report.notes.insert(0, taken_back)
        for note in self.report.notes:
            log.warning("%s", note)
        if files.read_only:
            return
        forget_beyond(files, layout, self.report.log_end)
        self._checkpoint.restart(self.log.newest_timestamp, log_only=self._external)
        self._checkpoint.write()
        self._start_threads()

    def _start_threads(self) -> None:
        settings = self.settings
        if settings.transient_pool_active:
            self._pool = TransientPool(settings.transient_store_pool_size, settings.mapped_file_size_commit_log)
        self.log.start(Allocator(self._io, settings, self._pool))
        self.flags.on_change(self.log.set_open)
        self.log.on_append(self.dispatcher.wake)
        self._threads, group_commit = make_flush_threads(settings, self.log, self._syncer, self.dispatcher)
        kept = self._derived, self._checkpoint, self._notes, self.dispatcher, self.statistics
        self._threads.append((CheckpointKeeper if self._external else Keeper)(settings, *kept, self._fail))
        parts = self.log, self.queues, self.index, self.dispatcher, self.flags, self._deleted_topics
        self.retention = Retention(settings, self._io, self.layout, self._clock, *parts)
        self._threads += self.retention.threads()
        replicas = self.replicas if settings.broker_role is BrokerRole.SYNC_MASTER else None
        self._threads += [] if replicas is None else [replicas]
        self._putter = Putter(settings, self.log, self.flags, self.statistics, group_commit, replicas)
        if settings.broker_role is BrokerRole.SLAVE:
            self.master_bytes = MasterBytes.instead_of_puts(self.log, group_commit)
        self._put = self._putter.put
        self.dispatcher.start()
        for thread in self._threads:
            thread.start()

    def _flushed(self, timestamp: int) -> None:
        self._checkpoint.set_log(timestamp)
        self.dispatcher.wake()
        self._tell_flushed()

    def _fail(self, reason: str) -> None:
        """Puts are refused from now on; only a restart, which recovers, ends that."""
        self.flags.raise_trouble(Trouble.NOT_WRITEABLE, reason)
        self._tell_flushed()

    def close(self) -> None:
        """Brings everything to disk and lets go of the store. Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        failed = self.flags.bits & ~Trouble.DISK_FULL != 0
        self.flags.raise_trouble(Trouble.NOT_WRITEABLE, "the store is closed")
        self.log.stop_appends()
        keeper = [thread for thread in self._threads if isinstance(thread, Keeper)]
        for thread in self._threads:
            if not isinstance(thread, Keeper):
                thread.stop()
        self.dispatcher.stop()
        for thread in keeper:
            thread.stop()
        failed = failed or self._syncer.failure is not None or any(k.failure is not None for k in keeper)
        drained = self._external or self.dispatcher.behind <= 0
        flushed = self.log.queue.flushed_where >= self.log.queue.wrote_offset
        clean = bool(self._threads) and drained and flushed and not failed
        if clean and not self._external:
            with contextlib.suppress(StoreFailed):  # without the note the next start takes longer, that is all
                self._notes.write(self._notes.take())
        self._release(clean=clean)

    def _release(self, *, clean: bool = False) -> None:
        """Unmaps everything; the lock goes last, and `abort` stays unless the exit is clean."""
        self._closed = True
        self.log.close()
        self._derived.close()
        self._checkpoint.close()
        if self._pool is not None:
            self._pool.close()
        if clean:
            with contextlib.suppress(OSError):
                self._io.unlink(self.layout.abort)
                self._io.sync_folder(self.layout.root)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def _refuse(self, message: Message) -> PutResult:
        return self._open_putter().put(message)

    def _open_putter(self) -> Putter:
        if self._putter is None:
            raise StoreFailed("the store was opened read-only; open it without `read_only`", path=self.layout.root)
        return self._putter

    # -- reading ---------------------------------------------------------------------------------------------

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

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed; open it again", path=self.layout.root)

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
