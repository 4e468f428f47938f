"""Pulls that found nothing and wait for a message.

A pull waits for its queue: until something arrives there that it wants, its time is up, or its connection is gone. Then
it is run once more and answered whatever it finds. Arrivals are told by the thread that dispatches; they are gathered
there and brought to the loop with one call for many. One connection may have only so many pulls waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from penstock.broker.filters import Selection
from penstock.remoting.connection import Connection
from penstock.store.settings import FlushDiskType
from penstock.store.store import MessageStore

_Key = tuple[str, int]
_MAX_CODES = 4096
"""Arrivals in one queue whose tags are looked at; with more at once, everybody is woken."""


class HeldPull:
    """One pull that waits for what lies at `offset` or behind it."""

    __slots__ = ("connection", "key", "offset", "run", "selection", "timer")

    def __init__(
        self,
        connection: Connection,
        topic: str,
        queue_id: int,
        offset: int,
        selection: Selection,
        run: Callable[[HeldPull, bool], bool],
    ) -> None:
        self.connection = connection
        self.key = (topic, queue_id)
        self.offset = offset
        self.selection = selection
        self.run = run
        """Called with whether this is the last time; says whether it has answered. It may move `offset` on."""
        self.timer: asyncio.TimerHandle | None = None


class HeldPulls:
    """All pulls that wait, by queue."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._held: dict[_Key, set[HeldPull]] = {}
        self._of: dict[Connection, set[HeldPull]] = {}
        self._arrived: dict[_Key, tuple[int, list[npt.NDArray[np.int64]]]] = {}
        """Filled by whoever dispatches, emptied by the loop; `_gate` guards it and `_wake_is_due`."""
        self._wake_is_due = False
        self._gate = threading.Lock()
        self._closed = False
        self._catch_up_is_due = False
        store.on_arrival(self._arrival)
        if store.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            store.on_flush(self._synced)

    def __len__(self) -> int:
        return sum(len(pulls) for pulls in self._of.values())

    def count_of(self, connection: Connection) -> int:
        return len(self._of.get(connection, ()))

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Has a pull wait, for so long at most."""
        self._held.setdefault(pull.key, set()).add(pull)
        of_connection = self._of.get(pull.connection)
        if of_connection is None:
            of_connection = self._of[pull.connection] = set()
            pull.connection.on_close.append(self._connection_closed)
        of_connection.add(pull)
        pull.timer = self._loop.call_later(0 if self._closed else seconds, self._finish, pull)
        queue = self._store.queues.find(*pull.key)
        if queue is not None and queue.max_offset > pull.offset:
            self._loop.call_soon(self._look_at, pull)  # it arrived while nobody was waiting yet

    def stored(self, topic: str, queue_id: int) -> None:
        """A message was put into a queue just now: whoever waits there need not wait for the thread that dispatches."""
        if (topic, queue_id) in self._held and not self._catch_up_is_due:
            self._catch_up_is_due = True
            self._loop.call_soon(self._catch_up)

    def _synced(self) -> None:
        """On the thread that syncs: what came to disk just now may be shown."""
        if self._held and not self._catch_up_is_due:
            self._catch_up_is_due = True
            with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
                self._loop.call_soon_threadsafe(self._catch_up)

    def _catch_up(self) -> None:
        self._catch_up_is_due = False
        self._store.catch_up()

    def release_all(self) -> None:
        """Answers everybody now, and whoever comes later at once: the broker stops."""
        self._closed = True
        for pulls in list(self._of.values()):
            for pull in list(pulls):
                self._finish(pull)

    # -- arrivals --------------------------------------------------------------------------------------------

    def _arrival(self, topic: str, queue_id: int, max_offset: int, tags_codes: npt.NDArray[np.int64]) -> None:
        """On the thread that dispatches, or on the loop's when a read has run ahead of it."""
        key = (topic, queue_id)
        if key not in self._held:
            return
        with self._gate:
            _, codes = self._arrived.get(key, (0, []))
            self._arrived[key] = (max_offset, [*codes, tags_codes])
            if self._wake_is_due:
                return
            self._wake_is_due = True
        is_here = threading.get_ident() == self._thread
        with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
            (self._loop.call_soon if is_here else self._loop.call_soon_threadsafe)(self._wake)

    def _wake(self) -> None:
        with self._gate:
            self._wake_is_due = False
            arrived, self._arrived = self._arrived, {}
        for key, (max_offset, codes) in arrived.items():
            many = sum(map(len, codes)) > _MAX_CODES
            tags_codes = codes[0] if len(codes) == 1 else np.concatenate(codes)
            for pull in list(self._held.get(key, ())):
                if max_offset > pull.offset and (many or pull.selection.may_want(tags_codes)):
                    self._look_at(pull)

    def _look_at(self, pull: HeldPull) -> None:
        if pull.timer is not None and pull.run(pull, False):
            self._forget(pull)

    # -- ending ----------------------------------------------------------------------------------------------

    def _finish(self, pull: HeldPull) -> None:
        self._forget(pull)
        pull.run(pull, True)

    def _forget(self, pull: HeldPull) -> None:
        if pull.timer is not None:
            pull.timer.cancel()
            pull.timer = None
        self._of[pull.connection].discard(pull)
        pulls = self._held[pull.key]
        pulls.discard(pull)
        if not pulls:
            del self._held[pull.key]

    def _connection_closed(self, connection: Connection) -> None:
        for pull in list(self._of.get(connection, ())):
            self._forget(pull)
        self._of.pop(connection, None)
