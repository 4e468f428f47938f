"""The real disk without waiting for it: for tests that start hundreds of stores and lose no power."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.store.file_map import FileMap
from penstock.store.files import Files


class UnsyncedMap(FileMap):
    """A map that is left to the kernel."""

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass


class UnsyncedFiles(Files):
    """Does everything but sync, and is half full, whatever else lies on the real disk."""

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        return 50, 50

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        return UnsyncedMap(path, super()._map(path, descriptor, size).memory, descriptor)

    def sync_folder(self, folder: Path) -> None:
        pass

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        descriptor = self._open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
