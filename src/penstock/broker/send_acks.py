"""Pending acks: replies to sends that are stored but not yet on disk (SYNC_FLUSH) or on a slave (SYNC_MASTER).

The loop never blocks on them. One fsync acks every send that it covers, with one call into the loop (group commit). The
acks wait in log order, so the oldest ack has the next deadline. When that passes, the reply is FLUSH_DISK_TIMEOUT,
because the message is stored. After a failed fsync, every send that is not on disk gets an error.

Slaves work the same way: one report of a slave acks many sends. If the report comes too late, the reply is
FLUSH_SLAVE_TIMEOUT. If no connected slave is near enough to the log's end to ack soon, the reply is
SLAVE_NOT_AVAILABLE.

The number of pending acks per connection is limited (maxUnflushedSends). Further sends get SYSTEM_BUSY before anything
is stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.broker.settings import SettingsInForce
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.supervision import OnDeath, Supervisor
from penstock.store.message import PutStatus
from penstock.store.message_store import MessageStore
from penstock.store.replication.slave_acks import replica_reason
from penstock.store.settings import BrokerRole, FlushDiskType


class PendingAck(NamedTuple):
    """A reply, the log offset that it waits for, and its deadline on the loop's clock."""

    end_offset: int
    deadline: float
    connection: Connection
    reply: Command
    needs_slave: bool


class PendingAcks:
    """Sends each reply once the log is flushed, and under SYNC_MASTER replicated, up to the reply's offset.

    Use it from the loop's thread only, except `_on_flushed` and `_on_slave_ack`, which any thread may call.
    """

    def __init__(self, store: MessageStore, settings: SettingsInForce) -> None:
        self._store = store
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._needs_disk = store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._needs_slave = store.settings.broker_role is BrokerRole.SYNC_MASTER
        self.is_needed = self._needs_disk or self._needs_slave
        """Whether replies to sends have to wait at all: under SYNC_FLUSH or SYNC_MASTER."""
        self._wait_s = (store.settings.slave_timeout if self._needs_slave else store.settings.sync_flush_timeout) / 1000
        self._pending: deque[PendingAck] = deque()
        self._by_connection: Counter[Connection] = Counter()
        self._poll_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self._poll_now: Callable[[], object] = self._poll
        self._expire_now: Callable[[], object] = self._expire
        if self._needs_disk:
            store.on_flush(self._on_flushed)
        if self._needs_slave:
            store.slave_acks.on_acknowledge(self._on_slave_ack)

    def supervise(self, tasks: Supervisor) -> None:
        """Has the broker leave if sending the acks fails: their senders would wait in vain. Call it before `add`."""
        self._poll_now = tasks.guard("acks of sends", self._poll, OnDeath.LEAVE)
        self._expire_now = tasks.guard("acks of sends", self._expire, OnDeath.LEAVE)

    def __len__(self) -> int:
        return len(self._pending)

    def has_too_many(self, connection: Connection) -> bool:
        return self._by_connection[connection] >= self._settings.now.max_unflushed_sends

    def add(self, connection: Connection, end_offset: int, reply: Command) -> None:
        """Sends `reply` once the log is safe up to `end_offset`. After the timeout, sends it with a timeout code.

        If no slave can ack soon, the reply's code becomes SLAVE_NOT_AVAILABLE, and the reply waits for the disk at
        most.
        """
        needs_slave = self._needs_slave
        if needs_slave and not self._store.slave_acks.is_available(end_offset):
            needs_slave = False
            reply.code = ResponseCode.SLAVE_NOT_AVAILABLE
            reply.remark = replica_reason(PutStatus.SLAVE_NOT_AVAILABLE, self._wait_s)
            if not self._needs_disk:
                connection.send(reply)
                return
        deadline = self._loop.time() + self._wait_s
        self._pending.append(PendingAck(end_offset, deadline, connection, reply, needs_slave))
        self._by_connection[connection] += 1
        self._drained.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._expire_now)
        if needs_slave:
            self._store.slave_acks.request_send()
        if self._is_done(self._pending[0]) or self._store.flush_failure:
            self._poll_soon()  # the log became safe before this call

    def _is_done(self, pending: PendingAck) -> bool:
        if self._needs_disk and self._store.flushed_offset < pending.end_offset:
            return False
        return not pending.needs_slave or self._store.slave_acks.acknowledged >= pending.end_offset

    async def drained(self) -> None:
        """Returns when no ack is pending."""
        await self._drained.wait()

    def _on_slave_ack(self) -> None:
        """Checks the pending acks after a slave's report.

        The loop's own thread usually calls this, because it reads the reports; then the loop need not be woken.
        """
        if threading.get_ident() == self._thread:
            self._poll_now()
        else:
            self._on_flushed()

    def _on_flushed(self) -> None:
        """Schedules a check of the pending acks on the loop. Any thread may call this; the flush thread does."""
        if not self._poll_scheduled and self._pending:
            self._poll_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._poll_now)
            except RuntimeError:  # the loop is closed
                self._poll_scheduled = False

    def _poll_soon(self) -> None:
        if not self._poll_scheduled:
            self._poll_scheduled = True
            self._loop.call_soon(self._poll_now)

    def _poll(self) -> None:
        self._poll_scheduled = False
        failure = self._store.flush_failure
        answered: set[Connection] = set()
        while self._pending and (self._is_done(self._pending[0]) or failure):
            pending = self._pending.popleft()
            if failure and pending.end_offset > self._store.flushed_offset:
                pending.reply.code, pending.reply.remark = ResponseCode.SYSTEM_ERROR, failure
            self._answer(pending)
            answered.add(pending.connection)
        for connection in answered:
            connection.flush()

    def _expire(self) -> None:
        now = self._loop.time()
        while self._pending and self._pending[0].deadline <= now:
            pending = self._pending.popleft()
            if pending.needs_slave:
                pending.reply.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
                pending.reply.remark = replica_reason(PutStatus.FLUSH_SLAVE_TIMEOUT, self._wait_s)
            elif pending.reply.code == ResponseCode.SUCCESS:
                pending.reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
                pending.reply.remark = f"stored, but not on disk after {self._wait_s:g} seconds"
            self._answer(pending)
            pending.connection.flush()
        self._timer = self._loop.call_at(self._pending[0].deadline, self._expire_now) if self._pending else None

    def _answer(self, pending: PendingAck) -> None:
        """Enqueues the reply. The caller must flush the connection afterwards."""
        self._by_connection[pending.connection] -= 1
        if self._by_connection[pending.connection] <= 0:
            del self._by_connection[pending.connection]
        pending.connection.enqueue(pending.reply)
        if not self._pending:
            self._drained.set()
