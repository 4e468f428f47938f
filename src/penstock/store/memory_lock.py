"""mlock and munlock, which Python's mmap does not offer."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap

_libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)


def lock_memory(memory: mmap.mmap) -> bool:
    """Keeps the map in RAM; False where the system's limit forbids it."""
    return _call(_libc.mlock, memory)


def unlock_memory(memory: mmap.mmap) -> bool:
    return _call(_libc.munlock, memory)


def _call(function: ctypes._NamedFuncPointer, memory: mmap.mmap) -> bool:
    start = (ctypes.c_char * len(memory)).from_buffer(memory)
    try:
        return bool(function(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(memory))) == 0)
    finally:
        del start
