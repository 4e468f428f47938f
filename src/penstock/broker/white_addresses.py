"""Patterns of remote addresses as plain_acl.yml has them: whoever comes from such an address is not asked for more.

    10.1.2.3    10.1.*.*    10.1.2.3-60    10.1.2.{3,4,7}    10.1.2.3,10.1.2.4    10.1.0.0/16    fe80::1    *

Nothing, or blank text, matches nobody.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator

Matches = Callable[[str], bool]
"""Whether an address, without its port, is meant."""

_OUTSIDE_BRACES = re.compile(r",(?![^{]*\})")


def matcher(pattern: str) -> Matches:
    """What matches a pattern, or several joined by commas. Raises ValueError with a phrase that says what is wrong."""
    tests = [_one(piece.strip()) for piece in _OUTSIDE_BRACES.split(pattern) if piece.strip()]
    return lambda address: any(test(address) for test in tests)


def _one(pattern: str) -> Matches:
    if pattern == "*" or set(pattern.split(".")) == {"*"}:
        return lambda address: True
    if ":" in pattern or "/" in pattern:
        network = ipaddress.ip_network(pattern, strict=False)
        return lambda address: ipaddress.ip_address(address) in network
    parts = pattern.split(".")
    if len(parts) != 4:
        raise ValueError(f"'{pattern}' is no address: it needs four numbers")
    allowed = [frozenset(_numbers(part, pattern)) for part in parts]

    def test(address: str) -> bool:
        numbers = address.split(".")
        return len(numbers) == 4 and all(int(number) in wanted for number, wanted in zip(numbers, allowed, strict=True))

    return lambda address: ":" not in address and test(address)


def _numbers(part: str, pattern: str) -> Iterator[int]:
    if part == "*":
        yield from range(256)
        return
    pieces = part[1:-1].split(",") if part.startswith("{") and part.endswith("}") else [part]
    for piece in pieces:
        low, dash, high = (side.strip() for side in piece.partition("-"))
        first, last = low, high if dash else low
        if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
            raise ValueError(f"'{pattern}' is no address: '{part}' is no number, range or list")
        if not 0 <= int(first) <= int(last) <= 255:
            raise ValueError(f"'{pattern}' is no address: '{part}' is not within 0 to 255")
        yield from range(int(first), int(last) + 1)
