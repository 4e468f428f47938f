"""Zeros in place of a log file that was lost.

A log is found by position: every file from its first to its last must be there. Where one is missing in between, a file
of zeros that takes no room on disk stands in for it, and its whole range counts as damage, until a repair covers it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from penstock.store.file_map import FileMap
from penstock.store.files import Files
from penstock.store.mapped_file import MappedFile

MOST_IN_A_ROW = 8
"""If more files than this are missing one after the other, somebody should look before anything is made."""


class ZeroMap(FileMap):
    """Zeros that are not on disk (yet), and take no memory."""

    def __init__(self, path: Path, size: int) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        super().__init__(path, mmap.mmap(-1, size, flags=private, prot=mmap.PROT_READ), -1)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        return iter(())


def stand_in(path: Path, offset: int, size: int) -> MappedFile:
    """What a file reads like that is not there."""
    return MappedFile(ZeroMap(path, size), offset, wrote=size)


def is_stand_in(file: MappedFile) -> bool:
    return isinstance(file.map, ZeroMap)


def put_on_disk(files: Files, file: MappedFile) -> None:
    """Makes the file of zeros. A view, which makes none, goes on with what it has. Raises StoreFailed."""
    if files.read_only:
        return
    files.create_sparse(file.path, file.size)
    before, file.map = file.map, files.open_map(file.path)
    before.close()
