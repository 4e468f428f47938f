"""Rows that wait to be appended: files under `penstock/sink/staged/`, a folder for each run of a write.

Anybody may stage, any number of processes at a time, also while the store is in use: nothing else of the store is
touched. A part is written whole and synced before its name is given away; the name has something random in it, so that
whoever stages the same rows again does not meet the files of an earlier try. What the files hold is up to whoever
writes and reads them. Parts that nobody commits are removed by a later commit of the same query or write, or after a
week.
"""

from __future__ import annotations

import secrets
import zlib
from typing import Final

import msgspec

from penstock.errors import CorruptData
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.sink.marks import Identity

FORGOTTEN_MS: Final = 7 * 24 * 3_600_000


class Part(msgspec.Struct, frozen=True):
    """One staged file."""

    name: str
    size: int
    crc: int


def folder_of(identity: Identity, run: str) -> str:
    """The name of a folder for what one run stages for a batch."""
    return f"{identity.key}-{run}"


def stage(files: Files, layout: Layout, folder: str, name: str, data: bytes | memoryview) -> Part:
    """Writes a part and syncs it. Raises StoreFailed, and then there is no such part."""
    path = layout.sink_staged / folder / f"{name}-{secrets.token_hex(8)}"
    files.replace_bytes(path, data)
    return Part(path.name, len(data), zlib.crc32(data))


def read_part(files: Files, layout: Layout, folder: str, part: Part) -> bytes:
    """What was staged. Raises CorruptData if it is not what is there now, or not there at all."""
    path = layout.sink_staged / folder / part.name
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        raise CorruptData(
            "staged rows are gone; driver and executors must see the store's folder under the same path", path=path
        ) from None
    if len(data) != part.size or zlib.crc32(data) != part.crc:
        raise CorruptData(
            "staged rows are not what was written",
            path=path,
            expected=f"{part.size} bytes with checksum {part.crc}",
            found=f"{len(data)} bytes with checksum {zlib.crc32(data)}",
        )
    return data


def remove_staged(files: Files, layout: Layout, folder: str) -> None:
    """Removes the folder of one batch. Raises OSError."""
    for name in files.names(layout.sink_staged / folder):
        files.unlink(layout.sink_staged / folder / name)
    files.remove_folder(layout.sink_staged / folder)


def clear_staged(files: Files, layout: Layout, identity: Identity, now: int) -> None:
    """After a commit: removes what was staged for this query or write, by whatever run, and what is forgotten.

    Raises OSError.
    """
    for folder in files.names(layout.sink_staged):
        is_forgotten = files.modified_ms(layout.sink_staged / folder) < now - FORGOTTEN_MS
        if is_forgotten or folder.startswith(f"{identity.key}-"):
            remove_staged(files, layout, folder)
