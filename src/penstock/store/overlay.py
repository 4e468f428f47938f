"""A store's folder as it is on disk, with every change kept in memory.

A read-only view runs the very code that a start runs, recovery included, on these files, and leaves each byte on disk
as it was.


A store's folder for a dry run: every change stays in memory, and outlives the closing of the file it was made in.

A repair runs on it exactly as it would on the disk, several steps one after the other, each opening anew what the one
before it closed. What is changed takes memory, and so do the queues and the index that are built on trial.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadStore
from penstock.store.io import FileMap, Files, written_ranges
from penstock.store.lock import StoreLock


class MemoryMap(FileMap):
    """A private copy: what is stored into it never reaches the disk."""

    def __init__(self, path: Path, memory: mmap.mmap, origin: Path | None = None) -> None:
        super().__init__(path, memory, -1)
        self._origin = origin or path
        """The file on disk that it is a copy of."""

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass

    def allocate(self, start: int, stop: int) -> None:
        pass

    def write(self, position: int, data: bytearray | memoryview) -> None:
        self.view[position : position + len(data)] = data

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        try:
            descriptor = os.open(self._origin, os.O_RDONLY)
        except FileNotFoundError:
            yield start, len(self)
            return
        try:
            yield from written_ranges(descriptor, start, len(self))
        finally:
            os.close(descriptor)


class OverlayFiles(Files):
    """The disk as it is, with every change kept in memory: nothing is written, created, renamed or removed."""

    read_only = True

    def __init__(self) -> None:
        self._made: dict[Path, bytes | MemoryMap | Path | None] = {}
        """What this view changed: content, a map, the file on disk that was moved here; None: the name is gone."""
        self._folders: set[Path] = set()

    def exists(self, path: Path) -> bool:
        if path in self._made:
            return self._made[path] is not None
        return path in self._folders or super().exists(path)

    def is_folder(self, path: Path) -> bool:
        return path in self._folders or (path not in self._made and super().is_folder(path))

    def names(self, folder: Path) -> list[str]:
        found = {name for name in super().names(folder) if self._made.get(folder / name, b"") is not None}
        found.update(path.name for path, what in self._made.items() if path.parent == folder and what is not None)
        found.update(path.name for path in self._folders if path.parent == folder)
        return sorted(found)

    def _look(self, path: Path) -> bytes | MemoryMap | Path:
        """What a name stands for: what this view made, or a file on disk. Raises FileNotFoundError if it is gone."""
        made = self._made.get(path, path)
        if made is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return made

    def size(self, path: Path) -> int:
        made = self._look(path)
        return super().size(made) if isinstance(made, Path) else len(made)

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Which file on disk has a name now, None if none has. As long as it is mapped, no other gets its number."""
        try:
            facts = path.stat()
        except FileNotFoundError:
            return None
        return facts.st_dev, facts.st_ino

    def modified_ms(self, path: Path) -> int:
        made = self._look(path)
        return super().modified_ms(made) if isinstance(made, Path) else 0

    def set_modified_ms(self, path: Path, moment: int) -> None:
        pass

    def read_bytes(self, path: Path) -> bytes:
        made = self._look(path)
        if isinstance(made, Path):
            return super().read_bytes(made)
        return made if isinstance(made, bytes) else bytes(made.view)

    def create_map(self, path: Path, size: int) -> FileMap:
        self.make_folder(path.parent)
        made = self._made[path] = MemoryMap(path, mmap.mmap(-1, size))
        return made

    def create_sparse(self, path: Path, size: int, *, synced: bool = True) -> None:
        self.create_map(path, size)

    def open_map(self, path: Path) -> FileMap:
        made = self._look(path)
        if isinstance(made, FileMap):
            return made
        if isinstance(made, bytes):
            copy = self.create_map(path, len(made))
            copy.view[:] = made
            return copy
        return MemoryMap(path, copy_on_write(made), made)

    def replace_bytes(self, path: Path, data: bytes | memoryview, keep_backup: bool = False) -> None:
        self.make_folder(path.parent)
        self._made[path] = bytes(data)

    def write_unsynced(self, path: Path, data: bytes | memoryview) -> None:
        self.replace_bytes(path, data)

    def rename(self, source: Path, target: Path) -> None:
        if self.is_folder(source):
            self.make_folder(target)
            for name in self.names(source):
                self.rename(source / name, target / name)
        else:
            moved = self._look(source)
            if isinstance(moved, MemoryMap):
                moved.path = target
            self._made[target] = moved
        self.unlink(source)

    def unlink(self, path: Path) -> None:
        for name in self.names(path) if self.is_folder(path) else ():
            self.unlink(path / name)
        self._folders.discard(path)
        self._made[path] = None

    def make_folder(self, folder: Path) -> None:
        if not self.is_folder(folder):
            self.make_folder(folder.parent)
            self._folders.add(folder)
            self._made.pop(folder, None)

    def remove_folder(self, folder: Path) -> None:
        if self.is_folder(folder) and not self.names(folder):
            self.unlink(folder)

    def sync_folder(self, folder: Path) -> None:
        pass

    def lock(self, path: Path) -> StoreLock:
        raise AssertionError("a read-only view never takes the lock")


def copy_on_write(path: Path) -> mmap.mmap:
    """A file on disk; what is stored into the map stays there. Raises BadStore if the file is empty."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise BadStore("the file is empty; restore it from a copy, or run `penstock store repair`", path=path)
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)


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
