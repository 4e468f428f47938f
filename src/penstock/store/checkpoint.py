"""The file `checkpoint`: the store times up to which log, queues and index are on disk, and what consumers saw.

The thread that syncs the log sets the log's time. The thread that syncs queues and index sets their times. `write` puts
all three into the file and syncs it. A missing file, or one of a wrong size, counts as all zero: recovery then only
starts earlier in the log. Times are in ms. Thread-safe.
"""

from __future__ import annotations

import threading
from pathlib import Path

from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.store.files.file_io import FileMap, Files


class CheckpointFile:
    """The current values, and the mapped file they are written to."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self._gate = threading.Lock()
        self._map: FileMap | None = None
        self.value = self.found = Checkpoint()
        """What is written next; and what `load` has found."""

    def load(self) -> None:
        """Reads the file. Raises BadStore or OSError."""
        if self._io.is_folder(self._path):
            raise BadStore("this must be a file, and it is a folder; move it elsewhere", path=self._path)
        if self._io.exists(self._path) and self._io.size(self._path) == CHECKPOINT_SIZE:
            self.value = self.found = Checkpoint.unpack(self._io.read_bytes(self._path))

    def set_log(self, timestamp: int) -> None:
        if timestamp > self.value.physic:
            self._set(physic=timestamp)

    def set_queues(self, timestamp: int) -> None:
        self._set(logics=timestamp)

    def set_index(self, timestamp: int) -> None:
        self._set(index=timestamp)

    def set_confirmed(self, offset: int) -> None:
        """Sets the physical offset up to which consumers may have seen the log; 0: that is not known."""
        with self._gate:
            if offset != self.value.confirmed:
                self.value = self.value.with_confirmed(offset)

    def restart(self, timestamp: int, *, log_only: bool = False) -> None:
        """Resets the times after recovery. `timestamp` is the store time of the log's newest record, in ms.

        The times of log and queues become `timestamp`, even if they were later, because recovery has synced both. The
        index's time becomes at most `timestamp`. With `log_only` recovery did not dispatch the whole log to queues and
        index: another process does that, or a slave waits for its master's confirm. Then the queues' time, too, becomes
        at most `timestamp`.
        """
        with self._gate:
            queues = min(self.value.logics, timestamp) if log_only else timestamp
            self.value = Checkpoint(timestamp, queues, min(self.value.index, timestamp), self.value.rest)

    def _set(self, *, physic: int = 0, logics: int = 0, index: int = 0) -> None:
        with self._gate:
            now = self.value
            self.value = Checkpoint(max(physic, now.physic), max(logics, now.logics), max(index, now.index), now.rest)

    def write(self) -> None:
        """Writes the values to the file and syncs it. Raises OSError or StoreFailed."""
        with self._gate:
            if self._map is None:
                if self._io.exists(self._path) and self._io.size(self._path) != CHECKPOINT_SIZE:
                    self._io.unlink(self._path)
                exists = self._io.exists(self._path)
                self._map = (
                    self._io.open_map(self._path) if exists else self._io.create_map(self._path, CHECKPOINT_SIZE)
                )
            self._map.reserve(0, CHECKPOINT_SIZE, CHECKPOINT_SIZE)
            self._map.view[:] = self.value.pack()
            self._map.sync()

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
