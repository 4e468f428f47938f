"""Numbers, sizes and times as people read them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final
from urllib.parse import quote, urlencode

NOTHING: Final = "–"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def count(number: float | None) -> str:
    """1234567 as 1 234 567, with thin spaces."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}".replace(",", "\u2009")


def rate(per_second: float | None) -> str:
    if per_second is None:
        return NOTHING
    return count(per_second) if per_second >= 100 or per_second == 0 else f"{per_second:.1f}"


def size(number: float | None) -> str:
    if number is None:
        return NOTHING
    amount, unit = float(number), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if unit == 0 or amount >= 100 else f"{amount:.1f} {_UNITS[unit]}"


def moment(milliseconds: int | None) -> str:
    """In local time."""
    if milliseconds is None or milliseconds <= 0:
        return NOTHING
    try:
        return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def span(milliseconds: float | None) -> str:
    """How long: 5 s, 3 min, 2 h, 4 d."""
    if milliseconds is None or milliseconds <= 0:
        return NOTHING
    seconds = milliseconds / 1000
    for limit, unit, name in ((1, 0.001, "ms"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"


def ago(milliseconds: int | None) -> str:
    if milliseconds is None or milliseconds <= 0:
        return NOTHING
    passed = time.time_ns() // 1_000_000 - milliseconds
    return "now" if passed < 1000 else f"{span(passed)} ago"


def share(ratio: float | None) -> str:
    return NOTHING if ratio is None or ratio != ratio else f"{ratio:.0%}"


def when(text: str) -> int:
    """Epoch milliseconds of what a person typed: `2026-01-31 23:59`, or milliseconds. Raises ValueError."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def path(*parts: str) -> str:
    """A path of this site; whatever a part holds, it stays one part."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def query(**values: str) -> str:
    """The part of an address behind the question mark."""
    return urlencode(values)
