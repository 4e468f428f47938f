"""What is known about one option besides its value, and how its text becomes a value.

Nothing here knows a particular option. A refusal is a BadSettings of one sentence: the option, its value, and what is
allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from penstock.errors import BadSettings

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_UNITS |= {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Use(Flag):
    """Where an option counts."""

    BATCH = auto()
    STREAM = auto()
    WRITE = auto()
    READ = BATCH | STREAM
    ALL = READ | WRITE


Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name as people write it, how its text is read, what it is when it is not given."""

    name: str
    use: Use
    parse: Parse
    default: str
    """The default as the reference page says it."""
    meaning: str
    aliases: tuple[str, ...] = ()

    def read(self, text: str) -> Any:
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise BadSettings(f"option {self.name}='{text}': {error}") from None


def text(value: str) -> str:
    if not value:
        raise ValueError("it must not be empty")
    return value


def words(value: str) -> tuple[str, ...]:
    """Names joined by commas."""
    found = tuple(word.strip() for word in value.split(",") if word.strip())
    if not found:
        raise ValueError("it must name at least one")
    if len(set(found)) != len(found):
        raise ValueError("a name is there twice")
    return found


def flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return value.lower() == "true"


def at_least(lowest: int) -> Parse:
    """A whole number with a lower bound."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,19}", value) or int(value) < lowest:
            raise ValueError(f"it must be a whole number of at least {lowest}")
        return int(value)

    return parse


def size(value: str) -> int:
    """Bytes, with or without a unit: 1048576, 64m, 1 GiB."""
    found = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", value.lower())
    if found is None or found[2] not in _UNITS or not int(found[1]):
        raise ValueError("it must be a number of bytes such as 1048576, 64m or 1g")
    return int(found[1]) * _UNITS[found[2]]


def duration(value: str) -> float:
    """Seconds, from text such as 500ms, 30s, 15m."""
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]+)", value.lower())
    if found is None or found[2] not in _SECONDS:
        raise ValueError("it must be a time such as 500ms, 30s or 15m")
    return int(found[1]) * _SECONDS[found[2]]


def one_of(*allowed: str) -> Parse:
    """One of some words, in any case; the spelling here is what comes out."""
    known = {word.lower(): word for word in allowed}

    def parse(value: str) -> str:
        if value.lower() not in known:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return known[value.lower()]

    return parse


def pattern(value: str) -> re.Pattern[str]:
    try:
        return re.compile(text(value))
    except re.error as error:
        raise ValueError(f"it is no regular expression ({error})") from None
