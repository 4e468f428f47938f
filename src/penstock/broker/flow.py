"""Sends that are stored and wait for the disk (SYNC_FLUSH), so that the loop does not.

One sync answers all of them that it brought to disk, with one call into the loop. They wait in the order of the log, so
the oldest one says when the next is late: it is then answered FLUSH_DISK_TIMEOUT, since it is stored. A sync that
failed answers all with an error. One connection may have only so many waiting: more are refused with SYSTEM_BUSY before
anything is stored, and no other connection notices.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import NamedTuple

from penstock.broker.settings import SettingsInForce
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.store.store import MessageStore


class _Waiting(NamedTuple):
    end_offset: int
    deadline: float
    connection: Connection
    reply: Command


class UnflushedSends:
    """The replies that go out when the log is on disk up to where each of them says."""

    def __init__(self, store: MessageStore, settings: SettingsInForce) -> None:
        self._store = store
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._wait_s = store.settings.sync_flush_timeout / 1000
        self._waiting: deque[_Waiting] = deque()
        self._of: Counter[Connection] = Counter()
        self._look_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        store.on_flush(self._synced)

    def __len__(self) -> int:
        return len(self._waiting)

    def has_too_many(self, connection: Connection) -> bool:
        return self._of[connection] >= self._settings.now.max_unflushed_sends

    def add(self, connection: Connection, end_offset: int, reply: Command) -> None:
        """Sends `reply` once the log is on disk up to `end_offset`, or says what else became of it."""
        self._waiting.append(_Waiting(end_offset, self._loop.time() + self._wait_s, connection, reply))
        self._of[connection] += 1
        self._drained.clear()
        if self._timer is None:
            self._timer = self._loop.call_later(self._wait_s, self._expire)
        if self._store.flushed_offset >= end_offset or self._store.flush_failure:
            self._look_soon()  # the sync was faster than we were

    async def drained(self) -> None:
        """Returns when nothing waits any more."""
        await self._drained.wait()

    def _synced(self) -> None:
        """On the thread that syncs."""
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
        flushed, failure = self._store.flushed_offset, self._store.flush_failure
        while self._waiting and (self._waiting[0].end_offset <= flushed or failure):
            waiting = self._waiting.popleft()
            if waiting.end_offset > flushed:
                waiting.reply.code, waiting.reply.remark = ResponseCode.SYSTEM_ERROR, failure
            self._answer(waiting)

    def _expire(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0].deadline <= now:
            waiting = self._waiting.popleft()
            waiting.reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
            waiting.reply.remark = f"stored, but not on disk after {self._wait_s:g} seconds"
            self._answer(waiting)
        self._timer = self._loop.call_at(self._waiting[0].deadline, self._expire) if self._waiting else None

    def _answer(self, waiting: _Waiting) -> None:
        self._of[waiting.connection] -= 1
        if self._of[waiting.connection] <= 0:
            del self._of[waiting.connection]
        waiting.connection.send(waiting.reply)
        if not self._waiting:
            self._drained.set()
