"""The real disk, on which the N-th call fails."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from unsynced_files import UnsyncedFiles, UnsyncedMap

from penstock.store.file_map import FileMap


class FailingMap(UnsyncedMap):
    """A map whose syncs may fail."""

    files: FailingFiles

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.files.call("sync", self.path)
        super().sync(start, stop)


class FailingFiles(UnsyncedFiles):
    """Counts what the store asks of the disk; call number `fails_at` fails, and all later ones if `stays_broken`.

    Stores into a map are no calls: they cannot fail, because a file is allocated before it is mapped.
    """

    def __init__(self, fails_at: int, kind: int, *, stays_broken: bool = False) -> None:
        self._fails_at = fails_at
        self._errno = kind
        self._stays_broken = stays_broken
        self._gate = threading.Lock()
        self.calls: list[tuple[str, Path]] = []

    def call(self, what: str, path: Path) -> None:
        with self._gate:
            number = len(self.calls)
            self.calls.append((what, path))
        if number == self._fails_at or (self._stays_broken and number > self._fails_at):
            raise OSError(self._errno, os.strerror(self._errno), str(path))

    @property
    def failed(self) -> tuple[str, Path] | None:
        """The first call that failed."""
        return self.calls[self._fails_at] if len(self.calls) > self._fails_at else None

    @property
    def later(self) -> list[tuple[str, Path]]:
        """What was called after it."""
        return self.calls[self._fails_at + 1 :]

    def names(self, folder: Path) -> list[str]:
        self.call("list", folder)
        return super().names(folder)

    def size(self, path: Path) -> int:
        self.call("size", path)
        return super().size(path)

    def read_bytes(self, path: Path) -> bytes:
        self.call("read", path)
        return super().read_bytes(path)

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        self.call("usage", folder)
        return super().disk_usage(folder)

    def _open(self, path: Path, flags: int) -> int:
        self.call("open", path)
        return super()._open(path, flags)

    def _allocate(self, descriptor: int, size: int) -> None:
        self.call("allocate", Path(f"/proc/self/fd/{descriptor}").readlink())
        super()._allocate(descriptor, size)

    def _name(self, descriptor: int, path: Path) -> None:
        self.call("name", path)
        super()._name(descriptor, path)

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        try:
            self.call("map", path)
        except OSError:
            os.close(descriptor)
            raise
        plain = super()._map(path, descriptor, size)
        made = FailingMap(path, plain.memory, descriptor)
        made.files = self
        return made

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        self.call("write", path)
        super()._write_synced(path, data)

    def _link(self, source: Path, target: Path) -> None:
        self.call("link", target)
        super()._link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self.call("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.call("unlink", path)
        super().unlink(path)

    def _make_one_folder(self, folder: Path) -> None:
        self.call("make folder", folder)
        super()._make_one_folder(folder)

    def sync_folder(self, folder: Path) -> None:
        self.call("sync folder", folder)
        super().sync_folder(folder)
