"""Delay levels: parses `messageDelayLevel`, and computes the deliver time of a delayed message."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from penstock.errors import BadSettings

_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d+)([smhd])", re.ASCII)
_UNKNOWN_LEVEL_DELAY = 1_000
DEFAULT_DELAY_TEXT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


@lru_cache(maxsize=16)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Returns the delay of each level in ms. Level n is at index n - 1. Raises BadSettings."""
    levels = []
    for piece in text.split():
        match = _LEVEL.fullmatch(piece)
        if match is None:
            raise BadSettings(
                f"messageDelayLevel: '{piece}' is not a delay; write a number and s, m, h or d, as in '10s'"
            )
        levels.append(int(match[1]) * _UNITS[match[2]])
    return tuple(levels)


def deliver_timestamp(store_timestamp: int, level: int, levels: tuple[int, ...]) -> int:
    """Returns the deliver time (epoch ms) of a message of this level. An unknown level means a delay of one second."""
    if 1 <= level <= len(levels):
        return store_timestamp + levels[level - 1]
    return store_timestamp + _UNKNOWN_LEVEL_DELAY


DEFAULT_DELAY_LEVELS: Final = parse_delay_levels(DEFAULT_DELAY_TEXT)
