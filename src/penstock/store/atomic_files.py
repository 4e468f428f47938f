"""Small files of Penstock's own: JSON with a checksum, replaced atomically.

    {"crc32": 305419896, "content": {...}}

What they hold is believed blindly, so a flipped digit must not pass: a file whose checksum does not fit is garbage, and
whoever reads it does without. The text is ASCII; names that are not UTF-8 survive as escaped surrogates.


Puts files that were built anew in place of the old ones, so that a crash at any moment leaves the one or the other.

What is new lies complete and synced under `penstock/staging/`, at the path that it will have in the store; then the
moves are written down in `penstock/swap.json`, the old files go to the quarantine, the new ones to their places, and
the note goes. Whoever finds the note (a start, a repair) makes the moves that are still to be made, before it reads
anything: each is one rename, so what is done shows. Only the owner of the store calls this; a view makes the moves for
itself.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.format.topics import is_readable_topic
from penstock.store.io import Files
from penstock.store.layout import Layout

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


_PLACE = re.compile(r"index|consumequeue/([^/]+)/[0-9]+")
_KEPT = re.compile(r"penstock/quarantine(/(?!\.\.?(/|$))[^/]+)+")


class Move(msgspec.Struct, frozen=True):
    """One folder: where it belongs in the store, whether a new one is staged, and where the old one is to be kept."""

    place: str
    is_new: bool
    kept: str

    @property
    def is_sound(self) -> bool:
        """Whether it moves nothing but queues and index: a note is a file, and files can be wrong."""
        place = _PLACE.fullmatch(self.place)
        topic = None if place is None else place[1]
        return place is not None and (topic is None or is_readable_topic(topic)) and bool(_KEPT.fullmatch(self.kept))


class _Document(msgspec.Struct):
    moves: list[Move]


def swap(files: Files, layout: Layout, moves: list[Move]) -> None:
    """Makes all moves. If it raises OSError or StoreFailed, `finish_swap` goes on."""
    if moves:
        write_sealed(files, layout.swap, _Document(moves))
        finish_swap(files, layout)


def finish_swap(files: Files, layout: Layout) -> int:
    """Makes the moves of a swap that was begun; returns how many there were. Does nothing without a note."""
    found = read_sealed(files, layout.swap, _Document)
    moves = [] if found is None else [move for move in found.moves if move.is_sound]
    _make_all(files, layout, [move for move in moves if not _is_made(files, layout, move)])
    if found is not None:
        files.unlink(layout.swap)
        files.sync_folder(layout.swap.parent)
    return len(moves)


def _is_made(files: Files, layout: Layout, move: Move) -> bool:
    return move.is_new and not files.is_folder(layout.staging / move.place)


def _make_all(files: Files, layout: Layout, moves: list[Move]) -> None:
    """First all old folders go, then all new ones come: a folder above many of them is synced once for each half."""
    left: list[Path] = []
    for move in moves:
        place, kept = layout.root / move.place, layout.root / move.kept
        if files.is_folder(place) and not files.exists(kept):
            files.make_folder(kept.parent)
            files.rename(place, kept)
            left += kept.parent, place.parent
    _sync_each(files, left)
    reached: list[Path] = []
    for move in moves:
        if move.is_new:
            place, new = layout.root / move.place, layout.staging / move.place
            files.make_folder(place.parent)
            files.rename(new, place)
            reached += place.parent, new.parent
    _sync_each(files, reached)


def _sync_each(files: Files, folders: list[Path]) -> None:
    for folder in dict.fromkeys(folders):
        files.sync_folder(folder)


def clear_staging(files: Files, layout: Layout) -> None:
    """Removes what an earlier build left behind; only what no note speaks of is there."""
    remove_all(files, layout.staging)


def remove_all(files: Files, path: Path) -> None:
    """Removes a file, or a folder with all that is in it; nothing if there is nothing."""
    if files.is_folder(path):
        for name in files.names(path):
            remove_all(files, path / name)
        files.remove_folder(path)
    elif files.exists(path):
        files.unlink(path)
