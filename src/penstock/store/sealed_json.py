"""Small files of Penstock's own: JSON with a checksum, replaced atomically.

    {"crc32": 305419896, "content": {...}}

What they hold is believed blindly, so a flipped digit must not pass: a file whose checksum does not fit is garbage, and
whoever reads it does without. The text is ASCII; names that are not UTF-8 survive as escaped surrogates.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.store.files import Files

T = TypeVar("T")


def read_sealed(files: Files, path: Path, kind: type[T]) -> T | None:
    """The content; None if the file is missing or garbage, which `files.exists` tells apart."""
    try:
        document = json.loads(files.read_bytes(path))
        if document["crc32"] != _checksum(document["content"]):
            return None
        return msgspec.convert(document["content"], kind)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError):
        return None


def write_sealed(files: Files, path: Path, content: object) -> None:
    """Raises StoreFailed, and then the old file is still there."""
    files.replace_bytes(path, sealed(content))


def sealed(content: object) -> bytes:
    """What such a file holds."""
    plain = msgspec.to_builtins(content)
    return json.dumps({"crc32": _checksum(plain), "content": plain}).encode()


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content).encode())
