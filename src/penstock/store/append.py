"""The put path: from a Message to its PutResult.

A put first tries the fast path, the compiled appender. If the appender declines, the general path checks, prepares and
appends the message; its checks run in RocketMQ's order. Then the put waits for group commit and for a slave, as
flushDiskType and brokerRole require.

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

from penstock.format.put_rows import PutRows
from penstock.format.sys_flag import TRANSACTION_NONE, transaction_type
from penstock.store.flush import FlushFailed, GroupCommit
from penstock.store.message import ArrowResult, BatchResult, Message, PutResult, PutStatus
from penstock.store.prepare import Prepared, PutRefused, prepare
from penstock.store.replication.slave_acks import SlaveAcks, replica_reason
from penstock.store.settings import BrokerRole
from penstock.store.statistics import Statistics
from penstock.store.store_parts import Engine


class _PendingAcks(NamedTuple):
    """The acks that a put waits for: from the disk, from a slave, or both. None: not waited for."""

    flushed: Future[None] | None
    replicated: Future[PutStatus] | None


class PutPath:
    """Appends messages and waits for their acks. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        statistics: Statistics,
        group_commit: GroupCommit | None,
        slave_acks: SlaveAcks | None = None,
    ) -> None:
        self._settings = settings = engine.settings
        self._log = engine.log
        self._flags = engine.flags
        self._statistics = statistics
        self._group_commit = group_commit
        self._slave_acks = slave_acks
        self._needs_no_ack = group_commit is None and slave_acks is None
        self._is_slave = settings.broker_role is BrokerRole.SLAVE
        self._append_ordinary = engine.log.append_ordinary
        self._append_ordinary_batch = engine.log.append_ordinary_batch
        self._wait_seconds = settings.sync_flush_timeout / 1000
        self._store_host = settings.store_host
        self._levels = len(settings.delay_levels)

    def put(self, message: Message) -> PutResult:
        ordinary = self._append_ordinary(message)
        if ordinary is not None and self._needs_no_ack:
            return ordinary
        started = time.perf_counter()
        results, acks = self._resume(message, ordinary)
        result = self._acked(results, acks)[0]
        self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
        return result

    def put_many(self, messages: Sequence[Message], *, wait: bool = True) -> BatchResult:
        started = time.perf_counter()
        if not messages:
            return BatchResult(PutStatus.MESSAGE_ILLEGAL, reason="the batch is empty")
        ordinary = self._append_ordinary_batch(messages)
        if ordinary is None:
            results, acks = self._append(messages, batch=True, wait=wait)
        else:
            results, acks = ordinary, self._submit(ordinary, wait=wait)
        results = self._acked(results, acks)
        took = time.perf_counter() - started
        if ordinary is None or not self._needs_no_ack:
            for result in results:
                self._statistics.count_put(result, took, appended=ordinary is not None)
        first = results[0]
        return BatchResult(first.status, tuple(results) if first.stored else (), first.reason)

    def append(self, message: Message) -> PutResult:
        """Like `put`, without waiting for acks. The statistics count only the time of the append as latency."""
        ordinary = self._append_ordinary(message)
        if ordinary is not None and self._needs_no_ack:
            return ordinary
        started = time.perf_counter()
        if ordinary is None:
            result = self._append([message], wait=False)[0][0]
        else:
            result = ordinary
            self._wake_flush()
        self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
        return result

    def put_async(self, message: Message) -> Future[PutResult]:
        started = time.perf_counter()
        answer: Future[PutResult] = Future()
        ordinary = self._append_ordinary(message)
        if ordinary is not None and self._needs_no_ack:
            answer.set_result(ordinary)
            return answer
        results, acks = self._resume(message, ordinary)

        def complete() -> None:
            result = self._acked(results, acks)[0]
            self._statistics.count_put(result, time.perf_counter() - started, appended=ordinary is not None)
            answer.set_result(result)

        def await_slave() -> None:
            if acks is None or acks.replicated is None:
                complete()
            else:
                acks.replicated.add_done_callback(lambda _: complete())

        if acks is None or acks.flushed is None:
            await_slave()
        else:
            acks.flushed.add_done_callback(lambda _: await_slave())
        return answer

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

    def _resume(self, message: Message, ordinary: PutResult | None) -> tuple[list[PutResult], _PendingAcks | None]:
        """Returns the result of the fast path, or if that is None runs the general path. Adds the acks to wait for."""
        if ordinary is None:
            return self._append([message])
        return [ordinary], self._submit([ordinary])

    def _wake_flush(self) -> None:
        if self._group_commit is not None:
            self._group_commit.wake()

    def _submit(self, results: Sequence[PutResult], *, wait: bool = True) -> _PendingAcks | None:
        if self._needs_no_ack:
            return None
        if not wait:
            self._wake_flush()
            return None
        return self._request_acks(results[-1].end_offset)

    def _request_acks(self, end_offset: int) -> _PendingAcks:
        return _PendingAcks(
            None if self._group_commit is None else self._group_commit.submit(end_offset),
            None if self._slave_acks is None else self._slave_acks.submit(end_offset),
        )

    def _append(
        self, messages: Sequence[Message], *, batch: bool = False, wait: bool = True
    ) -> tuple[list[PutResult], _PendingAcks | None]:
        """Appends by the general path. Returns the results before any wait, and the acks to wait for, if any."""
        try:
            self._check_state()
            prepared = [self._prepare(message, batch=batch) for message in messages]
            results = self._log.append(prepared)
        except PutRefused as refused:
            return [PutResult(refused.status, reason=refused.reason)], None
        return results, self._submit(results, wait=wait and any(message.wait for message in prepared))

    def _check_state(self) -> None:
        if self._is_slave:
            raise PutRefused(
                PutStatus.SERVICE_NOT_AVAILABLE, "this is a slave, which takes no messages; send to its master"
            )
        if not self._flags.writable:
            raise PutRefused(PutStatus.SERVICE_NOT_AVAILABLE, f"the store takes no messages: {self._flags.reason}")
        if self._log.busy():
            held = self._log.locked_for() * 1000
            raise PutRefused(
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
            has_record_crc=self._settings.enabled_append_prop_crc,
        )
        if batch and (transaction_type(message.sys_flag) != TRANSACTION_NONE or prepared.delayed):
            raise PutRefused(PutStatus.MESSAGE_ILLEGAL, "a message of a batch may be neither transactional nor delayed")
        return prepared

    def _flush_rows(self, end_offset: int, wait: bool) -> tuple[PutStatus, str]:
        if self._needs_no_ack:
            return PutStatus.PUT_OK, ""
        if wait:
            return self._await_acks(self._request_acks(end_offset))
        self._wake_flush()
        return PutStatus.PUT_OK, ""

    def _await_acks(self, acks: _PendingAcks) -> tuple[PutStatus, str]:
        """Waits for the acks. Returns the final status and its reason."""
        status, reason = PutStatus.PUT_OK, ""
        if acks.flushed is not None:
            try:
                acks.flushed.result(self._wait_seconds)
            except TimeoutError:
                status = PutStatus.FLUSH_DISK_TIMEOUT
                reason = f"stored, but not on disk after {self._wait_seconds:g} seconds"
            except FlushFailed as error:
                return PutStatus.UNKNOWN_ERROR, str(error)
        if acks.replicated is not None and self._slave_acks is not None:
            replicated = acks.replicated.result()
            if replicated is not PutStatus.PUT_OK:
                return replicated, replica_reason(replicated, self._slave_acks.wait_s)
        return status, reason

    def _acked(self, results: list[PutResult], acks: _PendingAcks | None) -> list[PutResult]:
        """Waits for the acks. Returns the results with their final status."""
        if acks is None:
            return results
        status, reason = self._await_acks(acks)
        if status is PutStatus.PUT_OK:
            return results
        if status is PutStatus.UNKNOWN_ERROR:
            return [PutResult(status, reason=reason) for _ in results]
        return [msgspec.structs.replace(result, status=status, reason=reason) for result in results]
