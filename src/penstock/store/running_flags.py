"""Whether the store may be read and written, and why not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntFlag

from penstock.store.worker import Listeners


class Trouble(IntFlag):
    """RocketMQ's running flags; any but NOT_READABLE refuses puts."""

    NOT_READABLE = 0x1
    NOT_WRITEABLE = 0x2
    LOGICS_QUEUE_ERROR = 0x4
    INDEX_FILE_ERROR = 0x8
    DISK_FULL = 0x10


_REFUSES_PUTS = ~int(Trouble.NOT_READABLE)


class RunningFlags:
    """The set of current troubles, each with the sentence that explains it. Safe to use from any thread."""

    def __init__(self) -> None:
        self._bits = 0
        self._reasons: dict[Trouble, str] = {}
        self._gate = threading.Lock()
        self._changed: Listeners[[bool]] = Listeners()

    def on_change(self, changed: Callable[[bool], object]) -> None:
        """Calls back with whether puts are taken, whenever that may have changed, in the order of the changes."""
        self._changed.add(changed)

    def raise_trouble(self, trouble: Trouble, reason: str) -> None:
        with self._gate:
            self._reasons[trouble] = reason
            self._bits |= trouble
            self._changed.notify(self.writable)

    def clear(self, trouble: Trouble) -> None:
        if self._bits & trouble:
            with self._gate:
                self._bits &= ~trouble
                self._reasons.pop(trouble, None)
                self._changed.notify(self.writable)

    @property
    def bits(self) -> int:
        return self._bits

    @property
    def writable(self) -> bool:
        return not self._bits & _REFUSES_PUTS

    @property
    def readable(self) -> bool:
        return not self._bits & Trouble.NOT_READABLE

    @property
    def reason(self) -> str:
        """Why puts are refused, in one sentence; empty if they are not."""
        with self._gate:
            return "; ".join(self._reasons.values())
