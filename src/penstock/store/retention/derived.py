"""Cleans the files derived from the log: deletes queue and index files that only point before the log's beginning.

For each queue, `DerivedCleaner` first raises the minimum offset, so that readers see it before files disappear. Then it
deletes leading queue files whose units all point before the log, and extension files that no unit refers to. Next come
leading index files. Last, it removes entries before the log from the lists of damaged ranges and of deleted topics. It
never deletes the last file of a queue, of its extension or of the index.

A file that a reader holds stays, and the next pass retries. After `destroyMapedFileIntervalForcibly` ms it is deleted
anyway: its name disappears, but its memory stays mapped until the reader releases it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from penstock.format.queue_ext import ext_offset
from penstock.format.queue_unit import MAX_EXT_ADDRESS
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage_and_quarantine import read_damage, write_damage
from penstock.store.dispatch_checkpoint import read_state
from penstock.store.engine_parts import Engine
from penstock.store.files.layout import path_below
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.index import Index
from penstock.store.running_flags import StoreFault

log = logging.getLogger("penstock.store")


class Dropper:
    """Deletes the first file of a queue, a log or an index, and remembers how long readers have delayed it.

    One thread at a time.
    """

    def __init__(self, clock: Callable[[], int], patience_ms: int) -> None:
        self._clock = clock
        self._patience_ms = patience_ms
        self._since: dict[Path, int] = {}

    def drop_first(self, files: MappedFileQueue | Index) -> bool:
        """Deletes the first file; returns False if readers hold it and their time is not up yet. Raises OSError."""
        path = files.files[0].path
        now = self._clock()
        waited = now - self._since.setdefault(path, now)
        if not files.drop_first():
            if waited < self._patience_ms:
                return False
            log.warning("deleted %s although readers have held it for %d ms; its space is freed later", path, waited)
            files.drop_first(forced=True)
        del self._since[path]
        return True


_UNITS_AT_ONCE = 65_536


class DerivedCleaner:
    """Cleans queues, index and the lists of damage and deleted topics; for inline dispatch. One thread at a time."""

    def __init__(self, engine: Engine, dropper: Dropper, pause: Callable[[], bool]) -> None:
        """`pause` is called after each queue that lost files; it returns True if the store is closing."""
        self._io = engine.io
        self._layout = engine.layout
        self._log = engine.log
        self._queues = engine.queues
        self._index = engine.index
        self._deleted_topics = engine.deleted_topics
        self._flags = engine.flags
        self._dispatcher = engine.dispatcher
        self._dropper = dropper
        self._pause = pause
        self._done_up_to = -1
        self.files_deleted = self.bytes_freed = 0

    def dispatched(self) -> int:
        """Returns the log position before which, after `sync_queues`, the disk knows of every message's queue how far
        it has come.
        """
        return self._dispatcher.position

    def sync_queues(self) -> None:
        """Syncs all units. Must run before a log file is deleted: then only units tell how far its queues have come.

        Raises OSError; then the store refuses puts, because a second sync would not see the error.
        """
        try:
            for queue in self._queues:
                queue.flush(0)
        except OSError as error:
            reason = f"queues could not be synced ({error.strerror}): puts are refused until a restart"
            self._flags.raise_fault(StoreFault.NOT_WRITEABLE, reason)
            raise

    def clean(self) -> None:
        """Deletes files and list entries that only refer to deleted records. The next call retries files in use.

        Raises OSError or StoreFailed; the next call resumes.
        """
        files = self._log.queue.files
        if not files:
            return
        on_disk, readable = files[0].from_offset, max(self._log.min_offset, 0)
        if readable <= self._done_up_to:
            return
        done = on_disk == readable
        for queue in self._queues:
            with self._dispatcher.paused():
                queue.correct_min_offset(readable)
            before = self.files_deleted
            done &= self._delete_expired(queue, on_disk)
            if self.files_deleted > before and self._pause():
                return
        done &= self._delete_expired_index(on_disk)
        self._forget_notes(on_disk)
        if done:
            self._done_up_to = on_disk

    def _delete_expired(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        """Deletes the expired files of a queue; returns False if a reader holds one of them."""
        while queue.expired(log_min_offset):
            if not self._dropper.drop_first(queue.files):
                return False
            self._count(queue.files.file_size)
        self._delete_expired_extension(queue)
        return True

    def _delete_expired_extension(self, queue: ConsumeQueue) -> None:
        folder = path_below(self._layout.consume_queue_ext, queue.topic, queue.queue_id)
        names = self._io.names(folder)[:-1] if self._io.is_folder(folder) else []
        lowest = self._first_extension_offset(queue) if names else 0
        for name in names:
            size = self._io.size(folder / name)
            if not name.isdecimal() or int(name) + size > lowest:
                return
            self._io.unlink(folder / name)
            self._count(size)

    def _first_extension_offset(self, queue: ConsumeQueue) -> int:
        """Returns the lowest position in the extension files that a unit points to; 0 if no unit points there."""
        offset = queue.min_offset
        while (units := queue.page(offset, _UNITS_AT_ONCE)) is not None:
            codes = units["tags_code"][units["tags_code"] <= MAX_EXT_ADDRESS]
            if len(codes):
                return ext_offset(int(codes[0]))
            offset += len(units)
        return 0

    def _delete_expired_index(self, log_min_offset: int) -> bool:
        index = self._index
        while index is not None and index.expired(log_min_offset):
            if not self._dropper.drop_first(index):
                return False
            self._count(index.geometry.file_size)
        return True

    def _forget_notes(self, log_min_offset: int) -> None:
        """Removes damaged ranges and deleted topics before the log's beginning from their lists."""
        known = read_damage(self._io, self._layout.damaged)
        left = [damage for damage in known if damage.end > log_min_offset]
        if len(left) < len(known):
            write_damage(self._io, self._layout.damaged, left)
        if self._deleted_topics.ends or self._deleted_topics.restarts:
            state = read_state(self._io, self._layout.dispatched)
            noted = {} if state is None else {(each.topic, each.queue_id): each.end for each in state.queues}
            self._deleted_topics.forget_before(log_min_offset, noted, self._layout)

    def _count(self, size: int) -> None:
        self.files_deleted += 1
        self.bytes_freed += size


class BuilderCleaner(DerivedCleaner):
    """Cleans queues and index in the job of external dispatch; the store cleans the two lists."""

    def _forget_notes(self, log_min_offset: int) -> None:
        pass
