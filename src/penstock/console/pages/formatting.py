"""Numbers, sizes and times in the format of the pages, with a dash for a missing value; and parts of URLs."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import quote, urlencode

from penstock.human_units import format_count, format_duration, format_rate, format_size, format_time, parse_time

NOTHING: Final = "–"
when = parse_time


def count(number: float | None) -> str:
    return NOTHING if number is None else format_count(number)


def rate(per_second: float | None) -> str:
    return NOTHING if per_second is None else format_rate(per_second)


def size(number: float | None) -> str:
    return NOTHING if number is None else format_size(number, brief=True)


def moment(milliseconds: int | None) -> str:
    """Returns a time (epoch milliseconds) in local time."""
    return NOTHING if milliseconds is None or milliseconds <= 0 else format_time(milliseconds, "seconds")


def span(milliseconds: float | None) -> str:
    return NOTHING if milliseconds is None or milliseconds <= 0 else format_duration(milliseconds)


def ago(milliseconds: int | None) -> str:
    if milliseconds is None or milliseconds <= 0:
        return NOTHING
    passed = time.time_ns() // 1_000_000 - milliseconds
    return "now" if passed < 1000 else f"{format_duration(passed)} ago"


def share(ratio: float | None) -> str:
    return NOTHING if ratio is None or ratio != ratio else f"{ratio:.0%}"


def behind(number: int, milliseconds: int) -> str:
    """Returns bytes that wait, with the age of the oldest if it is known: `11 MiB, 2 min`."""
    return f"{size(number)}, {span(milliseconds)}" if milliseconds else size(number)


def path(*parts: str) -> str:
    """Returns a URL path of this site. Each part is quoted, so that a slash in it does not split it."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def query(**values: str) -> str:
    """Returns the query string of a URL, without the question mark."""
    return urlencode(values)
