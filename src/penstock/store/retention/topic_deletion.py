"""Deletes topics and queues on request.

The records of a topic stay in the log until retention deletes the log's files. Deletion removes the queues. A list of
deleted topics (`store/deleted_topics_file.py`) keeps dispatch from building them again; it is on disk before the first
queue is removed. A deleted queue restarts at offset 0 with its next message, as in RocketMQ: a consumer with an old
offset is then beyond the end.

Puts pause while the queues to delete are chosen, and dispatch pauses while they are removed. So each put belongs either
to the old queue or to the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Lock

from penstock.errors import StoreFailed
from penstock.format.constants import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.encode_message import PutRefused
from penstock.store.engine_parts import Engine
from penstock.store.files.layout import path_below

ALWAYS_KEPT = frozenset({SCHEDULE_TOPIC, OP_HALF_TOPIC})
"""System topics that `delete_unused` keeps: they are in use, but no topic table lists them."""
_BY_OFFSET = ALWAYS_KEPT | {HALF_TOPIC}
"""Topics in which the broker's own progress is a queue offset. If a queue of them restarted at 0, the broker would pass
over its next messages."""


class TopicCleaner:
    """Deletes topics and queues. Thread-safe; each call has exclusive access to the queues."""

    def __init__(self, engine: Engine) -> None:
        self._io = engine.io
        self._layout = engine.layout
        self._log = engine.log
        self._queues = engine.queues
        self._dispatcher = engine.dispatcher
        self._deleted_topics = engine.deleted_topics
        self._external = engine.only_appends
        """Whether another process removes the queue files."""
        self.gate = Lock()
        """Held by each call, and by the cleaner during a pass."""

    def load(self) -> None:
        """Reads the list of deleted topics. Callers must call it before they load the queues."""
        ends = self._deleted_topics.load(None if self._external else self._layout)
        self._dispatcher.set_deleted(ends, self._deleted_topics.restarts)
        self._follow_role()

    def on_role(self) -> None:
        """Adjusts to the store's role, once the log's end is known. Raises StoreFailed."""
        self.cut_to_log()
        self._follow_role()

    def cut_to_log(self) -> None:
        """Must run before the first put, or the first bytes of a master: they may be stored before the offset of a
        deletion, and are not deleted.

        A power loss moves the log's end back. What a slave receives then may come from another master than the one
        that deleted the topic; if that one still leads, it names its deletion again. Raises StoreFailed.
        """
        self._deleted_topics.cut_to(self._log.queue.wrote_offset)
        self._dispatcher.set_deleted(self._deleted_topics.ends, self._deleted_topics.restarts)

    def _follow_role(self) -> None:
        """In a slave, dispatch calls `restart_queue` for a queue that restarts at 0."""
        is_slave = self._log.role.takes_replica_bytes
        self._dispatcher.on_restart(self.restart_queue if is_slave and not self._external else None)

    def delete_topic(self, topic: str) -> bool:
        """See `MessageStore.delete_topic`."""
        return bool(self.delete(lambda known: known & {topic}))

    def delete_unused(self, known_topics: Collection[str]) -> list[str]:
        """See `MessageStore.clean_unused_topics`."""
        kept = ALWAYS_KEPT | set(known_topics)
        return self.delete(lambda known: known - kept)

    def delete(self, choose: Callable[[set[str]], Collection[str]]) -> list[str]:
        """Deletes the topics that `choose` selects from all topics with a message or a queue. Returns them, sorted.

        Raises StoreFailed; then nothing was deleted, or the next start completes the deletion.
        """
        going: list[str] = []

        def pick() -> Iterator[tuple[str, int]]:
            known = [(topic, queue_id) for topic, queue_id, _ in self._log.next_offsets()]
            chosen = set(choose({*self._queues.topics(), *(topic for topic, _ in known)}))
            going.extend(sorted(chosen))
            return (queue for queue in known if queue[0] in chosen)

        def note(log_end: int) -> None:
            if going:
                self._deleted_topics.add(going, log_end)

        with self._exclusive():
            self._log.restart_queues(pick, note)
            self._dispatcher.set_deleted(self._deleted_topics.ends)
            for queue in [queue for queue in self._queues if queue.topic in going]:
                self._remove(queue)
        return going

    def delete_before(self, ends: Mapping[str, int]) -> list[str]:
        """Repeats a master's deletions. `ends`: by topic, the physical offset before which its messages are deleted.

        Returns the topics whose deletion is new here, sorted. An offset behind the end of this log is ignored, and must
        be passed again when the log has reached it: the log of the master that says so may not reach that far itself,
        and messages that come later would never get into a queue.

        Raises StoreFailed; then nothing was deleted, or the next start completes the deletion.
        """
        with self._exclusive():
            known, log_end = self._deleted_topics.ends, self._log.queue.wrote_offset
            new = {topic: end for topic, end in ends.items() if known.get(topic, 0) < end <= log_end}
            if new:
                self._deleted_topics.add_ends(new)
                self._dispatcher.set_deleted(self._deleted_topics.ends)
            for queue in [queue for queue in self._queues if queue.topic in new]:
                if queue.max_physical_offset <= new[queue.topic]:
                    self._remove(queue)
        return sorted(new)

    def restart_queue(self, queue: ConsumeQueue, begin: int) -> None:
        """Removes a queue whose offsets restart at 0 at log position `begin`. Dispatch calls it. Raises StoreFailed."""
        if not self.gate.acquire(blocking=False):  # its holder may wait for dispatch: waiting would be a deadlock
            raise StoreFailed(
                "a queue restarts at offset 0 while files are being deleted; try again", path=queue.files.folder
            )
        try:
            self._deleted_topics.add_restarts([(queue.topic, queue.queue_id)], begin)
            self._dispatcher.set_deleted(self._deleted_topics.ends, self._deleted_topics.restarts)
            self._remove(queue)
        except OSError as error:
            raise StoreFailed(
                f"cannot delete a queue: {error.strerror}; check who may write there", path=error.filename
            ) from error
        finally:
            self.gate.release()

    def delete_expired_queues(self) -> list[tuple[str, int]]:
        """Deletes the queues without any message left in the log; returns topics and queue ids.

        Those of delayed messages and transactions stay. Deletes nothing if dispatch is external: the job could not see
        such a deletion. Raises StoreFailed.
        """
        going: list[ConsumeQueue] = []
        if self._external:
            return []

        def pick() -> Iterator[tuple[str, int]]:
            lowest = max(self._log.min_offset, 0)
            going.extend(queue for queue in self._queues if self._is_expired(queue, lowest))
            return ((queue.topic, queue.queue_id) for queue in going)

        def note(log_end: int) -> None:
            if going:
                self._deleted_topics.add_restarts([(queue.topic, queue.queue_id) for queue in going], log_end)

        with self._exclusive():
            self._log.restart_queues(pick, note)
            self._dispatcher.set_deleted(self._deleted_topics.ends, self._deleted_topics.restarts)
            for queue in going:
                while len(queue.files.files) > 1:
                    queue.files.drop_first(forced=True)
                self._remove(queue)
        return [(queue.topic, queue.queue_id) for queue in going]

    def _is_expired(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        """Whether all messages of the queue were deleted; False if it never had any, or has an undispatched one, or is
        the broker's own."""
        if queue.topic in _BY_OFFSET:
            return False
        dispatched = self._log.next_offset(queue.topic, queue.queue_id) == queue.max_offset
        return dispatched and 0 <= queue.max_physical_offset <= log_min_offset

    def _remove(self, queue: ConsumeQueue) -> None:
        if self._external:
            self._queues.forget(queue)
            return
        self._queues.remove(queue)
        folder = path_below(self._layout.consume_queue_ext, queue.topic, queue.queue_id)
        if self._io.is_folder(folder):
            for name in self._io.names(folder):
                self._io.unlink(folder / name)
            for emptied in (folder, folder.parent):
                self._io.remove_folder(emptied)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        try:
            with self.gate, self._dispatcher.paused():
                yield
        except PutRefused as refused:
            raise StoreFailed(refused.reason, path=self._layout.root) from None
        except OSError as error:
            raise StoreFailed(
                f"cannot delete a queue: {error.strerror}; check who may write there", path=error.filename
            ) from error
