"""How far a long walk over the log has come: `penstock/walked.json`.

A start that is killed before it is done, as by an impatient health check, would walk the same files again at the next
one, and might never get further. So every two seconds or so a walk notes up to which file it has come and what it
found; the next start goes on there. The note goes when a start is done. It says nothing of the file that was being
walked, which is walked again, nor of what lies behind it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.store.files import Files
from penstock.store.log_walk import Walked
from penstock.store.mapped_file import MappedFile
from penstock.store.sealed_json import read_sealed, write_sealed

EVERY_SECONDS = 2.0


class _Document(msgspec.Struct):
    begin: int
    check_crc: bool
    walked: Walked


class WalkNote:
    """The note of one start. A view only reads it."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self._last = time.monotonic()

    def find(self, begin: int, files: Sequence[MappedFile], check_crc: bool) -> Walked | None:
        """What an earlier walk found that began at `begin` or before and came to the start of one of the files."""
        found = read_sealed(self._io, self._path, _Document)
        if found is None or found.check_crc != check_crc or found.begin > begin:
            return None
        starts = {file.from_offset for file in files[1:]}
        return found.walked if found.walked.reached in starts else None

    def write(self, begin: int, walked: Walked, check_crc: bool) -> None:
        """Notes it if the last time is long enough ago. Raises StoreFailed."""
        if self._io.read_only or walked.unsure or time.monotonic() - self._last < EVERY_SECONDS:
            return
        write_sealed(self._io, self._path, _Document(begin, check_crc, walked))
        self._last = time.monotonic()

    def remove(self) -> None:
        """The walk is done, and what came of it is on disk."""
        if self._io.exists(self._path):
            self._io.unlink(self._path)
