"""Acks of slaves, and the puts of a SYNC_MASTER that wait for them.

The replication server reports when slaves connect and disconnect, and the offset that a slave has acknowledged. A put
submits the end offset of its record and gets a future. One ack completes all waiting puts up to its offset. A put that
times out gets FLUSH_SLAVE_TIMEOUT. If no slave is connected, or all are too far behind (haSlaveFallbehindMax), a put
gets SLAVE_NOT_AVAILABLE at once. In both cases the message is stored in the master's log.

Thread-safe. Concurrent puts need not submit in log order. Acks are not kept on disk: after a restart slaves report
their offsets again.
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
    """The highest ack of any slave, as in RocketMQ, and the puts that wait for acks. The thread ends overdue waits."""

    def __init__(self, settings: Settings) -> None:
        super().__init__("penstock-slave-acks", None)
        self._max_lag = settings.ha_slave_fallbehind_max
        self.wait_s = settings.slave_timeout / 1000
        self._gate = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        """Waiting puts, in log order."""
        self.connected = 0
        """Number of connected slaves."""
        self.acknowledged = 0
        """Physical offset up to which at least one slave has the log."""
        self._on_acknowledge: Listeners[[]] = Listeners()
        self._on_wait: Listeners[[]] = Listeners()

    # -- the server's side -----------------------------------------------------------------------------------

    def on_wait(self, callback: Callable[[], object]) -> None:
        """Calls `callback`, on any thread, when a put starts to wait for a slave: the server must send the log now."""
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
        """Records that a slave has the log up to `offset`. Completes the puts that waited for it."""
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
        """Calls `callback` after each ack that moves `acknowledged`, on the thread that reported the ack."""
        self._on_acknowledge.add(callback)

    def request_send(self) -> None:
        """Asks the replication server to send new records now, because a put waits for their ack."""
        self._on_wait.notify()

    def is_available(self, end_offset: int) -> bool:
        """Whether a slave is connected and the acks are less than haSlaveFallbehindMax bytes behind `end_offset`."""
        return self.connected > 0 and end_offset - self.acknowledged < self._max_lag

    def submit(self, end_offset: int) -> Future[PutStatus]:
        """Returns a future for the ack of `end_offset`: PUT_OK, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE."""
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
        """Inserts a wait in log order. Searches from the end, because most puts are the newest."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].end_offset > waiting.end_offset:
            place -= 1
        self._waiting.insert(place, waiting)

    def work(self) -> None:
        """Ends waits as they time out. Returns when no put waits."""
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
    """Returns the PutResult's `reason` for an outcome of `submit`; empty for PUT_OK."""
    if status is PutStatus.FLUSH_SLAVE_TIMEOUT:
        return f"stored, but no slave has acknowledged it after {wait_s:g} seconds"
    if status is PutStatus.SLAVE_NOT_AVAILABLE:
        return "stored, but no slave is connected, or all are too far behind (haSlaveFallbehindMax)"
    return ""
