"""Log lines that a stranger can cause: one a second at most, and the next one says how many were left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class Seldom:
    """One kind of line."""

    __slots__ = ("_clock", "_every_s", "_left_out", "_logger", "_next")

    def __init__(self, logger: logging.Logger, *, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic):
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._next = float("-inf")
        self._left_out = 0

    def warn(self, message: str) -> None:
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        self._next = now + self._every_s
        more = f" (and {self._left_out} more since the last such line)" if self._left_out else ""
        self._left_out = 0
        self._logger.warning("%s%s", message, more)
