"""The commit log: every message of every topic, in the order of arrival.

Owns the folder `commitlog`, the put lock and the table of next queue offsets, which it lends to the kernels' appender.
An ordinary message is appended by that one in one step (`append_ordinary`); whatever it declines, and every batch,
takes the general path (`append`), which holds the lock and closes the appender meanwhile. Reading needs no lock. A
record's size and magic are stored last, so another process that follows the file sees nothing or a whole record. A
crash leaves whole records and perhaps one torn one behind them, which recovery cuts off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from penstock.clock import now_ms
from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.hosts import encode_host
from penstock.format.put_rows import PutRows
from penstock.store.io import Files, unlock_memory
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.message import Message, PutResult, PutStatus
from penstock.store.preallocate import Allocator
from penstock.store.prepare import Prepared, PutRefused
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.worker import noop

_BUSY_LIMIT_MS = 10_000_000
_MAX_HOSTS_KNOWN = 10_000
_WORTH_A_WRITE = 64 << 10
_PAGES_EVERY = 8 << 20
"""After so many bytes of a master's the next pages are asked for, as the appender does after its own."""


class CommitLog:
    """Appends records and reads them back by physical offset."""

    def __init__(self, files: Files, folder: Path, settings: Settings, clock: Callable[[], int]) -> None:
        self.queue = MappedFileQueue(files, folder, settings.mapped_file_size_commit_log)
        self._next_offsets: dict[str, dict[int, int]] = {}
        """Topics known to be legal, with the next queue offset of each of their queues."""
        self.appender = kernels.Appender(
            Message,
            PutResult,
            PutStatus.PUT_OK,
            None if clock is now_ms else clock,
            settings.store_host,
            encode_host(settings.store_host),
            settings.max_message_size,
            settings.max_record_size,
        )
        """The short way into the log; others only read its counters."""
        self.appender.queues = self._next_offsets
        self.appender.wake = self.appender.page_need = noop
        self.append_ordinary: Callable[[Message], PutResult | None] = self.appender.append
        """Appends one ordinary message; None, and nothing changed, if it has to take the general path."""
        self.append_ordinary_batch: Callable[[Sequence[Message]], list[PutResult] | None] = self.appender.append_many
        """The same for several messages, visible at once."""
        self._open = False
        self._is_replica = False
        self._settings = settings
        self._clock = clock
        self._allocator: Allocator | None = None
        self._lock = threading.Lock()
        self._locked_at = 0.0
        self._stopped = False
        self._pages_needed_at = 0
        self._sync_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._busy_after = settings.os_page_cache_busy_time_out_mills / 1000

    def start(self, allocator: Allocator) -> None:
        self._allocator = allocator
        last = self.queue.last
        if last is not None:
            self.appender.attach(last.target, last.marks, last.from_offset)
        self.set_open(True)

    def set_open(self, is_open: bool) -> None:
        """Opens or closes the short way, which stays closed in a replica; the general path then says why."""
        self._open = is_open and not self._is_replica
        if not self._open:
            self.appender.is_open = False
        elif self._lock.acquire(blocking=False):  # else the general path opens it when it is done
            self.appender.is_open = self._open
            self._lock.release()

    def become_replica(self) -> None:
        """From now on the log takes a master's bytes, and nothing else."""
        self._is_replica = True
        self.set_open(False)
        self.appender.detach()

    def on_append(self, wake: Callable[[], object]) -> None:
        """Calls `wake` after an append if the thread that follows the log is asleep."""
        self.appender.wake = wake

    def on_page_need(self, page_need: Callable[[], object]) -> None:
        """Calls back after every 8 MiB: the pages that follow should be made ready."""
        self.appender.page_need = page_need

    def set_follower_asleep(self, is_asleep: bool) -> None:
        """Whether the thread that follows the log waits to be woken by the next append."""
        self.appender.is_follower_asleep = is_asleep

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        return self.queue.min_offset

    @property
    def max_offset(self) -> int:
        """How far records may be read."""
        return self.queue.max_offset

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message of a queue gets."""
        return self._next_offsets.get(topic, {}).get(queue_id, 0)

    def set_next_offset(self, topic: str, queue_id: int, offset: int) -> None:
        self._next_offsets.setdefault(topic, {})[queue_id] = offset

    def next_offsets(self) -> Iterator[tuple[str, int, int]]:
        """(topic, queue id, next queue offset) of every queue that has one; appends may go on meanwhile."""
        for topic, queues in list(self._next_offsets.items()):
            for queue_id, offset in list(queues.items()):
                yield topic, queue_id, offset

    @property
    def newest_timestamp(self) -> int:
        """Store time of the newest record."""
        return self.appender.newest_timestamp

    @newest_timestamp.setter
    def newest_timestamp(self, timestamp: int) -> None:
        self.appender.newest_timestamp = timestamp

    @property
    def confirmed_offset(self) -> int:
        """How far records may be shown to consumers: under SYNC_FLUSH only what is on disk."""
        return self.queue.flushed_where if self._sync_flush else self.queue.max_offset

    def roll_next(self, offset: int) -> int:
        """The start of the file after the one that holds `offset`."""
        return offset + self.queue.file_size - offset % self.queue.file_size

    # -- appending -------------------------------------------------------------------------------------------

    def locked_for(self) -> float:
        """Seconds for which somebody has held the put lock, 0 if nobody does."""
        since = self._locked_at
        return time.monotonic() - since if since else 0.0

    def busy(self) -> bool:
        return self._busy_after < self.locked_for() < _BUSY_LIMIT_MS / 1000

    def stop_appends(self) -> None:
        """Returns when no append is under way; later ones are refused."""
        with self._lock:
            self._stopped = True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the put lock, with the appender closed. Raises PutRefused once appends are stopped."""
        with self._lock:
            if self._stopped:
                raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, "the store takes no messages: the store is closed")
            self._locked_at = time.monotonic()
            self.appender.is_open = False
            try:
                yield
            finally:
                self._locked_at = 0.0
                self.appender.is_open = self._open

    def forget(self, queues: Callable[[], Iterable[tuple[str, int]]], note: Callable[[int], None]) -> None:
        """Lets queues begin at offset 0 again. Nothing is put while `queues` says which and `note` takes the log's end.

        What `note` raises leaves everything as it was. Raises PutRefused once appends are stopped.
        """
        with self._alone():
            going = list(queues())
            note(self.queue.wrote_offset)
            for topic, queue_id in going:
                self._next_offsets.get(topic, {}).pop(queue_id, None)

    def append(self, messages: Sequence[Prepared]) -> list[PutResult]:
        """Appends all or none, in one file, visible at once. Raises PutRefused; nothing is stored then."""
        total = sum(message.size for message in messages)
        with self._alone():
            file = self._room_for(total)
            now = self._clock()
            results = self._encode(file, messages, now)
            first = file.wrote
            if len(messages) > 1:
                kernels.publish(file.target, first, messages[0].size)
            file.store_timestamp = self.newest_timestamp = now
            file.wrote = first + total
            self._remember(file, messages, results)
        self.wake_follower()
        return results

    def append_rows(self, batch: PutRows) -> tuple[int, int, str]:
        """Appends planned rows: in one file if they fit one, else in pieces that end where files do.

        Each piece is visible at once. Returns how many rows were stored, their store time and, if no file could be
        made for the others, why not. Raises PutRefused; nothing is stored then.
        """
        done, failure = 0, ""
        with self._alone():
            now = self._clock()
            next_offsets = np.array([self.next_offset(*queue) for queue in batch.queues], np.int64)
            while done < len(batch) and not failure:
                try:
                    file, stop = self._room_for_rows(batch, done)
                except PutRefused as refused:
                    if not done:
                        raise
                    failure = refused.reason
                else:
                    self._append_piece(file, batch, done, stop, next_offsets, now)
                    done = stop
        self.wake_follower()
        self.appender.page_need()
        return done, now, failure

    def append_bytes(self, offset: int, data: memoryview, *, whole: bool, newest: int) -> None:
        """Appends bytes of a master's log, all within one file; an empty log begins at `offset`.

        `whole` ones are records, the newest of which was stored at `newest`. Raises StoreFailed, or PutRefused once
        appends are stopped.
        """
        assert self._allocator is not None, "the log was not started"
        with self._alone():
            file = self.queue.writable(offset, self._allocator.take)
            is_much = len(data) >= _WORTH_A_WRITE
            if is_much:  # the page faults of stores into new pages take longer than this; the head is stored last
                file.map.write(file.wrote + BLANK_HEADER_SIZE, data[BLANK_HEADER_SIZE:])
            if whole:
                kernels.copy_published(file.target, file.wrote, data[:BLANK_HEADER_SIZE] if is_much else data)
                file.store_timestamp = self.newest_timestamp = newest
            else:
                rest = data[:BLANK_HEADER_SIZE] if is_much else data
                file.target[file.wrote : file.wrote + len(rest)] = rest
            file.wrote += len(data)
        self.wake_follower()
        end = offset + len(data)
        if not is_much and end >= self._pages_needed_at:
            self._pages_needed_at = end + _PAGES_EVERY
            self.appender.page_need()

    def _append_piece(
        self, file: MappedFile, batch: PutRows, start: int, stop: int, next_offsets: kernels.Longs, now: int
    ) -> None:
        """Writes rows behind `file.wrote`, publishes the first one last, and moves the queues on."""
        first = file.wrote
        batch.encode(file.target, first, file.from_offset + first, start, stop, next_offsets, now)
        kernels.publish(file.target, first, int(batch.rows["size"][start]))
        file.store_timestamp = self.newest_timestamp = now
        file.wrote = first + batch.size(start, stop)
        for (topic, queue_id), offset in zip(batch.queues, next_offsets.tolist(), strict=True):
            self.set_next_offset(topic, queue_id, offset)
        self.appender.attach(file.target, file.marks, file.from_offset)

    def _room_for_rows(self, batch: PutRows, start: int) -> tuple[MappedFile, int]:
        """The file for the rows from `start` on, and the row before which it ends."""
        most = self.queue.file_size - BLANK_HEADER_SIZE
        if batch.size(0, len(batch)) <= most:
            return self._room_for(batch.size(start, len(batch))), len(batch)
        room = self._room_for(batch.size(start, start + 1))
        return room, batch.fitting(start, room.size - room.wrote - BLANK_HEADER_SIZE)

    def wake_follower(self) -> None:
        if self.appender.is_follower_asleep:
            self.appender.is_follower_asleep = False
            self.appender.wake()

    def _encode(self, file: MappedFile, messages: Sequence[Prepared], now: int) -> list[PutResult]:
        """Writes the records behind `file.wrote`; of several, the first is left unpublished, which hides them all."""
        target, position = file.target, file.wrote
        later: dict[tuple[str, int], int] = {}
        results: list[PutResult] = []
        alone = len(messages) == 1
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
                alone or bool(results),
            )
            results.append(
                PutResult(
                    PutStatus.PUT_OK, physical, size, message.queue_id, queue_offset, now, message.store_host_text
                )
            )
            position += size
        return results

    def _remember(self, file: MappedFile, messages: Sequence[Prepared], results: Sequence[PutResult]) -> None:
        """Moves the queues on, and tells the appender where to go on and what it may take from now on."""
        appender = self.appender
        appender.attach(file.target, file.marks, file.from_offset)
        if len(appender.hosts) > _MAX_HOSTS_KNOWN:
            appender.hosts.clear()
        for message, result in zip(messages, results, strict=True):
            if message.queued:
                self.set_next_offset(message.topic, message.queue_id, result.queue_offset + 1)
            appender.hosts[message.born_host_text] = message.born_host
            appender.hosts[message.store_host_text] = message.store_host

    def _room_for(self, size: int) -> MappedFile:
        """The file that takes `size` more bytes and still has room for a filler."""
        if size + BLANK_HEADER_SIZE > self.queue.file_size:
            raise PutRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"{size} bytes in one batch do not fit a log file of {self.queue.file_size} bytes",
            )
        try:
            file = self._writable()
            if size + BLANK_HEADER_SIZE > file.size - file.wrote:
                self._fill(file)
                file = self._writable()
        except StoreFailed as error:
            raise PutRefused(PutStatus.CREATE_MAPEDFILE_FAILED, str(error)) from None
        return file

    def _writable(self) -> MappedFile:
        assert self._allocator is not None, "the log was not started"
        return self.queue.writable(self.queue.flushed_where, self._allocator.take)

    def _fill(self, file: MappedFile) -> None:
        """Closes a file with the filler record; a borrowed buffer's old bytes must not reach the disk."""
        self.appender.detach()
        left = file.size - file.wrote
        if file.buffer is not None:
            file.target[file.wrote + BLANK_HEADER_SIZE :] = bytes(left - BLANK_HEADER_SIZE)
        kernels.write_blank(file.target, file.wrote, left)
        file.wrote = file.size
        if self._settings.warm_mapped_file_enable:
            unlock_memory(file.map.memory)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes | None:
        """`size` bytes at `offset`, None if they are not there (any more)."""
        return self.queue.read(offset, size)

    def close(self) -> None:
        self.set_open(False)
        self.appender.detach()
        if self._allocator is not None:
            self._allocator.close()
        self.queue.close()
