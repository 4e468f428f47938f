"""Covers damaged ranges of the log with valid records, so that every reader, RocketMQ's too, walks past them.

In the middle of a file a range is covered exactly, by one placeholder or, beyond the largest message, by several. A
range that reaches the end of its file gets one placeholder and behind it the filler that a file ends with, or only the
filler where there is no room for both. The bytes are saved and synced first. A range that was covered halfway when the
process was killed is damage again, only smaller; covering it again ends the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.hosts import IPV4_HOST_SIZE, encode_host
from penstock.format.placeholder import MIN_PLACEHOLDER_SIZE, placeholder_text, write_placeholder
from penstock.store.disk_errors import disk_refused
from penstock.store.files import Files
from penstock.store.mapped_file import MappedFile
from penstock.store.quarantine import Quarantine
from penstock.store.repair.report import Change, RepairedRange, within
from penstock.store.repair.survey import Found, Hidden
from penstock.store.repair.times import OddTime, set_time
from penstock.store.settings import Settings

_AT_A_FILES_END = 1024
"""As long as the text needs, and more."""
_LEAST_MOST = 4096
_SAVED_AT_ONCE = 64 << 20
_PATHS_SAID = 8


class Piece(NamedTuple):
    """What is to be written somewhere: a placeholder, or the filler of a file."""

    position: int
    size: int
    is_filler: bool = False


def plan(position: int, size: int, file_size: int, most: int) -> list[Piece]:
    """The pieces that cover a range of a file exactly; none if that cannot be done.

    Positions count from the file's start; `most` is the size of the largest record.
    """
    left, most = size, max(most, _LEAST_MOST)
    if position + size == file_size:
        if size < MIN_PLACEHOLDER_SIZE + BLANK_HEADER_SIZE:
            return [Piece(position, size, True)] if size >= BLANK_HEADER_SIZE else []
        first = min(size - BLANK_HEADER_SIZE, _AT_A_FILES_END)
        return [Piece(position, first), Piece(position + first, size - first, True)]
    pieces: list[Piece] = []
    while left >= MIN_PLACEHOLDER_SIZE:
        piece = left if left <= most else min(most, left - MIN_PLACEHOLDER_SIZE)
        pieces.append(Piece(position, piece))
        position, left = position + piece, left - piece
    return pieces if not left else []


class Cover:
    """Saves and covers one range after the other."""

    def __init__(self, files: Files, root: Path, settings: Settings, quarantine: Quarantine, now: int) -> None:
        self._io = files
        self._root = root
        self._quarantine = quarantine
        self._most = settings.max_message_size
        self._when = datetime.fromtimestamp(now / 1000).astimezone().isoformat(timespec="seconds")
        self._now = now
        host = encode_host(settings.store_host)
        self._host = host if len(host) == IPV4_HOST_SIZE else encode_host(f"127.0.0.1:{settings.listen_port}")

    def room(self, file: MappedFile, found: Found) -> int:
        """How many bytes will be kept aside for a range."""
        return _written(file, found.physical_offset - file.from_offset, found.size)

    def cover(self, file: MappedFile, found: Found) -> RepairedRange:
        """Raises StoreFailed, and then the range can be covered again."""
        done = RepairedRange(within(self._root, file.path), found.physical_offset, found.size, found.reason)
        position = found.physical_offset - file.from_offset
        pieces = plan(position, found.size, file.size, self._most)
        if not pieces:
            done.not_repaired = (
                f"{found.size} bytes are too few for a record, and a valid one follows them; nothing was changed here"
            )
            return done
        done.saved = self._save(file, found.physical_offset, found.size)
        text = placeholder_text(found.physical_offset, found.size, found.reason, self._when, done.saved[:_PATHS_SAID])
        with self._changing(file):
            self._write(file, pieces, found.timestamp or self._now, text)
        return done

    def _write(self, file: MappedFile, pieces: list[Piece], timestamp: int, text: str) -> None:
        view = file.map.view
        for piece in pieces:
            file.map.allocate(piece.position, piece.position + (BLANK_HEADER_SIZE if piece.is_filler else piece.size))
        for piece in reversed(pieces):
            if piece.is_filler:
                kernels.write_blank(view, piece.position, piece.size)
            else:
                offset = file.from_offset + piece.position
                write_placeholder(view, piece.position, offset, piece.size, timestamp, self._host, text)

    # -- other changes of a log file -------------------------------------------------------------------------

    def clear(self, file: MappedFile, hidden: Hidden) -> Change:
        """Saves what lies hidden in a filler, and zeroes it. Raises StoreFailed."""
        saved = self._save(file, hidden.physical_offset, hidden.size)
        with self._changing(file):
            file.zero(hidden.physical_offset - file.from_offset)
        what = f"records lay hidden in its filler from {hidden.physical_offset} on, cut off once; they were zeroed"
        return Change(within(self._root, file.path), what, ", ".join(saved))

    def correct(self, file: MappedFile, odd: OddTime) -> Change:
        """Saves a record whose store time cannot be, and sets the time. Raises StoreFailed."""
        saved = self._save(file, odd.physical_offset, odd.size)
        with self._changing(file):
            set_time(file, odd)
        what = f"the record at {odd.physical_offset} said it was stored at {odd.said} ms; now it says {odd.right}"
        return Change(within(self._root, file.path), what, ", ".join(saved))

    @contextlib.contextmanager
    def _changing(self, file: MappedFile) -> Iterator[None]:
        """Syncs what is changed, and leaves the file's time as it is: RocketMQ deletes by it."""
        modified = self._io.modified_ms(file.path)
        try:
            yield
            file.map.sync()
        except OSError as error:
            raise disk_refused("cannot write", file.path, file.size, error) from error
        self._io.set_modified_ms(file.path, modified)

    # -- saving ----------------------------------------------------------------------------------------------

    def _save(self, file: MappedFile, offset: int, size: int) -> list[str]:
        begin = offset - file.from_offset
        end = begin + _written(file, begin, size)
        saved = []
        for at in range(begin, end, _SAVED_AT_ONCE):
            with file.map.view[at : min(at + _SAVED_AT_ONCE, end)] as piece:
                kept = self._quarantine.keep(f"commitlog-{file.from_offset + at:020d}", piece)
            saved.append(within(self._root, kept))
        return saved


def _written(file: MappedFile, begin: int, size: int) -> int:
    """How many bytes of a range there are up to the last one that is not zero."""
    for end in range(begin + size, begin, -_SAVED_AT_ONCE):
        start = max(end - _SAVED_AT_ONCE, begin)
        written = len(file.map.view[start:end].tobytes().rstrip(b"\0"))
        if written:
            return start + written - begin
    return 0
