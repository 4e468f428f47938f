"""Pending acks: replies to sends that are stored but not yet on disk (SYNC_FLUSH) or on a slave (SYNC_MASTER).

The loop never blocks on them. Each waits in the store's watermarks (`store/watermarks.py`), which decide how it ends:
the reply says SUCCESS, that the disk or a slave was too late, that no slave can ack soon, or that the log could not be
synced. One fsync, or one report of a slave, acks every send that it covers, with one call into the loop.

The number of pending acks per connection is limited (maxUnflushedSends). Further sends get SYSTEM_BUSY before anything
is stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from typing import NamedTuple

from penstock.broker.replies import code_of
from penstock.broker.settings import SettingsInForce
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.store.message import PutStatus
from penstock.store.message_store import MessageStore
from penstock.store.watermarks import Waiter


class PendingAck(NamedTuple):
    """A reply that waits, and where it goes."""

    connection: Connection
    reply: Command


class PendingAcks:
    """Sends each reply once the log is flushed, and under SYNC_MASTER replicated, up to the reply's offset.

    Use it from the loop's thread only, except `_on_ended`, which any thread may call.
    """

    def __init__(self, store: MessageStore, settings: SettingsInForce) -> None:
        self._watermarks = store.watermarks
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._by_connection: Counter[Connection] = Counter()
        self._ended: deque[Waiter[PendingAck]] = deque()
        """Acks that other threads have ended, until the loop sends their replies."""
        self._is_scheduled = False
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def is_needed(self) -> bool:
        """Whether replies to sends have to wait at all: under SYNC_FLUSH or SYNC_MASTER."""
        return any(self._watermarks.needs)

    def __len__(self) -> int:
        return self._by_connection.total()

    def has_too_many(self, connection: Connection) -> bool:
        return self._by_connection[connection] >= self._settings.now.max_unflushed_sends

    def add(self, connection: Connection, end_offset: int, reply: Command) -> None:
        """Sends `reply` once the log is safe up to `end_offset`; with another code if it is not safe in time."""
        self._by_connection[connection] += 1
        self._drained.clear()
        self._watermarks.wait(end_offset, self._on_ended, PendingAck(connection, reply))

    async def drained(self) -> None:
        """Returns when no ack is pending."""
        await self._drained.wait()

    def _on_ended(self, waiters: list[Waiter[PendingAck]]) -> None:
        """Sends the replies; on another thread than the loop's, has the loop do it.

        The loop's own thread reads the reports of slaves, so then the loop need not be woken.
        """
        self._ended.extend(waiters)
        if threading.get_ident() == self._thread:
            self._answer_ended()
        elif not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._answer_ended)
            except RuntimeError:  # the loop is closed
                self._is_scheduled = False

    def _answer_ended(self) -> None:
        self._is_scheduled = False
        answered: set[Connection] = set()
        while self._ended:
            waiter = self._ended.popleft()
            pending = waiter.token
            if waiter.status is not PutStatus.PUT_OK:
                pending.reply.code, pending.reply.remark = code_of(waiter.status), waiter.reason
            self._answer(pending)
            answered.add(pending.connection)
        for connection in answered:
            connection.flush()

    def _answer(self, pending: PendingAck) -> None:
        """Enqueues the reply. The caller must flush the connection afterwards."""
        self._by_connection[pending.connection] -= 1
        if self._by_connection[pending.connection] <= 0:
            del self._by_connection[pending.connection]
        pending.connection.enqueue(pending.reply)
        if not self._by_connection:
            self._drained.set()
