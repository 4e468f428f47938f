"""Message bodies that a client compressed: inflated within a limit, whatever the bytes claim.

zlib is Python's own; lz4 (frames) and zstd need the extra `compression`. Pure functions.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any, Final

from penstock.errors import BadRequest, CorruptData, MissingPackage
from penstock.format.sys_flag import compression_codec

MAX_SIZE: Final = 64 * 1024 * 1024
"""Of a body once it is inflated, unless the caller knows better; a message may have 4 MiB compressed."""
_PIECE: Final = 1 << 16
_WINDOW: Final = 8 << 20  # the largest that a zstd level below 20 uses


def inflate_body(body: bytes | memoryview, sys_flag: int, limit: int = MAX_SIZE) -> bytes:
    """A message's body as its sender had it. Raises BadRequest, or MissingPackage for a codec that is not installed."""
    try:
        codec = compression_codec(sys_flag)
    except CorruptData as error:
        raise BadRequest(str(error)) from None
    return bytes(body) if codec is None else inflate(body, codec, limit)


def inflate(data: bytes | memoryview, codec: str, limit: int = MAX_SIZE) -> bytes:
    """What `data` holds, at most `limit` bytes of it ever made. `codec` is zlib, lz4 or zstd."""
    if codec == "zlib":
        return _inflate_zlib(data, limit)
    if codec == "lz4":
        return _inflate_lz4(data, limit)
    return _inflate_zstd(data, limit)


def deflate_body(body: bytes, level: int = 5) -> bytes:
    """A body compressed as clients do, with zlib: sysFlag bit 0 says so, and 0x700 may stay zero."""
    return zlib.compress(body, level)


def _inflate_zlib(data: bytes | memoryview, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise _broken("zlib", error) from None
    if len(found) > limit:
        raise _too_long(limit)
    if not inflater.eof:
        raise _broken("zlib", "it ends too early")
    return found


def _inflate_lz4(data: bytes | memoryview, limit: int) -> bytes:
    inflater = _package("lz4.frame", "lz4").LZ4FrameDecompressor()
    try:
        found: bytes = inflater.decompress(bytes(data), max_length=limit + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _broken("lz4", error) from None
    if len(found) > limit:
        raise _too_long(limit)
    if not inflater.eof:
        raise _broken("lz4", "it ends too early")
    return found


def _inflate_zstd(data: bytes | memoryview, limit: int) -> bytes:
    package = _package("zstandard", "zstandard")
    decompressor = package.ZstdDecompressor(max_window_size=max(limit, _WINDOW))
    try:
        # first the length, in small pieces: a frame need not say it, and the call that tells an end has no limit
        reader, length = decompressor.stream_reader(bytes(data)), 0
        while piece := reader.read(_PIECE):
            length += len(piece)
            if length > limit:
                raise _too_long(limit)
        inflater = decompressor.decompressobj()
        found: bytes = inflater.decompress(bytes(data))
    except package.ZstdError as error:
        raise _broken("zstd", error) from None
    if not inflater.eof:
        raise _broken("zstd", "it ends too early")
    return found


def _package(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingPackage(
            f"a body is compressed with {package}, which is not installed; pip install 'penstock[compression]'"
        ) from None


def _broken(codec: str, reason: object) -> BadRequest:
    return BadRequest(f"a compressed body cannot be inflated with {codec}: {reason}")


def _too_long(limit: int) -> BadRequest:
    return BadRequest(f"a compressed body inflates to more than {limit} bytes, the most that is allowed here")
