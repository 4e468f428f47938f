"""Deleting one file that somebody may be reading.

A reader who holds the oldest file keeps it: it is tried again, and after `destroyMapedFileIntervalForcibly` it goes all
the same. Its name and its place in the list go; its memory stays until the reader lets go, so nobody crashes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from penstock.store.file_queue import FileQueue
from penstock.store.index import Index

log = logging.getLogger("penstock.store")


class Dropper:
    """Remembers since when a file has been waiting for its readers. One thread at a time."""

    def __init__(self, clock: Callable[[], int], patience_ms: int) -> None:
        self._clock = clock
        self._patience_ms = patience_ms
        self._since: dict[Path, int] = {}

    def drop_first(self, files: FileQueue | Index) -> bool:
        """Deletes the first file; False if its readers still have time. Raises OSError."""
        path = files.files[0].path
        now = self._clock()
        waited = now - self._since.setdefault(path, now)
        if not files.drop_first():
            if waited < self._patience_ms:
                return False
            log.warning("%s is deleted although it has been read for %d ms; its space is free later", path, waited)
            files.drop_first(forced=True)
        del self._since[path]
        return True
