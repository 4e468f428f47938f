"""Pending acks: sends that are stored but not yet on disk (SYNC_FLUSH) or on a slave (SYNC_MASTER).

The loop never blocks on them. One fsync acks every send that it covers, with one call into the loop (group commit). The
acks wait in log order, so the oldest ack has the next deadline. When that passes, the outcome is FLUSH_DISK_TIMEOUT,
because the message is stored. After a failed fsync, every send that is not on disk gets an error.

Slaves work the same way: one report of a slave acks many sends. If the report comes too late, the outcome is
FLUSH_SLAVE_TIMEOUT. If no connected slave is near enough to the log's end to ack soon, the outcome is
SLAVE_NOT_AVAILABLE.

The number of pending acks per client is limited (maxUnflushedSends). Further sends get SYSTEM_BUSY before anything is
stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque

from penstock.broker.core import Client, Deferred
from penstock.broker.outcomes import SendOutcome
from penstock.broker.settings import SettingsInForce
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.store.message import PutStatus
from penstock.store.message_store import MessageStore
from penstock.store.replication.slave_acks import replica_reason
from penstock.store.settings import BrokerRole, FlushDiskType


class PendingAck(Deferred[SendOutcome]):
    """An outcome that waits until the log is safe up to `end_offset`. `deadline` is on the loop's clock."""

    __slots__ = ("client", "deadline", "end_offset", "needs_slave", "outcome")

    def __init__(
        self, client: Client, end_offset: int, outcome: SendOutcome, deadline: float, *, needs_slave: bool
    ) -> None:
        super().__init__()
        self.client = client
        self.end_offset = end_offset
        self.outcome = outcome
        self.deadline = deadline
        self.needs_slave = needs_slave


class PendingAcks:
    """Settles each outcome once the log is flushed, and under SYNC_MASTER replicated, up to the outcome's offset.

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
        """Whether sends have to wait at all: under SYNC_FLUSH or SYNC_MASTER."""
        self._wait_s = (store.settings.slave_timeout if self._needs_slave else store.settings.sync_flush_timeout) / 1000
        self._pending: deque[PendingAck] = deque()
        self._by_client: Counter[Client] = Counter()
        self._poll_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        if self._needs_disk:
            store.on_flush(self._on_flushed)
        if self._needs_slave:
            store.slave_acks.on_acknowledge(self._on_slave_ack)

    def __len__(self) -> int:
        return len(self._pending)

    def check(self, client: Client) -> None:
        """Raises Refusal if too many sends of a client wait already."""
        if self.is_needed and self._by_client[client] >= self._settings.now.max_unflushed_sends:
            why = "too many sends of this connection wait for the disk (maxUnflushedSends); wait for their replies"
            raise Refusal(ResponseCode.SYSTEM_BUSY, why)

    def when_safe(self, client: Client, end_offset: int, outcome: SendOutcome) -> SendOutcome | PendingAck:
        """Returns the outcome, deferred until the log is safe up to `end_offset` if it has to be.

        After the timeout the outcome gets a timeout code. If no slave can ack soon, its code becomes
        SLAVE_NOT_AVAILABLE, and it waits for the disk at most.
        """
        if not self.is_needed:
            return outcome
        needs_slave = self._needs_slave
        if needs_slave and not self._store.slave_acks.is_available(end_offset):
            needs_slave = False
            outcome.code = ResponseCode.SLAVE_NOT_AVAILABLE
            outcome.remark = replica_reason(PutStatus.SLAVE_NOT_AVAILABLE, self._wait_s)
            if not self._needs_disk:
                return outcome
        pending = PendingAck(client, end_offset, outcome, self._loop.time() + self._wait_s, needs_slave=needs_slave)
        self._pending.append(pending)
        self._by_client[client] += 1
        self._drained.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._expire)
        if needs_slave:
            self._store.slave_acks.request_send()
        if self._is_done(self._pending[0]) or self._store.flush_failure:
            self._poll_soon()  # the log became safe before this call
        return pending

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
            self._poll()
        else:
            self._on_flushed()

    def _on_flushed(self) -> None:
        """Schedules a check of the pending acks on the loop. Any thread may call this; the flush thread does."""
        if not self._poll_scheduled and self._pending:
            self._poll_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._poll)
            except RuntimeError:  # the loop is closed
                self._poll_scheduled = False

    def _poll_soon(self) -> None:
        if not self._poll_scheduled:
            self._poll_scheduled = True
            self._loop.call_soon(self._poll)

    def _poll(self) -> None:
        self._poll_scheduled = False
        failure = self._store.flush_failure
        while self._pending and (self._is_done(self._pending[0]) or failure):
            pending = self._pending.popleft()
            if failure and pending.end_offset > self._store.flushed_offset:
                pending.outcome.code, pending.outcome.remark = ResponseCode.SYSTEM_ERROR, failure
            self._settle(pending)

    def _expire(self) -> None:
        now = self._loop.time()
        while self._pending and self._pending[0].deadline <= now:
            pending = self._pending.popleft()
            outcome = pending.outcome
            if pending.needs_slave:
                outcome.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
                outcome.remark = replica_reason(PutStatus.FLUSH_SLAVE_TIMEOUT, self._wait_s)
            elif outcome.code == ResponseCode.SUCCESS:
                outcome.code = ResponseCode.FLUSH_DISK_TIMEOUT
                outcome.remark = f"stored, but not on disk after {self._wait_s:g} seconds"
            self._settle(pending)
        self._timer = self._loop.call_at(self._pending[0].deadline, self._expire) if self._pending else None

    def _settle(self, pending: PendingAck) -> None:
        self._by_client[pending.client] -= 1
        if self._by_client[pending.client] <= 0:
            del self._by_client[pending.client]
        pending.settle(pending.outcome)
        if not self._pending:
            self._drained.set()
