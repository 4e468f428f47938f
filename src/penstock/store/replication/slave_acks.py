"""Acks of slaves, and the puts of a SYNC_MASTER that wait for them.

The replication server reports which slaves are connected and how far each is; a put submits the end of its record and
gets a future. One ack completes all waiting puts that it covers. A put that times out gets FLUSH_SLAVE_TIMEOUT; a put
that no slave could ack soon gets SLAVE_NOT_AVAILABLE at once. Both are stored all the same.

Thread-safe; concurrent puts may submit in another order than that of the log. Nothing is stored: after a restart slaves
report their offsets again.
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

_POLL_S = 0.05


class _Waiting(NamedTuple):
    end_offset: int
    deadline: float
    future: Future[PutStatus]


class SlaveAcks(Worker):
    """All slaves as one: the furthest ack counts, as in RocketMQ. The thread ends waits that time out."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("penstock-slave-acks", None)
        self._max_lag = settings.ha_slave_fallbehind_max
        self.wait_s = settings.slave_timeout / 1000
        self._gate = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        """In log order."""
        self.connected = 0
        """Number of connected slaves."""
        self.acknowledged = 0
        """Physical offset up to which at least one slave has the log."""
        self._on_acknowledge: Listeners[[]] = Listeners()
        self._on_wait: Listeners[[]] = Listeners()

    # -- the server's side -----------------------------------------------------------------------------------

    def on_wait(self, callback: Callable[[], object]) -> None:
        """Calls back, on any thread, when a put starts to wait for a slave: send the log now."""
        self._on_wait.add(callback)

    def remove_wait_listener(self, callback: Callable[[], object]) -> None:
        self._on_wait.remove(callback)

    def slave_connected(self) -> None:
        with self._gate:
            self.connected += 1

    def slave_disconnected(self) -> None:
        with self._gate:
            self.connected -= 1

    def acknowledge(self, offset: int) -> None:
        """Notes that a slave has the log up to `offset`."""
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
        """Calls back after each ack that moves `acknowledged`, on the thread that reported it."""
        self._on_acknowledge.add(callback)

    def request_send(self) -> None:
        """Asks the replication server to send new records now: a put waits for their ack."""
        self._on_wait.notify()

    def is_available(self, end_offset: int) -> bool:
        """Whether a slave is connected and close enough to ack `end_offset` soon."""
        return self.connected > 0 and end_offset - self.acknowledged < self._max_lag

    def submit(self, end_offset: int) -> Future[PutStatus]:
        """The outcome of a put's wait: PUT_OK, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE."""
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
            self.request_send()
        return future

    def _add(self, waiting: _Waiting) -> None:
        """Inserts in log order, searching from the end: most puts are the newest."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].end_offset > waiting.end_offset:
            place -= 1
        self._waiting.insert(place, waiting)

    def work(self) -> None:
        """Ends the waits that time out, until none is left."""
        while not self._stopping.is_set():
            self._end_waits(time.monotonic())
            if not self._waiting:
                return
            self._stopping.wait(_POLL_S)

    def finish(self) -> None:
        self._end_waits(float("inf"))

    def _end_waits(self, now: float) -> None:
        timed_out: list[_Waiting] = []
        with self._gate:
            while self._waiting and self._waiting[0].deadline <= now:
                timed_out.append(self._waiting.popleft())
        for waiting in timed_out:
            waiting.future.set_result(PutStatus.FLUSH_SLAVE_TIMEOUT)


def replica_reason(status: PutStatus, wait_s: float) -> str:
    """The reason that goes with the outcome of `submit`."""
    if status is PutStatus.FLUSH_SLAVE_TIMEOUT:
        return f"stored, but no slave has acknowledged it after {wait_s:g} seconds"
    if status is PutStatus.SLAVE_NOT_AVAILABLE:
        return "stored, but no slave is connected, or all are too far behind (haSlaveFallbehindMax)"
    return ""
