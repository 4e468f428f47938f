"""What recovery cuts off is kept: `penstock/quarantine/<time>/`, which RocketMQ never looks into."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from penstock.store.files import Files


class Quarantine:
    """One folder for each start that had to keep something aside, made when the first thing is kept."""

    def __init__(self, files: Files, root: Path, clock: Callable[[], int]) -> None:
        self._io = files
        self._root = root
        self._clock = clock
        self._folder: Path | None = None

    def keep(self, name: str, data: bytes) -> Path:
        """Writes `data` aside and syncs it, before the original may be changed."""
        path = self._own_folder() / name
        self._io.replace_bytes(path, data)
        return path

    def take(self, folder: Path) -> Path:
        """Moves a whole folder aside."""
        target = self._own_folder() / folder.name
        self._io.rename(folder, target)
        self._io.sync_folder(folder.parent)
        return target

    def holds_something(self, folder: Path) -> bool:
        return bool(self._io.names(folder))

    def _own_folder(self) -> Path:
        if self._folder is None:
            moment = datetime.fromtimestamp(self._clock() / 1000)
            name = f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}"
            while self._io.exists(self._root / name):
                name += "+"
            self._folder = self._root / name
            self._io.make_folder(self._folder)
        return self._folder
