"""Penstock's own small files, as JSON with a checksum, and the atomic swap of rebuilt folders.

    {"crc32": 305419896, "content": {...}}

A file counts as garbage, and its reader continues without it, if the checksum does not match, a number is no integer
of 64 bits, a field has another type or range than its `kind` says, or the file has more than MAX_BYTES. A checksum does
not prove who wrote a file, so readers check whether positions lie in the log before they use them. Files are replaced
atomically. The text is ASCII; names that are not UTF-8 survive as escaped surrogates.

`swap` replaces queue and index folders by rebuilt folders. The new folders must lie complete and synced under
`penstock/staging/`. `swap` first writes the list of moves, the swap note, to `penstock/swap.json`. Then it renames old
folders into the quarantine and new folders to their places, and deletes the note. After a crash, `finish_swap` resumes
the swap before the store reads anything else; each move is one rename, so it sees which moves are done. Only the
store's owner calls it on the disk; a read-only view makes the moves in its overlay.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from penstock.format.msgspec_warm_up import prepared
from penstock.format.topics import is_readable_topic
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout

T = TypeVar("T")
MAX_BYTES: Final = 256 << 20
MAX_OFFSET: Final = 2**62
Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
"""A physical offset, a number of bytes or messages, or a time in ms, in a note."""
NaturalOrNone = Annotated[int, msgspec.Meta(ge=-1, le=MAX_OFFSET)]
"""The same, where -1 stands for none."""


def read_checksummed(files: Files, path: Path, kind: type[T]) -> T | None:
    """Returns the content as a `kind`; None if the file is missing or garbage (`files.exists` distinguishes them)."""
    try:
        if files.size(path) > MAX_BYTES:
            return None
        document = json.loads(files.read_bytes(path), parse_int=_whole_number, parse_constant=_whole_number)
        if document["crc32"] != _checksum(document["content"]):
            return None
        return msgspec.convert(document["content"], prepared(kind))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError):
        return None


def write_checksummed(files: Files, path: Path, content: object) -> None:
    """Replaces the file atomically. Raises StoreFailed."""
    files.replace_bytes(path, checksummed(content))


def checksummed(content: object) -> bytes:
    """Returns the bytes of a checksummed file with this content."""
    plain = msgspec.to_builtins(content)
    return json.dumps({"crc32": _checksum(plain), "content": plain}).encode()


def _whole_number(text: str) -> int:
    """Raises ValueError for a number of more than 64 bits, and for the names that Python's JSON has for no number."""
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


def _checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content).encode())


_PLACE = re.compile(r"index|consumequeue/([^/]+)/[0-9]+")
_KEPT = re.compile(r"penstock/quarantine(/(?!\.\.?(/|$))[^/]+)+")


class Move(msgspec.Struct, frozen=True):
    """A folder to replace or remove: its path, whether a new folder is staged, and the old folder's quarantine path."""

    place: str
    is_new: bool
    kept: str

    @property
    def is_valid(self) -> bool:
        """Whether it moves a queue or the index, into the quarantine. Checked because the note on disk may be wrong."""
        place = _PLACE.fullmatch(self.place)
        topic = None if place is None else place[1]
        return place is not None and (topic is None or is_readable_topic(topic)) and bool(_KEPT.fullmatch(self.kept))


class _Document(msgspec.Struct):
    moves: list[Move]


def swap(files: Files, layout: Layout, moves: list[Move]) -> None:
    """Makes all moves. If it raises OSError or StoreFailed, `finish_swap` can resume the swap."""
    if moves:
        write_checksummed(files, layout.swap, _Document(moves))
        finish_swap(files, layout)


def finish_swap(files: Files, layout: Layout) -> int:
    """Resumes an interrupted swap. Returns the number of its moves; 0 if there is no swap note."""
    note = read_checksummed(files, layout.swap, _Document)
    moves = [] if note is None else [move for move in note.moves if move.is_valid]
    _make_all(files, layout, [move for move in moves if not _is_made(files, layout, move)])
    if note is not None:
        files.unlink(layout.swap)
        files.sync_folder(layout.swap.parent)
    return len(moves)


def _is_made(files: Files, layout: Layout, move: Move) -> bool:
    return move.is_new and not files.is_folder(layout.staging / move.place)


def _make_all(files: Files, layout: Layout, moves: list[Move]) -> None:
    """Moves all old folders out, then all new folders in. So a common parent folder is synced only twice."""
    touched: list[Path] = []
    for move in moves:
        place, kept = layout.root / move.place, layout.root / move.kept
        if files.is_folder(place) and not files.exists(kept):
            files.make_folder(kept.parent)
            files.rename(place, kept)
            touched += kept.parent, place.parent
    _sync_each(files, touched)
    touched = []
    for move in moves:
        if move.is_new:
            place, new = layout.root / move.place, layout.staging / move.place
            files.make_folder(place.parent)
            files.rename(new, place)
            touched += place.parent, new.parent
    _sync_each(files, touched)


def _sync_each(files: Files, folders: list[Path]) -> None:
    for folder in dict.fromkeys(folders):
        files.sync_folder(folder)


def clear_staging(files: Files, layout: Layout) -> None:
    """Removes the staged folders that an earlier rebuild left. No swap may be pending."""
    remove_all(files, layout.staging)


def remove_all(files: Files, path: Path) -> None:
    """Removes a file, or a folder with its content; does nothing if the path does not exist."""
    if files.is_folder(path):
        for name in files.names(path):
            remove_all(files, path / name)
        files.remove_folder(path)
    elif files.exists(path):
        files.unlink(path)
