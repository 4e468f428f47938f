"""Putting: from a Message to an answer.

The order of the checks is RocketMQ's. Under SYNC_FLUSH an answer of PUT_OK means that the record is on disk; a put
that waited too long says FLUSH_DISK_TIMEOUT and the record is stored; one whose sync failed says UNKNOWN_ERROR, and
what becomes of the record is up to the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec
import numpy as np

from penstock.format.put_rows import PutRows
from penstock.format.sys_flag import TRANSACTION_NONE, transaction_type
from penstock.store.arrow_results import ArrowResult
from penstock.store.commit_log import CommitLog
from penstock.store.flush import FlushFailed, GroupCommit
from penstock.store.message import Message
from penstock.store.prepare import Prepared, Refused, prepare
from penstock.store.running_flags import RunningFlags
from penstock.store.settings import Settings
from penstock.store.statistics import Statistics
from penstock.store.status import BatchResult, PutResult, PutStatus


class Putter:
    """Takes messages from any thread."""

    def __init__(
        self,
        settings: Settings,
        commit_log: CommitLog,
        flags: RunningFlags,
        statistics: Statistics,
        group_commit: GroupCommit | None,
    ) -> None:
        self._settings = settings
        self._log = commit_log
        self._flags = flags
        self._statistics = statistics
        self._group_commit = group_commit
        self._append_ordinary = commit_log.appender.append
        self._append_ordinary_batch = commit_log.appender.append_many
        self._wait_seconds = settings.sync_flush_timeout / 1000
        self._store_host = settings.store_host
        self._levels = len(settings.delay_levels)

    def put(self, message: Message) -> PutResult:
        ordinary: PutResult | None = self._append_ordinary(message)
        if ordinary is not None and self._group_commit is None:
            return ordinary
        started = time.perf_counter()
        results, flushed = self._go_on(message, ordinary)
        result = self._after_flush(results, flushed)[0]
        self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
        return result

    def put_many(self, messages: Sequence[Message], *, wait: bool = True) -> BatchResult:
        started = time.perf_counter()
        if not messages:
            return BatchResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        ordinary: list[PutResult] | None = self._append_ordinary_batch(messages)
        if ordinary is None:
            results, flushed = self._append(messages, batch=True)
        else:
            results, flushed = ordinary, self._submit(ordinary)
        results = self._after_flush(results, flushed if wait else None)
        took = time.perf_counter() - started
        if ordinary is None or self._group_commit is not None:
            for result in results:
                self._statistics.count_put(result, took, appended=ordinary is not None)
        first = results[0]
        return BatchResult(first.status, tuple(results) if first.stored else (), first.reason)

    def append(self, message: Message) -> PutResult:
        """As `put`, without waiting for the disk; the time that is counted is that of the append."""
        ordinary: PutResult | None = self._append_ordinary(message)
        if ordinary is not None and self._group_commit is None:
            return ordinary
        started = time.perf_counter()
        if ordinary is None:
            result = self._append([message])[0][0]
        else:
            result = ordinary
            self._wake_disk()
        self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
        return result

    def put_async(self, message: Message) -> Future[PutResult]:
        started = time.perf_counter()
        answer: Future[PutResult] = Future()
        ordinary: PutResult | None = self._append_ordinary(message)
        if ordinary is not None and self._group_commit is None:
            answer.set_result(ordinary)
            return answer
        results, flushed = self._go_on(message, ordinary)

        def answer_now(done: Future[None] | None) -> None:
            result = self._after_flush(results, done)[0]
            self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
            answer.set_result(result)

        if flushed is None:
            answer_now(None)
        else:
            flushed.add_done_callback(answer_now)
        return answer

    def put_rows(self, plan: Callable[[], PutRows]) -> ArrowResult:
        """Stores the rows that `plan` makes, which may raise Refused; it is called once the store can take them."""
        started = time.perf_counter()
        try:
            self._check_state()
            batch = plan()
            if not len(batch):
                return ArrowResult(PutStatus.PUT_OK)
            count, now, failure = self._log.append_rows(batch)
        except Refused as refused:
            self._statistics.count_put(PutResult(refused.status), time.perf_counter() - started)
            return ArrowResult(refused.status, reason=refused.reason)
        rows = batch.rows[:count]
        status, reason = self._flush_rows(int(rows["physical_offset"][-1]) + int(rows["size"][-1]), batch.waits)
        if status is PutStatus.UNKNOWN_ERROR:
            self._statistics.count_put(PutResult(status), time.perf_counter() - started)
            return ArrowResult(status, reason=reason)
        self._statistics.count_rows(count, batch.size(0, count), time.perf_counter() - started)
        if failure:
            status, reason = PutStatus.CREATE_MAPEDFILE_FAILED, f"only the first {count} rows are stored: {failure}"
        queue_offsets = np.ascontiguousarray(rows["queue_offset"])
        physical_offsets = np.ascontiguousarray(rows["physical_offset"])
        return ArrowResult(status, count, queue_offsets, physical_offsets, now, reason)

    # -- steps -----------------------------------------------------------------------------------------------

    def _go_on(self, message: Message, ordinary: PutResult | None) -> tuple[list[PutResult], Future[None] | None]:
        """After the short way was tried: its result, or that of the general path, and the future of the flush."""
        if ordinary is None:
            return self._append([message])
        return [ordinary], self._submit([ordinary])

    def _wake_disk(self) -> None:
        if self._group_commit is not None:
            self._group_commit.wake()

    def _submit(self, results: Sequence[PutResult]) -> Future[None] | None:
        return None if self._group_commit is None else self._group_commit.submit(results[-1].end_offset)

    def _append(
        self, messages: Sequence[Message], *, batch: bool = False
    ) -> tuple[list[PutResult], Future[None] | None]:
        """Results without the flush, and the future of the flush if the answer must wait for it."""
        try:
            self._check_state()
            prepared = [self._prepare(message, batch=batch) for message in messages]
            results = self._log.append(prepared)
        except Refused as refused:
            return [PutResult(refused.status, reason=refused.reason)], None
        if any(message.wait for message in prepared):
            return results, self._submit(results)
        self._wake_disk()
        return results, None

    def _check_state(self) -> None:
        if not self._flags.writable:
            raise Refused(PutStatus.SERVICE_NOT_AVAILABLE, f"the store takes no messages: {self._flags.reason}")
        if self._log.busy():
            held = self._log.locked_for() * 1000
            raise Refused(
                PutStatus.OS_PAGECACHE_BUSY,
                f"another put has held the log for {held:.0f} ms; the disk cannot keep up, try again later",
            )

    def _prepare(self, message: Message, *, batch: bool) -> Prepared:
        prepared = prepare(
            message,
            store_host=self._store_host,
            max_message_size=self._settings.max_message_size,
            max_record_size=self._settings.max_record_size,
            delay_levels=self._levels,
        )
        if batch and (transaction_type(message.sys_flag) != TRANSACTION_NONE or prepared.delayed):
            raise Refused(PutStatus.MESSAGE_ILLEGAL, "a message of a batch may be neither transactional nor delayed")
        return prepared

    def _flush_rows(self, end_offset: int, wait: bool) -> tuple[PutStatus, str]:
        if self._group_commit is None:
            return PutStatus.PUT_OK, ""
        if wait:
            return self._outcome(self._group_commit.submit(end_offset))
        self._group_commit.wake()
        return PutStatus.PUT_OK, ""

    def _outcome(self, flushed: Future[None]) -> tuple[PutStatus, str]:
        """Waits for the disk; the status of what was appended, and the sentence that goes with it."""
        try:
            flushed.result(self._wait_seconds)
        except TimeoutError:
            return PutStatus.FLUSH_DISK_TIMEOUT, f"stored, but not on disk after {self._wait_seconds:g} seconds"
        except FlushFailed as error:
            return PutStatus.UNKNOWN_ERROR, str(error)
        return PutStatus.PUT_OK, ""

    def _after_flush(self, results: list[PutResult], flushed: Future[None] | None) -> list[PutResult]:
        if flushed is None:
            return results
        status, reason = self._outcome(flushed)
        if status is PutStatus.PUT_OK:
            return results
        if status is PutStatus.UNKNOWN_ERROR:
            return [PutResult(status, reason=reason) for _ in results]
        return [msgspec.structs.replace(result, status=status, reason=reason) for result in results]
