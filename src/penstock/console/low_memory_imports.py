"""Keeps the console's process small, because it runs all day beside a broker.

NiceGUI's socket library contains a client as well, and imports up to three HTTP clients for it. They would take a tenth
of the memory, and the console never uses that client.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

_NOT_NEEDED: Final = ("aiohttp", "requests", "websocket")


@contextlib.contextmanager
def without_http_clients() -> Iterator[None]:
    """Makes imports of these packages fail inside the block."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in _NOT_NEEDED if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
