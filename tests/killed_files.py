"""A process that is killed at the N-th call to the disk: that call and all later ones never happen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from unsynced_files import UnsyncedFiles, UnsyncedMap

from penstock.store.file_map import FileMap

_KILLED = 137


class _CountedMap(UnsyncedMap):
    files: CountedFiles

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.files.call(f"sync {self.path.name}")


class CountedFiles(UnsyncedFiles):
    """The real disk; the process ends before call number `last`. What it stored into maps stays, as after a kill."""

    def __init__(self, last: int | None = None) -> None:
        self._last = last
        self.calls: list[str] = []

    def call(self, what: str) -> None:
        if len(self.calls) == self._last:
            os._exit(_KILLED)
        self.calls.append(what)

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        made = _CountedMap(path, super()._map(path, descriptor, size).memory, descriptor)
        made.files = self
        return made

    def create_map(self, path: Path, size: int) -> FileMap:
        self.call(f"create {path.name}")
        return super().create_map(path, size)

    def create_sparse(self, path: Path, size: int, *, synced: bool = True) -> None:
        self.call(f"create {path.name}")
        super().create_sparse(path, size, synced=synced)

    def write_unsynced(self, path: Path, data: bytes | memoryview) -> None:
        self.call(f"write {path.name}")
        super().write_unsynced(path, data)

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        self.call(f"write {path.name}")
        super()._write_synced(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.call(f"rename {source.name} to {target}")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.call(f"unlink {path.name}")
        super().unlink(path)

    def _make_one_folder(self, folder: Path) -> None:
        self.call(f"make folder {folder.name}")
        super()._make_one_folder(folder)

    def remove_folder(self, folder: Path) -> None:
        self.call(f"remove folder {folder.name}")
        super().remove_folder(folder)

    def set_modified_ms(self, path: Path, moment: int) -> None:
        self.call(f"set time of {path.name}")
        super().set_modified_ms(path, moment)


def run_killed(act: Callable[[CountedFiles], object], last: int) -> None:
    """Does something in a process of its own, which ends before its call number `last` to the disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads, of which none of ours is left
        child = os.fork()
    if child == 0:
        try:
            act(CountedFiles(last))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == _KILLED, "it ended before it was killed"
