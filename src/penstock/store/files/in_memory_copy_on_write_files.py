"""Copy-on-write views of a store's folder: every change stays in memory, no byte on disk changes.

`OverlayFiles` serves read-only views, which run the same code as a start, recovery included. `RehearsalFiles` serves
the dry run of a repair, which has several steps: changes to a mapped file survive when the file is closed. Changed
pages, new queues and a new index take memory. Only one thread at a time may change an overlay.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadStore
from penstock.store.files.file_io import FileMap, Files, written_ranges
from penstock.store.files.lock import StoreLock


class MemoryMap(FileMap):
    """A private map of a file. Bytes stored into it never reach the disk."""

    def __init__(self, path: Path, memory: mmap.mmap, origin: Path | None = None) -> None:
        super().__init__(path, memory, -1)
        self._origin = origin or path
        """The file on disk whose bytes the map shows."""

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


class _DiskMap(MemoryMap):
    """A private map of a file on disk, which takes no memory for what was read and let go."""

    def let_go(self, start: int, stop: int) -> None:
        begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            self.memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class OverlayFiles(Files):
    """The disk, with every change kept in memory. Nothing on the disk is written, created, renamed or removed."""

    read_only = True

    def __init__(self) -> None:
        self._changes: dict[Path, bytes | MemoryMap | Path | None] = {}
        """By changed path: its content, its map, or the file on disk that was moved there; None if it was removed."""
        self._folders: set[Path] = set()

    def exists(self, path: Path) -> bool:
        if path in self._changes:
            return self._changes[path] is not None
        return path in self._folders or super().exists(path)

    def is_folder(self, path: Path) -> bool:
        return path in self._folders or (path not in self._changes and super().is_folder(path))

    def names(self, folder: Path) -> list[str]:
        names = {name for name in super().names(folder) if self._changes.get(folder / name, b"") is not None}
        names.update(path.name for path, what in self._changes.items() if path.parent == folder and what is not None)
        names.update(path.name for path in self._folders if path.parent == folder)
        return sorted(names)

    def _resolve(self, path: Path) -> bytes | MemoryMap | Path:
        """Returns the changed content or map of a path, else the path of its file on disk. Raises FileNotFoundError."""
        content = self._changes.get(path, path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return content

    def size(self, path: Path) -> int:
        content = self._resolve(path)
        return super().size(content) if isinstance(content, Path) else len(content)

    def modified_ms(self, path: Path) -> int:
        content = self._resolve(path)
        return super().modified_ms(content) if isinstance(content, Path) else 0

    def set_modified_ms(self, path: Path, moment: int) -> None:
        pass

    def read_bytes(self, path: Path) -> bytes:
        content = self._resolve(path)
        if isinstance(content, Path):
            return super().read_bytes(content)
        return content if isinstance(content, bytes) else bytes(content.view)

    def read_part(self, path: Path, start: int, size: int) -> bytes:
        content = self._resolve(path)
        if isinstance(content, Path):
            return super().read_part(content, start, size)
        return bytes((content if isinstance(content, bytes) else content.view)[start : start + size])

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        self.make_folder(path.parent)
        created = self._changes[path] = MemoryMap(path, mmap.mmap(-1, size))
        return created

    def create_sparse(self, path: Path, size: int, *, synced: bool = True) -> None:
        self.create_map(path, size)

    def open_map(self, path: Path) -> FileMap:
        content = self._resolve(path)
        if isinstance(content, FileMap):
            return content
        if isinstance(content, bytes):
            copy = self.create_map(path, len(content))
            copy.view[:] = content
            return copy
        return _DiskMap(path, copy_on_write(content), content)

    def replace_bytes(self, path: Path, data: bytes | memoryview, keep_backup: bool = False) -> None:
        self.make_folder(path.parent)
        self._changes[path] = bytes(data)

    def write_unsynced(self, path: Path, data: bytes | memoryview) -> None:
        self.replace_bytes(path, data)

    def rename(self, source: Path, target: Path) -> None:
        if self.is_folder(source):
            self.make_folder(target)
            for name in self.names(source):
                self.rename(source / name, target / name)
        else:
            moved = self._resolve(source)
            if isinstance(moved, MemoryMap):
                moved.path = target
            self._changes[target] = moved
        self.unlink(source)

    def unlink(self, path: Path) -> None:
        for name in self.names(path) if self.is_folder(path) else ():
            self.unlink(path / name)
        self._folders.discard(path)
        self._changes[path] = None

    def make_folder(self, folder: Path) -> None:
        if not self.is_folder(folder):
            self.make_folder(folder.parent)
            self._folders.add(folder)
            self._changes.pop(folder, None)

    def remove_folder(self, folder: Path) -> None:
        if self.is_folder(folder) and not self.names(folder):
            self.unlink(folder)

    def sync_folder(self, folder: Path) -> None:
        pass

    def lock(self, path: Path) -> StoreLock:
        raise AssertionError("a read-only view never locks the store")


def copy_on_write(path: Path) -> mmap.mmap:
    """Returns a private map of a file on disk. Raises BadStore if the file is empty."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise BadStore("the file is empty; restore it from a copy, or run `penstock store repair`", path=path)
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)


class _LastingMap(MemoryMap):
    """A private map that survives `close`: the next `open_map` of the file returns the same map."""

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        if start < len(self):
            yield start, len(self)

    def close(self) -> None:
        pass


class RehearsalFiles(OverlayFiles):
    """An overlay that keeps the changes to a map after the map is closed."""

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        self.make_folder(path.parent)
        created = self._changes[path] = _LastingMap(path, mmap.mmap(-1, size))
        return created

    def open_map(self, path: Path) -> FileMap:
        content = self._resolve(path)
        if isinstance(content, Path):
            created = self._changes[path] = _LastingMap(path, copy_on_write(content), content)
            return created
        return super().open_map(path)
