"""Saves memory in the console's process, because it runs all day beside a broker.

NiceGUI's socket library imports up to three HTTP client packages for its socket client. The console does not use that
client, and the packages would take a tenth of its memory.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

_NOT_NEEDED: Final = ("aiohttp", "requests", "websocket")


@contextlib.contextmanager
def without_http_clients() -> Iterator[None]:
    """Makes imports of the packages in `_NOT_NEEDED` fail inside the block, unless they are already imported."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in _NOT_NEEDED if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
