"""The file `checkpoint`: up to which store time the log, the queues and the index are on disk.

Each field has one owner, who sets it after its own sync: the flusher the log's, the keeper of derived files the
queues' and the index's. `write` brings the page to disk. A missing or misshapen file counts as all zero, which only
makes recovery start earlier.
"""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.store.io import FileMap, Files


class CheckpointFile:
    """The current values, and the page they are written to."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self._gate = threading.Lock()
        self._map: FileMap | None = None
        self.value = Checkpoint()

    def load(self) -> None:
        """Reads what is there. Raises BadStore or OSError."""
        if self._io.is_folder(self._path):
            raise BadStore("this must be a file, and it is a folder; move it elsewhere", path=self._path)
        if self._io.exists(self._path) and self._io.size(self._path) == CHECKPOINT_SIZE:
            self.value = Checkpoint.unpack(self._io.read_bytes(self._path))

    def set_log(self, timestamp: int) -> None:
        self._set(physic=timestamp)

    def set_queues(self, timestamp: int) -> None:
        self._set(logics=timestamp)

    def set_index(self, timestamp: int) -> None:
        self._set(index=timestamp)

    def restart(self, timestamp: int, *, log_only: bool = False) -> None:
        """After recovery, which synced everything: all three are where the log ends, also if they were ahead.

        With `log_only` it left queues and index alone: those stay where they were, if that is not ahead of the log.
        """
        with self._gate:
            queues = min(self.value.logics, timestamp) if log_only else timestamp
            self.value = Checkpoint(timestamp, queues, min(self.value.index, timestamp), self.value.rest)

    def _set(self, *, physic: int = 0, logics: int = 0, index: int = 0) -> None:
        with self._gate:
            now = self.value
            self.value = Checkpoint(max(physic, now.physic), max(logics, now.logics), max(index, now.index), now.rest)

    def write(self) -> None:
        """Raises OSError or StoreFailed when the disk refuses."""
        with self._gate:
            if self._map is None:
                if self._io.exists(self._path) and self._io.size(self._path) != CHECKPOINT_SIZE:
                    self._io.unlink(self._path)
                exists = self._io.exists(self._path)
                self._map = (
                    self._io.open_map(self._path) if exists else self._io.create_map(self._path, CHECKPOINT_SIZE)
                )
            self._map.view[:] = self.value.pack()
            self._map.sync()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
