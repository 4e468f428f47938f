"""The put path: from a Message to its PutResult.

A put first tries the fast path, the compiled appender. If the appender declines, the general path checks, prepares and
appends the message; its checks run in RocketMQ's order. Then the put waits for the disk and for a slave, as
flushDiskType and brokerRole require; see `watermarks.py`.

Under SYNC_FLUSH, PUT_OK means that the record is on disk. FLUSH_DISK_TIMEOUT means that the record is in the log, but
was not synced in time. UNKNOWN_ERROR means that the sync failed; recovery at the next start decides whether the record
survives. On a SYNC_MASTER puts also wait for a slave's ack. If both waits fail, the result has the slave's status, not
FLUSH_DISK_TIMEOUT, as in RocketMQ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.put_rows import PutRows
from penstock.format.sys_flag import TRANSACTION_NONE, transaction_type
from penstock.store.encode_message import Prepared, PutRefused, prepare
from penstock.store.engine_parts import Engine
from penstock.store.message import ArrowResult, BatchResult, Message, PutResult, PutStatus
from penstock.store.put_and_get_statistics import Statistics
from penstock.store.settings import Settings
from penstock.store.watermarks import Waiter


class _AsyncPut(NamedTuple):
    """A put whose future is completed later."""

    answer: Future[PutResult]
    result: PutResult
    started: float
    appended: bool


class PutPath:
    """Appends messages and waits for their acks. Thread-safe."""

    def __init__(self, engine: Engine, statistics: Statistics) -> None:
        self._settings = settings = engine.settings
        self._log = engine.log
        self._flags = engine.flags
        self._statistics = statistics
        self._watermarks = engine.log.watermarks
        self._appender = engine.log.appender
        self._appender.resume = self._resume_put
        self.put: Callable[[Message], PutResult] = self._appender.put
        """Stores one message and waits for its acks. Compiled; calls `_resume_put` unless the fast path is enough."""
        self._needs_no_ack = True
        self.on_role()
        self._append_ordinary = engine.log.append_ordinary
        self._append_ordinary_batch = engine.log.append_ordinary_batch
        self._store_host = settings.store_host
        self._levels = len(settings.delay_levels)

    def on_role(self) -> None:
        """Adjusts to the store's role. Once a role has made puts wait, each put asks the watermarks whether it waits.

        So a put that was appended just before the change is not answered by the new role's rules.
        """
        if any(self._watermarks.needs):
            self._needs_no_ack, self._appender.needs_ack = False, True
            self._statistics.count_every_put()

    def change_settings(self, settings: Settings) -> None:
        """Applies changed limits of sizes to all puts that begin from now on."""
        self._settings = settings
        self._log.limit_sizes(settings.max_message_size, settings.max_record_size)

    def _resume_put(self, message: Message, ordinary: PutResult | None) -> PutResult:
        """Ends a put that needs the general path (`ordinary` is None then), or acks."""
        started = time.perf_counter()
        results, end_offset = self._resume(message, ordinary)
        result = _with_status(results[0], *self._await_acks(end_offset))
        self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
        return result

    def put_many(self, messages: Sequence[Message], *, wait: bool = True) -> BatchResult:
        started = time.perf_counter()
        if not messages:
            return BatchResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        ordinary = self._append_ordinary_batch(messages)
        if ordinary is None:
            results, end_offset = self._append(messages, batch=True, wait=wait)
        else:
            results, end_offset = ordinary, self._appended(ordinary[-1].end_offset, wait=wait)
        status, reason = self._await_acks(end_offset)
        results = [_with_status(result, status, reason) for result in results]
        took = time.perf_counter() - started
        if ordinary is None or not self._needs_no_ack:
            for result in results:
                self._statistics.count_put(result, took, appended=ordinary is not None)
        first = results[0]
        return BatchResult(first.status, tuple(results) if first.stored else (), first.reason)

    def append(self, message: Message, again: bool = False) -> PutResult:
        """Like `put`, without waiting for acks. The statistics count only the time of the append as latency.

        `again` says that the store accepted the message before: then limits that may have changed since do not apply.
        """
        ordinary = self._append_ordinary(message)
        if ordinary is not None and self._needs_no_ack:
            return ordinary
        started = time.perf_counter()
        if ordinary is None:
            result = self._append([message], wait=False, again=again)[0][0]
        else:
            result = ordinary
            self._watermarks.sync_soon(result.end_offset)
        self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
        return result

    def put_async(self, message: Message) -> Future[PutResult]:
        started = time.perf_counter()
        answer: Future[PutResult] = Future()
        ordinary = self._append_ordinary(message)
        if ordinary is not None and self._needs_no_ack:
            answer.set_result(ordinary)
            return answer
        results, end_offset = self._resume(message, ordinary)
        answer.set_running_or_notify_cancel()  # the message is stored: it is too late to cancel
        put = _AsyncPut(answer, results[0], started, ordinary is not None)
        if end_offset:
            self._watermarks.wait(end_offset, self._answer, put)
        else:
            self._answer_one(put, put.result)
        return answer

    def _answer(self, waiters: list[Waiter[_AsyncPut]]) -> None:
        for waiter in waiters:
            self._answer_one(waiter.token, _with_status(waiter.token.result, waiter.status, waiter.reason))

    def _answer_one(self, put: _AsyncPut, result: PutResult) -> None:
        self._statistics.count_put(result, time.perf_counter() - put.started, appended=put.appended)
        put.answer.set_result(result)

    def put_rows(self, plan: Callable[[], PutRows]) -> ArrowResult:
        """Stores the rows that `plan` returns. Calls `plan` only if the store accepts puts. It may raise PutRefused."""
        started = time.perf_counter()
        try:
            self._check_state()
            batch = plan()
            if not len(batch):
                return ArrowResult(PutStatus.PUT_OK)
            count, now, failure = self._log.append_rows(batch)
        except PutRefused as refused:
            self._statistics.count_put(PutResult(refused.status), time.perf_counter() - started)
            return ArrowResult(refused.status, reason=refused.reason)
        rows = batch.rows[:count]
        end_offset = int(rows["physical_offset"][-1]) + int(rows["size"][-1])
        status, reason = self._await_acks(self._appended(end_offset, wait=batch.waits))
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

    def _resume(self, message: Message, ordinary: PutResult | None) -> tuple[list[PutResult], int]:
        """Returns the result of the fast path, or if that is None runs the general path. Adds what to wait for."""
        if ordinary is None:
            return self._append([message])
        return [ordinary], self._appended(ordinary.end_offset)

    def _append(
        self, messages: Sequence[Message], *, batch: bool = False, wait: bool = True, again: bool = False
    ) -> tuple[list[PutResult], int]:
        """Appends by the general path. Returns the results before any wait, and the log offset to wait for, or 0.

        Without `wait`, a message is refused if no log file is ready for it, or another thread holds the log.
        """
        try:
            self._check_state()
            prepared = [self._prepare(message, batch=batch, again=again) for message in messages]
            results = self._log.append(prepared, at_once=not wait)
        except PutRefused as refused:
            return [PutResult(refused.status, reason=refused.reason)], 0
        return results, self._appended(results[-1].end_offset, wait=wait and any(message.wait for message in prepared))

    def _appended(self, end_offset: int, *, wait: bool = True) -> int:
        """Returns the log offset to wait for; 0 if there is no need to wait. Then it is synced all the same."""
        if wait and not self._needs_no_ack:
            return end_offset
        self._watermarks.sync_soon(end_offset)
        return 0

    def _check_state(self) -> None:
        self._log.check_accepts_puts()
        if not self._flags.writable:
            raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, f"the store takes no messages: {self._flags.reason}")
        if self._log.busy():
            held = self._log.locked_for() * 1000
            raise PutRefused(
                PutStatus.OS_PAGECACHE_BUSY,
                f"another put has held the log for {held:.0f} ms; the disk cannot keep up, try again later",
            )

    def _prepare(self, message: Message, *, batch: bool, again: bool) -> Prepared:
        settings = self._settings
        fits_a_file = settings.mapped_file_size_commit_log - BLANK_HEADER_SIZE
        prepared = prepare(
            message,
            store_host=self._store_host,
            max_message_size=fits_a_file if again else settings.max_message_size,
            max_record_size=fits_a_file if again else settings.max_record_size,
            delay_levels=self._levels,
            has_record_crc=settings.enabled_append_prop_crc,
            again=again,
        )
        if batch and (transaction_type(message.sys_flag) != TRANSACTION_NONE or prepared.delayed):
            raise PutRefused(PutStatus.MESSAGE_ILLEGAL, "a message of a batch may be neither transactional nor delayed")
        return prepared

    def _await_acks(self, end_offset: int) -> tuple[PutStatus, str]:
        """Waits until the log is safe up to `end_offset`, or not in time. Returns the final status and its reason."""
        if not end_offset:
            return PutStatus.PUT_OK, ""
        waiter = self._watermarks.wait_here(end_offset)
        return waiter.status, waiter.reason


def _with_status(result: PutResult, status: PutStatus, reason: str) -> PutResult:
    """Returns the result with the status of its wait. After a failed sync it does not say where the message is."""
    if status is PutStatus.PUT_OK:
        return result
    if status is PutStatus.UNKNOWN_ERROR:
        return PutResult(status, reason=reason)
    return msgspec.structs.replace(result, status=status, reason=reason)
