"""How much memory a piece of code takes at its worst, in Python's own objects."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Fails if the block takes more than `limit` bytes at once."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"took {peak} bytes, {limit} are allowed"
