"""The first use of a type by msgspec, one thread at a time.

msgspec describes a struct for itself when it decodes or converts into it for the first time, and stores the description
before it is complete. A second thread that uses the type meanwhile crashes the process (as of msgspec 0.22, if the
struct contains another one). So a type is given to `msgspec.convert`, `decode` and `Decoder` as `prepared(kind)`; a
test checks that. Types without structs, such as `dict[str, int]`, need no preparation, and neither does encoding.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_ready: set[Any] = set()


def prepared(kind: type[T]) -> type[T]:
    """Returns `kind`, once msgspec's description of it and of all structs in it is complete. Thread-safe."""
    if kind not in _ready:
        with _lock:
            msgspec.msgpack.Decoder(kind)
            _ready.add(kind)
    return kind
