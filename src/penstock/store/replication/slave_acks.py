"""What slaves have acknowledged, and the puts that wait for it (SYNC_MASTER).

The server for slaves says who is connected and how far each one is; a put asks for a future of its record's end. One
acknowledgement answers all waiting puts that it covers. A put whose time is up is answered FLUSH_SLAVE_TIMEOUT, and one
that no slave could acknowledge soon is told so at once; both are stored all the same. Any thread may call, in any
order: threads that put at the same time may come here in another one than to the log. Nothing is kept on disk: after a
restart slaves tell again how far they are.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from penstock.store.message import PutStatus
from penstock.store.settings import Settings
from penstock.store.worker import Listeners, Worker

_LOOK_S = 0.05


class _Waiting(NamedTuple):
    end_offset: int
    deadline: float
    future: Future[PutStatus]


class SlaveAcks(Worker):
    """The slaves as one: the furthest acknowledgement counts, as in RocketMQ. Its thread ends waits."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("penstock-replica-waits", None)
        self._most_behind = settings.ha_slave_fallbehind_max
        self.wait_s = settings.slave_timeout / 1000
        self._gate = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        """In the order of the log, whoever came first."""
        self.connected = 0
        """Slaves that follow now."""
        self.acknowledged = 0
        """The physical offset up to which at least one slave has the log."""
        self._on_acknowledge: Listeners[[]] = Listeners()
        self._on_wait: Listeners[[]] = Listeners()

    # -- the server's side -----------------------------------------------------------------------------------

    def on_wait(self, callback: Callable[[], object]) -> None:
        """Calls back, on any thread, when a put begins to wait for a slave: there is something to send."""
        self._on_wait.add(callback)

    def remove_wait_listener(self, callback: Callable[[], object]) -> None:
        self._on_wait.remove(callback)

    def joined(self) -> None:
        with self._gate:
            self.connected += 1

    def left(self) -> None:
        with self._gate:
            self.connected -= 1

    def acknowledge(self, offset: int) -> None:
        """A slave has the log up to `offset`."""
        done: list[Future[PutStatus]] = []
        with self._gate:
            if offset <= self.acknowledged:
                return
            self.acknowledged = offset
            while self._waiting and self._waiting[0].end_offset <= offset:
                done.append(self._waiting.popleft().future)
        for future in done:
            future.set_result(PutStatus.PUT_OK)
        self._on_acknowledge.notify()

    # -- the puts' side --------------------------------------------------------------------------------------

    def on_acknowledge(self, callback: Callable[[], object]) -> None:
        """Calls back after each acknowledgement that moves `acknowledged`, on the thread that brought it."""
        self._on_acknowledge.add(callback)

    def hurry(self) -> None:
        """Has the server send at once what is new: a put waits for it."""
        self._on_wait.notify()

    def is_available(self, end_offset: int) -> bool:
        """Whether a slave follows that could acknowledge `end_offset` soon."""
        return self.connected > 0 and end_offset - self.acknowledged < self._most_behind

    def submit(self, end_offset: int) -> Future[PutStatus]:
        """What becomes of a put's wait: PUT_OK, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE."""
        future: Future[PutStatus] = Future()
        with self._gate:
            if self.acknowledged >= end_offset:
                future.set_result(PutStatus.PUT_OK)
            elif not self.is_available(end_offset) or self._stopping.is_set():
                future.set_result(PutStatus.SLAVE_NOT_AVAILABLE)
            else:
                self._add(_Waiting(end_offset, time.monotonic() + self.wait_s, future))
        if not future.done():
            self.wake()
            self.hurry()
        return future

    def _add(self, waiting: _Waiting) -> None:
        """Nearly always the last one, so the place is looked for from there."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].end_offset > waiting.end_offset:
            place -= 1
        self._waiting.insert(place, waiting)

    def work(self) -> None:
        """Ends the waits whose time is up, until none is left."""
        while not self._stopping.is_set():
            self._end_waits(time.monotonic())
            if not self._waiting:
                return
            self._stopping.wait(_LOOK_S)

    def finish(self) -> None:
        self._end_waits(float("inf"))

    def _end_waits(self, now: float) -> None:
        late: list[_Waiting] = []
        with self._gate:
            while self._waiting and self._waiting[0].deadline <= now:
                late.append(self._waiting.popleft())
        for waiting in late:
            waiting.future.set_result(PutStatus.FLUSH_SLAVE_TIMEOUT)


def replica_reason(status: PutStatus, wait_s: float) -> str:
    """The sentence that goes with a status of a replica wait."""
    if status is PutStatus.FLUSH_SLAVE_TIMEOUT:
        return f"stored, but no slave has acknowledged it after {wait_s:g} seconds"
    if status is PutStatus.SLAVE_NOT_AVAILABLE:
        return "stored, but no slave is connected, or all are too far behind (haSlaveFallbehindMax)"
    return ""
