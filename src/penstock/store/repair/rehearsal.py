"""A store's folder for a dry run: every change stays in memory, and outlives the closing of the file it was made in.

A repair runs on it exactly as it would on the disk, several steps one after the other, each opening anew what the one
before it closed. What is changed takes memory, and so do the queues and the index that are built on trial.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from penstock.store.file_map import FileMap
from penstock.store.overlay_files import MemoryMap, OverlayFiles, copy_on_write


class _LastingMap(MemoryMap):
    """A private copy that stays when it is closed: whoever opens the file next gets it back."""

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        if start < len(self):
            yield start, len(self)

    def close(self) -> None:
        pass


class RehearsalFiles(OverlayFiles):
    """An overlay that remembers what was stored into maps."""

    def create_map(self, path: Path, size: int) -> FileMap:
        self.make_folder(path.parent)
        made = self._made[path] = _LastingMap(path, mmap.mmap(-1, size))
        return made

    def open_map(self, path: Path) -> FileMap:
        made = self._look(path)
        if isinstance(made, Path):
            made = self._made[path] = _LastingMap(path, copy_on_write(made), made)
            return made
        return super().open_map(path)
