"""Formats sizes, counts and times for people, in the command line, the charts and the console. Parses sizes
and times.

Pure functions. Times are epoch milliseconds. Their texts are in local time.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UNITS: Final = {
    unit: 1 << shift
    for shift, units in ((0, ("", "b")), (10, ("k", "kb", "kib")), (20, ("m", "mb", "mib")), (30, ("g", "gb", "gib")))
    for unit in units
}
_DURATIONS: Final = ((1, 0.001, "ms"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"))
"""Tuples of (seconds below which the unit is used, seconds of one unit, name of the unit)."""


def format_size(count: float, *, brief: bool = False) -> str:
    """Returns a number of bytes with a unit: `17 B`, `1.5 KiB`. `brief` drops the decimal of numbers from 100 on."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_SIZES) - 1:
        amount, unit = amount / 1024, unit + 1
    decimals = 0 if unit == 0 or (brief and amount >= 100) else 1
    return f"{amount:.{decimals}f} {_SIZES[unit]}"


def format_count(number: float) -> str:
    """Returns 1234567 as 1 234 567, with thin spaces."""
    return f"{number:,.0f}".replace(",", "\u2009")


def format_rate(per_second: float) -> str:
    return format_count(per_second) if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def format_time(milliseconds: int, timespec: str = "milliseconds") -> str:
    """Returns a time as `2026-01-31 23:59:59.999`, or `-` for 0 and less. Returns a time out of range as a number."""
    if milliseconds <= 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).isoformat(sep=" ", timespec=timespec)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def format_duration(milliseconds: float) -> str:
    """Returns a duration in one unit: 5 s, 3 min, 2 h, 4 d."""
    seconds = milliseconds / 1000
    for limit, unit, name in _DURATIONS:
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def parse_size(text: str) -> int:
    """Returns a number of bytes, with or without a unit: 1048576, 64m, 1 GiB. Raises ValueError, also for 0."""
    match = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _UNITS or not int(match[1]):
        raise ValueError("it must be a number of bytes such as 1048576, 64m or 1g")
    return int(match[1]) * _UNITS[match[2]]


def parse_time(text: str) -> int:
    """Returns the epoch milliseconds of a text such as `2026-01-31T23:59`, which is local time unless it has a zone.

    `now`, `now-1h` and `now+30m` are times relative to the present. A number is taken as epoch milliseconds. Raises
    ValueError.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return int(text)
    if relative := re.fullmatch(r"now(?:\s*([+-])\s*(\w+))?", text):
        distance = parse_duration(relative[2]) if relative[1] else 0.0
        return time.time_ns() // 1_000_000 + int(distance * 1000) * (-1 if relative[1] == "-" else 1)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("it must be milliseconds, a time such as 2026-01-31T23:59, or one such as now-1h") from None


_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration such as 500ms, 30s, 15m, 1h or 7d. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,12})\s*([a-z]+)", text.lower())
    if match is None or match[2] not in _SECONDS:
        raise ValueError("it must be a time such as 500ms, 30s or 15m")
    return int(match[1]) * _SECONDS[match[2]]
