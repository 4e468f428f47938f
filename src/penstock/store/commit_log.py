"""The commit log: every message of every topic, in order of arrival.

The log owns the folder `commitlog`, the put lock, and the table of next queue offsets. The compiled appender shares
that table. `append_ordinary` and `append_ordinary_batch` are the fast path: the appender appends one message or one
batch in one step. Messages that the appender declines take the general path, `append`. The general path holds the put
lock and closes the appender meanwhile.

Any thread may append or read; reading takes no lock. A record's size and magic are stored last, so another process that
reads the file sees the whole record or none of it. A crash leaves whole records and at most one torn record at the
tail, which recovery truncates.

An exception may interrupt a put anywhere on the general path: Ctrl-C, or a signal handler that raises. Before the
general path writes, it notes where (`_unfinished`). Whatever ends the put, `exclusive` then settles it: messages that
readers in other processes may have seen are stored, all others are taken back. Until that is done the fast path stays
closed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock.clock import now_ms
from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE, MESSAGE_MAGIC
from penstock.format.hosts import encode_host
from penstock.format.put_rows import PutRows
from penstock.format.record_layout import SIZE_AND_MAGIC
from penstock.store.encode_message import Prepared, PutRefused
from penstock.store.files.file_io import Files, unlock_memory
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.files.preallocate import AT_ONCE_SECONDS, Allocator, FileNotReady
from penstock.store.message import Message, PutResult, PutStatus
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.settings import Settings
from penstock.store.watermarks import Watermarks
from penstock.store.worker_thread import noop

log = logging.getLogger("penstock.store")
_BUSY_LIMIT_MS = 10_000_000
_MAX_CACHED_HOSTS = 10_000
_MIN_BULK_WRITE = 64 << 10
FIRST_STEP: Final = 1 << 20
LAST_STEP: Final = 32 << 20
"""Disk blocks of a log that grows are allocated in steps from the first to the last size, in bytes."""
_PREFAULT_STEP = 8 << 20
"""A replica asks for prefaulted pages each time it has appended this many bytes; in a master the appender does."""


class _Unfinished(msgspec.Struct):
    """An append that has begun to write to a file, and has not moved the file's end behind what it writes."""

    file: MappedFile
    start: int
    stop: int
    """The bytes of the file that it writes."""
    head: bytes
    """Size and magic of the first record, which are written last; empty if these bytes are no records."""
    timestamp: int
    """Store time in ms of its last record; 0 if that is not known."""
    next_offsets: list[tuple[str, int, int]] = []
    """The topic, queue id and next queue offset of each queue that gets records."""

    @property
    def is_visible(self) -> bool:
        """Whether others may have seen it: readers of the file in other processes, or this one's."""
        if self.file.wrote > self.start:
            return True
        if not self.head or self.file.buffer is not None:
            return False
        return bool(self.file.map.view[self.start : self.start + len(self.head)] == self.head)


