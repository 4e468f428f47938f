"""RocketMQ's running flags: faults that make the store refuse reads or writes, each with a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntFlag

from penstock.store.worker_thread import Listeners


class StoreFault(IntFlag):
    """RocketMQ's running flags. Every flag except NOT_READABLE makes the store refuse puts."""

    NOT_READABLE = 0x1
    NOT_WRITEABLE = 0x2
    LOGICS_QUEUE_ERROR = 0x4
    INDEX_FILE_ERROR = 0x8
    DISK_FULL = 0x10


_REFUSES_PUTS = ~int(StoreFault.NOT_READABLE)


class RunningFlags:
    """The current faults, each with its reason. Thread-safe."""

    def __init__(self) -> None:
        self._bits = 0
        self._reasons: dict[StoreFault, str] = {}
        self._gate = threading.Lock()
        self._changed: Listeners[[bool]] = Listeners()

    def on_change(self, changed: Callable[[bool], object]) -> None:
        """Calls `changed` with the value of `writable` after each raised or cleared fault, in order."""
        self._changed.add(changed)

    def raise_fault(self, fault: StoreFault, reason: str) -> None:
        with self._gate:
            self._reasons[fault] = reason
            self._bits |= fault
            self._changed.notify(self.writable)

    def clear(self, fault: StoreFault) -> None:
        if self._bits & fault:
            with self._gate:
                self._bits &= ~fault
                self._reasons.pop(fault, None)
                self._changed.notify(self.writable)

    @property
    def bits(self) -> int:
        return self._bits

    @property
    def writable(self) -> bool:
        return not self._bits & _REFUSES_PUTS

    @property
    def readable(self) -> bool:
        return not self._bits & StoreFault.NOT_READABLE

    @property
    def reason(self) -> str:
        """The reasons of all current faults; empty if there are none."""
        with self._gate:
            return "; ".join(self._reasons.values())
