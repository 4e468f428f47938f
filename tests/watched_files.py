"""The real disk with somebody watching: counts syncs, and lets a test delay or refuse them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.store.file_map import FileMap
from penstock.store.files import Files

WAIT_SECONDS = 60
"""How long a test waits for an event that must come; only a failing test waits so long."""


class WatchedMap(FileMap):
    """A map whose syncs are reported."""

    watcher: WatchedFiles

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.watcher.on_sync(self.path)
        super().sync(start, stop)
        self.watcher.synced(self.path)


class WatchedFiles(Files):
    """`on_sync` is called with the path before each sync of a map, and may wait or raise."""

    def __init__(self, on_sync: Callable[[Path], None] = lambda path: None) -> None:
        self.on_sync = on_sync
        self.syncs: Counter[str] = Counter()
        """How many syncs were completed, by the name of the file's folder."""
        self._changed = threading.Condition()

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        plain = super()._map(path, descriptor, size)
        watched = WatchedMap(path, plain.memory, descriptor)
        watched.watcher = self
        return watched

    def synced(self, path: Path) -> None:
        with self._changed:
            self.syncs[path.parent.name] += 1
            self._changed.notify_all()

    def wait_for_syncs(self, folder: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.syncs[folder] >= count, WAIT_SECONDS), f"{folder}: no sync"


class Gate:
    """An `on_sync` that lets everything pass until it is shut; then syncs of one folder wait in it."""

    def __init__(self, folder: str = "commitlog") -> None:
        self._folder = folder
        self._shut = threading.Event()
        self._open = threading.Event()
        self.reached = threading.Event()
        """Set once a sync waits here."""

    def __call__(self, path: Path) -> None:
        if self._shut.is_set() and path.parent.name == self._folder:
            self.reached.set()
            assert self._open.wait(WAIT_SECONDS), "the gate was never opened"

    def shut(self) -> None:
        self._shut.set()

    def open(self) -> None:
        self._shut.clear()
        self._open.set()

    def wait_until_reached(self) -> None:
        assert self.reached.wait(WAIT_SECONDS), "no sync came to the gate"