class CommitLog:
    """Appends records and reads them back by physical offset."""

    def __init__(self, files: Files, folder: Path, settings: Settings, clock: Callable[[], int]) -> None:
        self.queue = MappedFileQueue(files, folder, settings.mapped_file_size_commit_log)
        self.watermarks = Watermarks(self.queue, settings)
        self._next_offsets: dict[str, dict[int, int]] = {}
        """Next queue offset by topic and queue id. All its topics have legal names."""
        self.appender = kernels.Appender(
            Message,
            PutResult,
            PutStatus.PUT_OK,
            None if clock is now_ms else clock,
            settings.store_host,
            encode_host(settings.store_host),
            settings.max_message_size,
            settings.max_record_size,
            settings.enabled_append_prop_crc,
        )
        """The fast path into the log; other modules only read its counters."""
        self.appender.queues = self._next_offsets
        self.appender.wake, self.appender.page_need = self.wake_follower, noop
        self.append_ordinary: Callable[[Message], PutResult | None] = self.appender.append
        """Appends one message on the fast path. Returns None and changes nothing if it needs the general path."""
        self.append_ordinary_batch: Callable[[Sequence[Message]], list[PutResult] | None] = self.appender.append_many
        """Like `append_ordinary`, for a batch. The batch becomes visible atomically."""
        self._is_follower_asleep = False
        self._wake_follower: Callable[[], object] = noop
        self._is_writable = False
        """Whether the store's flags allow puts."""
        self._settings = settings
        self._clock = clock
        self._allocator: Allocator | None = None
        self._lock = threading.Lock()
        self._locked_at = 0.0
        self._stopped = False
        self._unfinished: _Unfinished | None = None
        """The append that is being written on the general path, or that an exception has interrupted."""
        self._begin_epoch: Callable[[int], object] | None = None
        """Notes the epoch of the present role before its first append; None once that is done, or not needed."""
        self._pages_needed_at = 0
        self._grows = settings.log_grows
        self._busy_after = settings.os_page_cache_busy_time_out_mills / 1000

    def limit_sizes(self, max_message_size: int, max_record_size: int) -> None:
        """Sets the largest body and the largest record that the fast path accepts."""
        self.appender.max_body_bytes, self.appender.max_record_bytes = max_message_size, max_record_size

    def start(self, allocator: Allocator) -> None:
        self._allocator = allocator
        if self.queue.last is not None:
            allocator.follow(self.queue.last)
        self._attach()
        self.set_open(True)

    def _attach(self) -> None:
        """Gives the appender the last file, if messages may be appended to it."""
        last = self.queue.last if self.role.accepts_puts else None
        if last is not None:
            try:
                self._reserve(last, 0)
            except StoreFailed as error:  # each put tries again, on the general path
                log.error("the store refuses messages until the disk has room: %s", error)
                last = None
        if last is None:
            self.appender.detach()
        else:
            self._attach_to(last)

    def _attach_to(self, file: MappedFile) -> None:
        """Gives the appender the part of a file that has disk blocks. It declines what does not fit into that part."""
        reserved = file.map.reserved
        target = file.target if reserved >= file.size else file.target[:reserved]
        self.appender.attach(target, file.marks, file.from_offset)

    def set_open(self, is_open: bool) -> None:
        """Opens or closes the fast path. In a slave the fast path stays closed; the general path refuses messages."""
        self._is_writable = is_open
        if not self._is_open:
            self.appender.is_open = False
        elif self._lock.acquire(blocking=False):  # else the general path opens it when it ends
            self.appender.is_open = self._is_open
            self._lock.release()

    def reopen(self) -> None:
        """Opens or closes the fast path again, because what decides that has changed."""
        self.set_open(self._is_writable)

    @property
    def role(self) -> Role:
        return self.watermarks.role

    @property
    def _is_open(self) -> bool:
        accepts = self.role.accepts_puts and self.watermarks.has_enough_replicas
        return self._is_writable and accepts and self._begin_epoch is None and self._unfinished is None

    def begin_epoch_with(self, begin: Callable[[int], object] | None) -> None:
        """Calls `begin` with the log's end before the next append, inside `exclusive`; the fast path waits for that.

        `begin` may raise StoreFailed; then the append is refused, and the next one tries again. None: nothing to begin.
        """
        self._begin_epoch = begin

    def begin_epoch(self) -> None:
        """Begins the epoch now, if that is not done yet, inside `exclusive`. Raises StoreFailed."""
        if self._begin_epoch is not None:
            self._begin_epoch(self.queue.wrote_offset)
            self._begin_epoch = None

    def _check_and_begin(self) -> None:
        """Checks that this log takes messages, and begins its epoch before the first one. Raises PutRefused."""
        self.check_accepts_puts()
        try:
            self.begin_epoch()
        except StoreFailed as error:
            raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, f"the store takes no messages: {error}") from None

    def change_role(self, role: Role) -> None:
        """Exchanges the role, inside `exclusive`. The caller then calls `Watermarks.role_changed` outside."""
        self.watermarks.change_role(role)
        self._attach()

    def take_over(self, end: int, next_offsets: Iterable[tuple[str, int, int]]) -> None:
        """Prepares a replica for appends, inside `exclusive`: sets the next offset of each (topic, queue id).

        `end` is where dispatch ended. It lies behind the end of the log if only a part of a filler has arrived; then
        the log continues behind the filler.
        """
        last = self.queue.last
        if last is not None:
            last.wrote = max(last.wrote, end - last.from_offset)
        self._next_offsets.clear()
        for topic, queue_id, offset in next_offsets:
            self.set_next_offset(topic, queue_id, offset)

    def on_visible(self, wake: Callable[[], object]) -> None:
        """Calls `wake` when there are new visible records, if the dispatch thread is asleep: see `set_follower_asleep`.

        Under SYNC_FLUSH that is after a sync, with a sync set after a report of a replica, else after each append.
        """
        self._wake_follower = wake
        self.watermarks.on_advance(self.wake_follower)

    def on_page_need(self, page_need: Callable[[], object]) -> None:
        """Calls `page_need` after every 8 MiB appended, so that the next pages are prefaulted in time."""
        self.appender.page_need = page_need

    def set_follower_asleep(self, is_asleep: bool) -> None:
        """Sets whether the dispatch thread sleeps, so that the next visible records wake it."""
        self._is_follower_asleep = is_asleep
        waits = self.watermarks.needs.flushed or self.watermarks.is_limited
        self.appender.is_follower_asleep = is_asleep and not waits

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """Physical offset at which the readable records end."""
        return self.queue.max_offset

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset that the queue's next message will get."""
        return self._next_offsets.get(topic, {}).get(queue_id, 0)

    def set_next_offset(self, topic: str, queue_id: int, offset: int) -> None:
        self._next_offsets.setdefault(topic, {})[queue_id] = offset

    def next_offsets(self) -> Iterator[tuple[str, int, int]]:
        """Yields (topic, queue id, next queue offset) of every known queue. Appends may run meanwhile."""
        for topic, queues in list(self._next_offsets.items()):
            for queue_id, offset in list(queues.items()):
                yield topic, queue_id, offset

    @property
    def newest_timestamp(self) -> int:
        """Store time in ms of the newest record."""
        return self.appender.newest_timestamp

    @newest_timestamp.setter
    def newest_timestamp(self, timestamp: int) -> None:
        self.appender.newest_timestamp = timestamp

    @property
    def confirmed_offset(self) -> int:
        """Physical offset up to which consumers may see records: the visible watermark. Slaves may have more."""
        return self.watermarks.visible

    def roll_next(self, offset: int) -> int:
        """Physical offset at which the file after that of `offset` begins."""
        return offset + self.queue.file_size - offset % self.queue.file_size

    # -- appending -------------------------------------------------------------------------------------------

    def locked_for(self) -> float:
        """Seconds for which the put lock has been held, 0 if it is free."""
        since = self._locked_at
        return time.monotonic() - since if since else 0.0

    def busy(self) -> bool:
        """Whether the put lock has been held for longer than osPageCacheBusyTimeOutMills."""
        return self._busy_after < self.locked_for() < _BUSY_LIMIT_MS / 1000

    def stop_appends(self) -> None:
        """Refuses all later appends on the general path. Returns when none is running."""
        with self._lock:
            self._stopped = True
            self._settle()

    @contextlib.contextmanager
    def exclusive(self, *, at_once: bool = False) -> Iterator[None]:
        """Holds the put lock and keeps the appender closed. Raises PutRefused after `stop_appends`.

        With `at_once` it also raises PutRefused if another thread holds the lock for more than a few milliseconds.
        """
        if not self._lock.acquire(timeout=AT_ONCE_SECONDS if at_once else -1):
            raise PutRefused(PutStatus.OS_PAGECACHE_BUSY, "another put holds the log; try again")
        try:
            if self._stopped:
                raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the store takes no messages: the store is closed")
            self._locked_at = time.monotonic()
            self.appender.is_open = False
            try:
                self._settle()  # a second exception may have interrupted that in the append before
                yield
            finally:
                self._locked_at = 0.0
                self._settle()
                self.appender.is_open = self._is_open
        finally:
            self._lock.release()

    def check_is_master(self) -> None:
        """Raises PutRefused in a slave."""
        if not self.role.accepts_puts:
            raise PutRefused(
                PutStatus.SERVICE_NOT_AVAILABLE, "this is a slave, which takes no messages; send to its master"
            )

    def check_accepts_puts(self) -> None:
        """Raises PutRefused in a slave, and in a master whose sync set has fewer than minInSyncReplicas replicas."""
        self.check_is_master()
        if not self.watermarks.has_enough_replicas:
            raise PutRefused(
                PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
                f"only {len(self.watermarks.required or ()) + 1} replicas are in sync, and minInSyncReplicas asks for "
                f"{self._settings.min_in_sync_replicas}; send to another broker, or wait until a slave has caught up",
            )

    def restart_queues(self, select: Callable[[], Iterable[tuple[str, int]]], note: Callable[[int], None]) -> None:
        """Resets the next offset of the queues that `select` returns to 0. Holds the put lock meanwhile.

        Calls `note` with the log's end before the reset; if `note` raises, nothing changes. Raises PutRefused after
        `stop_appends`.
        """
        with self.exclusive():
            restarted = list(select())
            note(self.queue.wrote_offset)
            for topic, queue_id in restarted:
                self._next_offsets.get(topic, {}).pop(queue_id, None)

    def append(self, messages: Sequence[Prepared], *, at_once: bool = False) -> list[PutResult]:
        """Appends all messages to one file. They become visible atomically. If it raises PutRefused, none is stored.

        With `at_once` it waits only a few milliseconds for the put lock and for a new file.
        """
        total = sum(message.size for message in messages)
        with self.exclusive(at_once=at_once):
            self._check_and_begin()
            file = self._file_for(total, at_once=at_once)
            now = self._clock()
            unfinished = self._begin(file, total, messages[0].size, now)
            results = self._encode(file, messages, now, unfinished.next_offsets)
            kernels.publish(file.target, unfinished.start, messages[0].size)
            self._finish(unfinished)
            self._keep_hosts(messages)
        self._appended()
        return results

    def append_rows(self, batch: PutRows) -> tuple[int, int, str]:
        """Appends planned rows. Rows that do not fit into one file are split into pieces at file boundaries.

        Each piece becomes visible atomically. Returns the number of rows stored, their store time in ms, and why no
        file could be created for the remaining rows (empty if all are stored). If it raises PutRefused, nothing is
        stored.
        """
        done, failure = 0, ""
        with self.exclusive():
            self._check_and_begin()
            now = self._clock()
            next_offsets = np.array([self.next_offset(*queue) for queue in batch.queues], np.int64)
            while done < len(batch) and not failure:
                try:
                    file, stop = self._file_for_rows(batch, done)
                except PutRefused as refused:
                    if not done:
                        raise
                    failure = refused.reason
                else:
                    self._append_piece(file, batch, done, stop, next_offsets, now)
                    done = stop
        self._appended()
        self.appender.page_need()
        return done, now, failure

    def append_bytes(self, offset: int, data: memoryview, *, whole: bool, newest: int, epoch: int) -> None:
        """Appends bytes of a master's log, which must lie within one file. An empty log starts at `offset`.

        `whole` says that `data` holds whole records; then `newest` is the store time of the last one. `epoch` is that
        of the role under which the bytes were received. Raises StoreFailed, or PutRefused after `stop_appends`, if this
        is no slave, and if its role has another epoch.
        """
        assert self._allocator is not None, "the log was not started"
        with self.exclusive():
            if not self.role.takes_replica_bytes:
                raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, f"this is no slave any more, but {self.role}")
            if epoch != self.role.epoch:
                raise PutRefused(
                    PutStatus.SERVICE_NOT_AVAILABLE,
                    f"these bytes were received in epoch {epoch}, and this slave is in epoch {self.role.epoch}",
                )
            file = self.queue.writable(offset, self._allocator.allocate)
            self._reserve(file, len(data))
            head = bytes(data[:BLANK_HEADER_SIZE])
            self._unfinished = _Unfinished(
                file, file.wrote, file.wrote + len(data), head if whole else b"", newest if whole else 0
            )
            bulk = len(data) >= _MIN_BULK_WRITE and file.buffer is None
            if bulk:  # a write is cheaper than the page faults of new pages; the header is stored last
                file.map.write(file.wrote + BLANK_HEADER_SIZE, data[BLANK_HEADER_SIZE:])
            if whole:
                kernels.copy_published(file.target, file.wrote, head if bulk else data)
            else:
                rest = head if bulk else data
                file.target[file.wrote : file.wrote + len(rest)] = rest
            self._finish(self._unfinished)
        self._appended()
        end = offset + len(data)
        if not bulk and end >= self._pages_needed_at:
            self._pages_needed_at = end + _PREFAULT_STEP
            self.appender.page_need()

    def _append_piece(
        self, file: MappedFile, batch: PutRows, start: int, stop: int, next_offsets: kernels.Longs, now: int
    ) -> None:
        """Writes rows [start, stop) at `file.wrote` and advances the queue offsets. The first row is published last."""
        first, first_size = file.wrote, int(batch.rows["size"][start])
        unfinished = self._begin(file, batch.size(start, stop), first_size, now)
        batch.encode(file.target, first, file.from_offset + first, start, stop, next_offsets, now)
        unfinished.next_offsets = [
            (topic, queue_id, offset)
            for (topic, queue_id), offset in zip(batch.queues, next_offsets.tolist(), strict=True)
        ]
        kernels.publish(file.target, first, first_size)
        self._finish(unfinished)

    def _begin(self, file: MappedFile, size: int, first_size: int, now: int) -> _Unfinished:
        """Notes that `size` bytes of records will be written at the end of a file. Call it before any is written."""
        head = SIZE_AND_MAGIC.pack(first_size, MESSAGE_MAGIC)
        self._unfinished = unfinished = _Unfinished(file, file.wrote, file.wrote + size, head, now)
        return unfinished

    def _finish(self, unfinished: _Unfinished) -> None:
        """Moves the end of the file behind records that are written and published. Advances their queues. Idempotent.

        The appender goes on behind them.
        """
        file = unfinished.file
        if unfinished.timestamp:
            file.store_timestamp = self.newest_timestamp = unfinished.timestamp
        file.wrote = unfinished.stop
        for topic, queue_id, offset in unfinished.next_offsets:
            self.set_next_offset(topic, queue_id, offset)
        if self.role.accepts_puts:
            self._attach_to(file)
        self._unfinished = None

    def _settle(self) -> None:
        """Ends an append that an exception has interrupted, with the put lock held: all of it is there, or nothing.

        It is there if others may have seen it. Otherwise no byte of it survives a clean close.
        """
        unfinished = self._unfinished
        if unfinished is None:
            return
        if unfinished.is_visible:
            self._finish(unfinished)
            self._appended()
            return
        first_size = SIZE_AND_MAGIC.unpack(unfinished.head)[0] if unfinished.head else 0
        kernels.take_back(unfinished.file.target, unfinished.start, unfinished.stop, first_size)
        self._unfinished = None

    def _file_for_rows(self, batch: PutRows, start: int) -> tuple[MappedFile, int]:
        """Returns the file for the rows from `start` on, and the number of the first row that does not fit into it."""
        if batch.size(0, len(batch)) <= self.queue.file_size - BLANK_HEADER_SIZE:
            return self._file_for(batch.size(start, len(batch))), len(batch)
        file = self._file_for(batch.size(start, start + 1))
        stop = batch.fitting(start, file.size - file.wrote - BLANK_HEADER_SIZE)
        return self._file_for(batch.size(start, stop)), stop

    def wake_follower(self) -> None:
        if self._is_follower_asleep:
            self._is_follower_asleep = False
            self._wake_follower()

    def _appended(self) -> None:
        """Notifies as the appender does after an append of its own."""
        if self.appender.is_follower_asleep:
            self.appender.is_follower_asleep = False
            self.appender.wake()

    def _encode(
        self, file: MappedFile, messages: Sequence[Prepared], now: int, next_offsets: list[tuple[str, int, int]]
    ) -> list[PutResult]:
        """Writes the records at `file.wrote`. Leaves the first record unpublished, which hides them all.

        Appends the topic, queue id and next queue offset of each queue to `next_offsets`.
        """
        target, position = file.target, file.wrote
        later: dict[tuple[str, int], int] = {}
        results: list[PutResult] = []
        for message in messages:
            key = (message.topic, message.queue_id)
            queue_offset = 0
            if message.queued:
                queue_offset = later.get(key, -1) + 1 or self.next_offset(*key)
                later[key] = queue_offset
            physical = file.from_offset + position
            size = kernels.encode_record(
                target,
                position,
                physical,
                queue_offset,
                now,
                message.queue_id,
                message.flag,
                message.sys_flag,
                message.born_timestamp or now,
                message.born_host,
                message.store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                message.body,
                message.topic_bytes,
                message.properties,
                bool(results),
            )
            results.append(
                PutResult(
                    PutStatus.PUT_OK, physical, size, message.queue_id, queue_offset, now, message.store_host_text
                )
            )
            position += size
        next_offsets += [(topic, queue_id, offset + 1) for (topic, queue_id), offset in later.items()]
        return results

    def _keep_hosts(self, messages: Sequence[Prepared]) -> None:
        """Gives the appender the encoded hosts."""
        appender = self.appender
        if len(appender.hosts) > _MAX_CACHED_HOSTS:
            appender.hosts.clear()
        for message in messages:
            appender.hosts[message.born_host_text] = message.born_host
            appender.hosts[message.store_host_text] = message.store_host

    def _file_for(self, size: int, *, at_once: bool = False) -> MappedFile:
        """Returns a file with room for `size` bytes and a filler. Fills up and rolls the last file if it has none."""
        if size + BLANK_HEADER_SIZE > self.queue.file_size:
            raise PutRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"{size} bytes in one batch do not fit a log file of {self.queue.file_size} bytes",
            )
        try:
            file = self._writable(size, at_once)
            if size + BLANK_HEADER_SIZE > file.size - file.wrote:
                self._fill(file)
                file = self._writable(size, at_once)
        except StoreFailed as error:
            if at_once and isinstance(error, FileNotReady):
                raise PutRefused(PutStatus.OS_PAGECACHE_BUSY, "the next log file is not ready; try again") from None
            raise PutRefused(PutStatus.CREATE_MAPEDFILE_FAILED, str(error)) from None
        return file

    def _writable(self, size: int, at_once: bool) -> MappedFile:
        assert self._allocator is not None, "the log was not started"
        at_once = at_once and self.queue.last is not None  # the first file of all is worth a wait
        file = self.queue.writable(self.queue.flushed_where, partial(self._allocator.allocate, at_once=at_once))
        self._reserve(file, size)
        return file

    def _reserve(self, file: MappedFile, size: int) -> None:
        """Makes sure that the next `size` bytes of a file, and a filler, have disk blocks. Raises StoreFailed.

        A log that grows gets them in steps, which double up to LAST_STEP; on a disk without room for such a step, in
        the smallest. Otherwise the unwritten rest of a file that RocketMQ or a copy left sparse gets them at once.
        """
        if not self._grows:
            file.map.reserve(file.wrote, file.size, file.size)
            return
        stop = min(file.wrote + size + BLANK_HEADER_SIZE, file.size)
        if stop > file.map.reserved:
            try:
                file.map.reserve(file.wrote, stop, min(max(FIRST_STEP, 1 << stop.bit_length()), LAST_STEP))
            except StoreFailed:
                file.map.reserve(file.wrote, stop, FIRST_STEP)
            self.appender.page_need()

    def _fill(self, file: MappedFile) -> None:
        """Ends a file with a filler record. Zeroes old bytes of a reused pool buffer, so they never reach the disk."""
        self.appender.detach()
        left = file.size - file.wrote
        if file.buffer is not None:
            file.target[file.wrote + BLANK_HEADER_SIZE :] = bytes(left - BLANK_HEADER_SIZE)
        kernels.write_blank(file.target, file.wrote, left)
        file.wrote = file.size
        if self._settings.warm_mapped_file_enable:
            unlock_memory(file.map.memory)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: int, size: int, *, at_once: bool = False) -> bytes | None:
        """Returns `size` bytes at `offset`; None if the log does not have them (any more). See `MappedFile.read`."""
        return self.queue.read(offset, size, at_once=at_once)

    def close(self) -> None:
        self.set_open(False)
        self.appender.detach()
        if self._allocator is not None:
            self._allocator.close()
        self.queue.close()
