"""A type of value as a column has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa


def same(value: Any) -> Any:
    """What needs no change."""
    return value


class Kind(NamedTuple):
    """An Arrow type, and what makes a value of it from what a decoder returns."""

    type: pa.DataType
    made: Callable[[Any], Any] = same
