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
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


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

    `now`, `now-30s`, `now-15m`, `now-1h` and `now-7d` are relative. A number is taken as epoch milliseconds. Raises
    ValueError.
    """
    text = text.strip()
    if text.isdecimal():
        return int(text)
    relative = re.fullmatch(r"now(?:-(\d{1,9})([smhd]))?", text.lower())
    if relative is not None:
        seconds = int(relative[1] or 0) * _SECONDS[relative[2] or "s"]
        return int(time.time() * 1000) - seconds * 1000
    return int(datetime.fromisoformat(text).timestamp() * 1000)
