"""The wall clock in RocketMQ's unit, milliseconds since 1970."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Returns the current time in epoch milliseconds. The compiled appender reads the same clock."""
    return time.time_ns() // 1_000_000
