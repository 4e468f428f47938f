"""Sends that are stored and wait for the disk (SYNC_FLUSH) or a slave (SYNC_MASTER), so that the loop does not.

One sync answers all of them that it brought to disk, with one call into the loop. They wait in the order of the log, so
the oldest one says when the next is late: it is then answered FLUSH_DISK_TIMEOUT, since it is stored. A sync that
failed answers all with an error. For slaves it is the same: one acknowledgement answers many, a late one is
FLUSH_SLAVE_TIMEOUT, and where no slave follows that could acknowledge soon the answer is SLAVE_NOT_AVAILABLE at once,
or with the disk. One connection may have only so many waiting: more are refused with SYSTEM_BUSY before
anything is stored, and no other connection notices.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from typing import NamedTuple

from penstock.broker.settings import SettingsInForce
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.store.message import PutStatus
from penstock.store.replication.slave_acks import replica_reason
from penstock.store.settings import BrokerRole, FlushDiskType
from penstock.store.store import MessageStore


class Waiting(NamedTuple):
    """A reply, and what it waits for."""

    end_offset: int
    deadline: float
    connection: Connection
    reply: Command
    needs_slave: bool


class PendingAcks:
    """The replies that go out when the log is as safe as it has to be up to where each of them says."""

    def __init__(self, store: MessageStore, settings: SettingsInForce) -> None:
        self._store = store
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._needs_disk = store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._needs_slave = store.settings.broker_role is BrokerRole.SYNC_MASTER
        self.is_needed = self._needs_disk or self._needs_slave
        """Whether sends have to wait for anything."""
        self._wait_s = (store.settings.slave_timeout if self._needs_slave else store.settings.sync_flush_timeout) / 1000
        self._waiting: deque[Waiting] = deque()
        self._of: Counter[Connection] = Counter()
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        if self._needs_disk:
            store.on_flush(self._synced)
        if self._needs_slave:
            store.replicas.on_acknowledge(self._acknowledged)

    def __len__(self) -> int:
        return len(self._waiting)

    def has_too_many(self, connection: Connection) -> bool:
        return self._of[connection] >= self._settings.now.max_unflushed_sends

    def add(self, connection: Connection, end_offset: int, reply: Command) -> None:
        """Sends `reply` once the log is safe up to `end_offset`, or says what else became of it."""
        needs_slave = self._needs_slave
        if needs_slave and not self._store.replicas.is_available(end_offset):
            needs_slave = False
            reply.code = ResponseCode.SLAVE_NOT_AVAILABLE
            reply.remark = replica_reason(PutStatus.SLAVE_NOT_AVAILABLE, self._wait_s)
            if not self._needs_disk:
                connection.send(reply)
                return
        deadline = self._loop.time() + self._wait_s
        self._waiting.append(Waiting(end_offset, deadline, connection, reply, needs_slave))
        self._of[connection] += 1
        self._drained.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._expire)
        if needs_slave:
            self._store.replicas.hurry()
        if self._is_done(self._waiting[0]) or self._store.flush_failure:
            self._look_soon()  # the sync was faster than we were

    def _is_done(self, waiting: Waiting) -> bool:
        if self._needs_disk and self._store.flushed_offset < waiting.end_offset:
            return False
        return not waiting.needs_slave or self._store.replicas.acknowledged >= waiting.end_offset

    async def drained(self) -> None:
        """Returns when nothing waits any more."""
        await self._drained.wait()

    def _acknowledged(self) -> None:
        """On the thread that hears of slaves, which is the loop's: nobody need be woken then."""
        if threading.get_ident() == self._thread:
            self._look()
        else:
            self._synced()

    def _synced(self) -> None:
        """On another thread: the one that syncs."""
        if not self._look_is_due and self._waiting:
            self._look_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:  # the loop is gone, and who waited with it
                self._look_is_due = False

    def _look_soon(self) -> None:
        if not self._look_is_due:
            self._look_is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_is_due = False
        failure = self._store.flush_failure
        answered: set[Connection] = set()
        while self._waiting and (self._is_done(self._waiting[0]) or failure):
            waiting = self._waiting.popleft()
            if failure and waiting.end_offset > self._store.flushed_offset:
                waiting.reply.code, waiting.reply.remark = ResponseCode.SYSTEM_ERROR, failure
            self._answer(waiting)
            answered.add(waiting.connection)
        for connection in answered:
            connection.flush()

    def _expire(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline <= now:
            waiting = self._waiting.popleft()
            if waiting.needs_slave:
                waiting.reply.code = ResponseCode.FLUSH_SLAVE_TIMEOUT
                waiting.reply.remark = replica_reason(PutStatus.FLUSH_SLAVE_TIMEOUT, self._wait_s)
            elif waiting.reply.code == ResponseCode.SUCCESS:
                waiting.reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
                waiting.reply.remark = f"stored, but not on disk after {self._wait_s:g} seconds"
            self._answer(waiting)
            waiting.connection.flush()
        self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire) if self._waiting else None

    def _answer(self, waiting: Waiting) -> None:
        """Lays the reply down; the caller flushes."""
        self._of[waiting.connection] -= 1
        if self._of[waiting.connection] <= 0:
            del self._of[waiting.connection]
        waiting.connection.enqueue(waiting.reply)
        if not self._waiting:
            self._drained.set()
