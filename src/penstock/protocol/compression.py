"""Compressed message bodies. They are inflated within a size limit, so that a small body cannot exhaust memory.

zlib is built in. lz4 (frames) and zstd need the extra `compression`. Pure functions.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any, Final

from penstock.errors import BadRequest, CorruptData, MissingPackage
from penstock.format.sys_flag import compression_codec

MAX_SIZE: Final = 64 * 1024 * 1024
"""Default limit of an inflated body in bytes. A compressed message may have 4 MiB by default."""
_PIECE: Final = 1 << 16
_WINDOW: Final = 8 << 20  # the largest window of zstd levels below 20


def inflate_body(body: bytes | memoryview, sys_flag: int, limit: int = MAX_SIZE) -> bytes:
    """Returns a message's body, inflated if `sys_flag` says that it is compressed.

    Raises BadRequest, or MissingPackage if the codec is not installed.
    """
    try:
        codec = compression_codec(sys_flag)
    except CorruptData as error:
        raise BadRequest(str(error)) from None
    return bytes(body) if codec is None else inflate(body, codec, limit)


def inflate(data: bytes | memoryview, codec: str, limit: int = MAX_SIZE) -> bytes:
    """Inflates `data` to at most `limit` bytes. `codec` is zlib, lz4 or zstd. Raises like `inflate_body`."""
    if codec == "zlib":
        return _inflate_zlib(data, limit)
    if codec == "lz4":
        return _inflate_lz4(data, limit)
    return _inflate_zstd(data, limit)


def deflate_body(body: bytes, level: int = 5) -> bytes:
    """Compresses a body with zlib, as clients do.

    The sender must set sysFlag bit 0. The codec bits 0x700 may stay zero, which means zlib.
    """
    return zlib.compress(body, level)


def _inflate_zlib(data: bytes | memoryview, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise _inflate_error("zlib", error) from None
    if len(inflated) > limit:
        raise _too_large(limit)
    if not inflater.eof:
        raise _inflate_error("zlib", "it ends too early")
    return inflated


def _inflate_lz4(data: bytes | memoryview, limit: int) -> bytes:
    inflater = _import_codec("lz4.frame", "lz4").LZ4FrameDecompressor()
    try:
        inflated: bytes = inflater.decompress(bytes(data), max_length=limit + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _inflate_error("lz4", error) from None
    if len(inflated) > limit:
        raise _too_large(limit)
    if not inflater.eof:
        raise _inflate_error("lz4", "it ends too early")
    return inflated


def _inflate_zstd(data: bytes | memoryview, limit: int) -> bytes:
    package = _import_codec("zstandard", "zstandard")
    decompressor = package.ZstdDecompressor(max_window_size=max(limit, _WINDOW))
    try:
        # measure the length in pieces first: a frame need not state it, and the call that detects the end has no limit
        reader, length = decompressor.stream_reader(bytes(data)), 0
        while piece := reader.read(_PIECE):
            length += len(piece)
            if length > limit:
                raise _too_large(limit)
        inflater = decompressor.decompressobj()
        inflated: bytes = inflater.decompress(bytes(data))
    except package.ZstdError as error:
        raise _inflate_error("zstd", error) from None
    if not inflater.eof:
        raise _inflate_error("zstd", "it ends too early")
    return inflated


def _import_codec(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingPackage(
            f"a body is compressed with {package}, which is not installed; pip install 'penstock[compression]'"
        ) from None


def _inflate_error(codec: str, reason: object) -> BadRequest:
    return BadRequest(f"a compressed body cannot be inflated with {codec}: {reason}")


def _too_large(limit: int) -> BadRequest:
    return BadRequest(f"a compressed body inflates to more than {limit} bytes, which is the limit")
