"""A rate limit for log lines that clients can cause: at most one a second. The next line says how many were dropped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class RateLimitedLog:
    """Limits log lines of one kind to one every `every_s` seconds."""

    __slots__ = ("_clock", "_dropped", "_every_s", "_logger", "_next")

    def __init__(self, logger: logging.Logger, *, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic):
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._next = float("-inf")
        self._dropped = 0

    def warn(self, message: str) -> None:
        self._write(logging.WARNING, message)

    def error(self, message: str, error: BaseException) -> None:
        """Logs the message with the traceback of an unexpected error."""
        self._write(logging.ERROR, message, error)

    def _write(self, level: int, message: str, error: BaseException | None = None) -> None:
        now = self._clock()
        if now < self._next:
            self._dropped += 1
            return
        self._next = now + self._every_s
        more = f" (and {self._dropped} more since the last such line)" if self._dropped else ""
        self._dropped = 0
        self._logger.log(level, "%s%s", message, more, exc_info=error)
