"""A store's folder as it is on disk, with every change kept in memory.

A read-only view runs the very code that a start runs, recovery included, on these files, and leaves each byte on disk
as it was.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadStore
from penstock.store.files import FileMap, Files, StoreLock, written_ranges


class MemoryMap(FileMap):
    """A private copy: what is stored into it never reaches the disk."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        super().__init__(path, memory, -1)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            yield start, len(self)
            return
        try:
            yield from written_ranges(descriptor, start, len(self))
        finally:
            os.close(descriptor)

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self.view.release()
            self.memory.close()


class OverlayFiles(Files):
    """The disk as it is, with every change kept in memory: nothing is written, created, renamed or removed."""

    read_only = True

    def __init__(self) -> None:
        self._made: dict[Path, bytes | MemoryMap | None] = {}
        """What this view changed: content, a map, or None for a name that is gone."""
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

    def _change(self, path: Path) -> bytes | MemoryMap | None:
        """What this view made of a file, None if nothing. Raises FileNotFoundError if it removed it."""
        made = self._made.get(path, b"")
        if made is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return made if path in self._made else None

    def size(self, path: Path) -> int:
        made = self._change(path)
        return super().size(path) if made is None else len(made)

    def modified_ms(self, path: Path) -> int:
        return super().modified_ms(path) if self._change(path) is None else 0

    def read_bytes(self, path: Path) -> bytes:
        made = self._change(path)
        if made is None:
            return super().read_bytes(path)
        return made if isinstance(made, bytes) else bytes(made.view)

    def create_map(self, path: Path, size: int) -> FileMap:
        made = MemoryMap(path, mmap.mmap(-1, size))
        self._made[path] = made
        return made

    def open_map(self, path: Path) -> FileMap:
        made = self._change(path)
        if isinstance(made, FileMap):
            return made
        if made is not None:
            copy = self.create_map(path, len(made))
            copy.view[:] = made
            return copy
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0:
                raise BadStore("the file is empty", path=path)
            return MemoryMap(path, mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)

    def replace_bytes(self, path: Path, data: bytes, keep_backup: bool = False) -> None:
        self._made[path] = data

    def rename(self, source: Path, target: Path) -> None:
        """A folder is only taken away: a view has no use for what was moved aside."""
        if not self.is_folder(source):
            self._made[target] = self.read_bytes(source)
        self.unlink(source)

    def unlink(self, path: Path) -> None:
        for name in self.names(path) if self.is_folder(path) else ():
            self.unlink(path / name)
        self._folders.discard(path)
        self._made[path] = None

    def make_folder(self, folder: Path) -> None:
        self._folders.add(folder)
        self._made.pop(folder, None)

    def remove_folder(self, folder: Path) -> None:
        self._folders.discard(folder)

    def sync_folder(self, folder: Path) -> None:
        pass

    def lock(self, path: Path) -> StoreLock:
        raise AssertionError("a read-only view never takes the lock")
