"""Queues, index and notes follow the log: what points before its beginning goes.

For each queue its minimum is corrected first, so that readers are told of it before files go; then leading files go
whose units all point before the log, then extension files that no unit points into. Then leading index files, known
damage and deleted topics that lie before the log. Never the last file of anything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from penstock.format.queue_ext import ext_offset
from penstock.format.queue_unit import MAX_EXT_ADDRESS
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.damage import read_damage, write_damage
from penstock.store.deleted_topics import DeletedTopics
from penstock.store.external.growth import let_go
from penstock.store.files import Files
from penstock.store.index import Index
from penstock.store.layout import Layout
from penstock.store.retention.drop import Dropper

_UNITS_AT_ONCE = 65_536


class Follower:
    """Brings what is derived from the log in line with its beginning. One thread at a time."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        deleted_topics: DeletedTopics,
        dropper: Dropper,
        standstill: Callable[[], AbstractContextManager[None]],
        pause: Callable[[], bool],
    ) -> None:
        """`standstill` is the dispatcher's. `pause` follows each queue that lost files; True: the store is closing."""
        self._io = files
        self._layout = layout
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._deleted_topics = deleted_topics
        self._dropper = dropper
        self._standstill = standstill
        self._pause = pause
        self._disk = Files()
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


class LogOnlyFollower(Follower):
    """In a store whose queues and index another process builds: their files are that process's to delete."""

    def _shorten(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        let_go(self._disk, queue)
        return not queue.expired(log_min_offset)

    def _shorten_index(self, log_min_offset: int) -> bool:
        return True


class DerivedFollower(Follower):
    """In the process that builds queues and index: the notes are the store's."""

    def _forget(self, log_min_offset: int) -> None:
        pass
