"""Values of an expression and how they compare. A property is text, or None if the message does not have it.

None is SQL's "unknown": comparing with it is unknown, NOT of it is unknown, and only a true expression selects a
message. Text that is compared with a number is read as one; if it is none, the message is not selected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
Truth: TypeAlias = bool | None


class NoNumber(Exception):
    """Text that had to be a number, or something that has no order: the message is not selected."""


def number(value: Value) -> float | int:
    """Raises NoNumber."""
    if isinstance(value, bool) or value is None:
        raise NoNumber
    if isinstance(value, str):
        try:
            return int(value) if value.lstrip("+-").isdecimal() and value.isascii() else float(value)
        except ValueError:
            raise NoNumber from None
    return value


def equal(left: Value, right: Value) -> Truth:
    """Whether two values are the same; text and text are compared as text, anything with a number as numbers."""
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        return _as_truth(left) == _as_truth(right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return number(left) == number(right)


def ordered(left: Value, right: Value, test: Callable[[float, float], bool]) -> Truth:
    """Compares as numbers, also where both are text, as RocketMQ does."""
    if left is None or right is None:
        return None
    return test(number(left), number(right))


def _as_truth(value: Value) -> bool:
    """Raises NoNumber for what is neither true nor false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise NoNumber


def truth(value: Value) -> Truth:
    """A value where a condition stands: only true and false are conditions."""
    return value if isinstance(value, bool) else None
