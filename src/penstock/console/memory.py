"""What keeps the console's process small: it is to run all day beside a broker.

NiceGUI's sockets come from a library that is a server and a client, and that imports three HTTP clients for the second,
if they are there; they would take a tenth of the memory, and nothing here is ever a client of that kind.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

_NOT_NEEDED: Final = ("aiohttp", "requests", "websocket")


@contextlib.contextmanager
def without_http_clients() -> Iterator[None]:
    """Whoever imports one of them inside hears that it is not installed."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in _NOT_NEEDED if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
