"""Deleting one file that somebody may be reading.

A reader who holds the oldest file keeps it: it is tried again, and after `destroyMapedFileIntervalForcibly` it goes all
the same. Its name and its place in the list go; its memory stays until the reader lets go, so nobody crashes.


Queues, index and notes follow the log: what points before its beginning goes.

For each queue its minimum is corrected first, so that readers are told of it before files go; then leading files go
whose units all point before the log, then extension files that no unit points into. Then leading index files, known
damage and deleted topics that lie before the log. Never the last file of anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from penstock.format.queue_ext import ext_offset
from penstock.format.queue_unit import MAX_EXT_ADDRESS
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage import read_damage, write_damage
from penstock.store.engine import Engine
from penstock.store.index import Index
from penstock.store.mapped_file_queue import MappedFileQueue

log = logging.getLogger("penstock.store")


class Dropper:
    """Remembers since when a file has been waiting for its readers. One thread at a time."""

    def __init__(self, clock: Callable[[], int], patience_ms: int) -> None:
        self._clock = clock
        self._patience_ms = patience_ms
        self._since: dict[Path, int] = {}

    def drop_first(self, files: MappedFileQueue | Index) -> bool:
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


_UNITS_AT_ONCE = 65_536


class DerivedCleaner:
    """Brings what is derived from the log in line with its beginning. One thread at a time."""

    def __init__(self, engine: Engine, dropper: Dropper, pause: Callable[[], bool]) -> None:
        """`pause` is called after each queue that lost files; True: the store is closing."""
        self._io = engine.io
        self._layout = engine.layout
        self._log = engine.log
        self._queues = engine.queues
        self._index = engine.index
        self._deleted_topics = engine.deleted_topics
        self._standstill = engine.dispatcher.paused
        self._dropper = dropper
        self._pause = pause
        self._done_up_to = -1
        self.files_deleted = self.bytes_freed = 0

    def follow(self) -> None:
        """Does what is left to do since the log's minimum grew; what readers hold is left for the next time.

        Raises OSError or StoreFailed; the next call goes on.
        """
        files = self._log.queue.files
        if not files:
            return
        on_disk, readable = files[0].from_offset, max(self._log.min_offset, 0)
        if readable <= self._done_up_to:
            return
        done = on_disk == readable
        for queue in self._queues:
            with self._standstill():
                queue.correct_min_offset(readable)
            before = self.files_deleted
            done &= self._shorten(queue, on_disk)
            if self.files_deleted > before and self._pause():
                return
        done &= self._shorten_index(on_disk)
        self._forget(on_disk)
        if done:
            self._done_up_to = on_disk

    def _shorten(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        """False if a reader keeps a file from going."""
        while queue.expired(log_min_offset):
            if not self._dropper.drop_first(queue.files):
                return False
            self._count(queue.files.file_size)
        self._shorten_extension(queue)
        return True

    def _shorten_extension(self, queue: ConsumeQueue) -> None:
        folder = self._layout.consume_queue_ext / queue.topic / str(queue.queue_id)
        names = self._io.names(folder)[:-1] if self._io.is_folder(folder) else []
        lowest = self._first_address(queue) if names else 0
        for name in names:
            size = self._io.size(folder / name)
            if not name.isdecimal() or int(name) + size > lowest:
                return
            self._io.unlink(folder / name)
            self._count(size)

    def _first_address(self, queue: ConsumeQueue) -> int:
        """The lowest offset in the extension files that a unit still points to, 0 if none does."""
        offset = queue.min_offset
        while (units := queue.page(offset, _UNITS_AT_ONCE)) is not None:
            codes = units["tags_code"][units["tags_code"] <= MAX_EXT_ADDRESS]
            if len(codes):
                return ext_offset(int(codes[0]))
            offset += len(units)
        return 0

    def _shorten_index(self, log_min_offset: int) -> bool:
        index = self._index
        while index is not None and index.expired(log_min_offset):
            if not self._dropper.drop_first(index):
                return False
            self._count(index.geometry.file_size)
        return True

    def _forget(self, log_min_offset: int) -> None:
        """Notes that speak only of what the log no longer has."""
        known = read_damage(self._io, self._layout.damaged)
        left = [found for found in known if found.end > log_min_offset]
        if len(left) < len(known):
            write_damage(self._io, self._layout.damaged, left)
        self._deleted_topics.forget_before(log_min_offset)

    def _count(self, size: int) -> None:
        self.files_deleted += 1
        self.bytes_freed += size


class DerivedFollower(DerivedCleaner):
    """In the process that builds queues and index: the notes are the store's."""

    def _forget(self, log_min_offset: int) -> None:
        pass
