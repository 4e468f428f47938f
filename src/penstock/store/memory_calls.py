"""mlock, munlock and msync of a range, which Python's mmap does not offer or does not offer without the GIL."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
from collections.abc import Callable

_libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
_MS_SYNC = 4


def lock_memory(memory: mmap.mmap) -> bool:
    """Keeps the map in RAM; False where the system's limit forbids it."""
    return _on_range(_libc.mlock, memory, 0, len(memory)) == 0


def unlock_memory(memory: mmap.mmap) -> bool:
    return _on_range(_libc.munlock, memory, 0, len(memory)) == 0


def sync_memory(memory: mmap.mmap, start: int, stop: int) -> None:
    """Returns when this part of the file is on disk; other threads run meanwhile. Raises OSError."""
    start -= start % mmap.PAGESIZE
    if _on_range(_libc.msync, memory, start, stop - start, _MS_SYNC):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _on_range(function: Callable[..., int], memory: mmap.mmap, start: int, size: int, *more: int) -> int:
    held = (ctypes.c_char * len(memory)).from_buffer(memory)
    try:
        address = ctypes.c_void_p(ctypes.addressof(held) + start)
        return function(address, ctypes.c_size_t(size), *map(ctypes.c_int, more))
    finally:
        del held
