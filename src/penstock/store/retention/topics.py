"""Deleting topics and queues, when somebody asks for it.

A topic's records stay in the log until its files go; what is deleted are the queues, and a note says that they must not
be built again (`store/deleted_topics.py`). The note is on disk before the first queue goes. A queue that is deleted
begins at offset 0 when its next message comes, as in RocketMQ: consumers that remember an offset of the old one are
beyond the end of the new one.

While queues go nothing is dispatched, and while it is decided which, nothing is put; so a put belongs to the old queue
or to the new one, never to both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from threading import Lock

from penstock.errors import StoreFailed
from penstock.format.constants import OP_HALF_TOPIC, SCHEDULE_TOPIC
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.engine import Engine
from penstock.store.prepare import PutRefused
from penstock.store.settings import BrokerRole

ALWAYS_KEPT = frozenset({SCHEDULE_TOPIC, OP_HALF_TOPIC})
"""Topics that no list of topics names and that are in use all the same."""


class TopicCleaner:
    """Safe to call from any thread; each call has the queues to itself."""

    def __init__(self, engine: Engine) -> None:
        self._io = engine.io
        self._layout = engine.layout
        self._log = engine.log
        self._queues = engine.queues
        self._dispatcher = engine.dispatcher
        self._deleted_topics = engine.deleted_topics
        self._external = engine.only_appends
        """Another process removes the files of queues."""
        self._is_slave = engine.settings.broker_role is BrokerRole.SLAVE
        self.gate = Lock()
        """Held by each call; also held, and so kept away, by the cleaner of old files."""

    def load(self) -> None:
        """Reads what was deleted, before the queues are loaded; a slave also notices by itself."""
        ends = self._deleted_topics.load(None if self._external else self._layout)
        self._dispatcher.set_deleted(ends, self._deleted_topics.restarts)
        if self._is_slave and not self._external:
            self._dispatcher.on_restart(self.begin_anew)

    def delete_topic(self, topic: str) -> bool:
        """See `MessageStore.delete_topic`."""
        return bool(self.delete(lambda known: known & {topic}))

    def delete_unused(self, known_topics: Collection[str]) -> list[str]:
        """See `MessageStore.clean_unused_topics`."""
        kept = ALWAYS_KEPT | set(known_topics)
        return self.delete(lambda known: known - kept)

    def delete(self, choose: Callable[[set[str]], Collection[str]]) -> list[str]:
        """Deletes the topics that `choose` picks out of all that have a message or a queue; returns them, sorted.

        Raises StoreFailed: then nothing was deleted, or the next start completes it.
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

        with self._alone():
            self._log.restart_queues(pick, note)
            self._dispatcher.set_deleted(self._deleted_topics.ends)
            for queue in [queue for queue in self._queues if queue.topic in going]:
                self._remove(queue)
        return going

    def delete_before(self, ends: Mapping[str, int]) -> list[str]:
        """Deletes what a master has deleted: of each topic what was stored before an offset. Returns what was new.

        Raises StoreFailed: then nothing was deleted, or the next start completes it.
        """
        with self._alone():
            known = self._deleted_topics.ends
            new = {topic: end for topic, end in ends.items() if end > known.get(topic, 0)}
            if new:
                self._deleted_topics.add_ends(new)
                self._dispatcher.set_deleted(self._deleted_topics.ends)
            for queue in [queue for queue in self._queues if queue.topic in new]:
                if queue.max_physical_offset <= new[queue.topic]:
                    self._remove(queue)
        return sorted(new)

    def begin_anew(self, queue: ConsumeQueue, begin: int) -> None:
        """Has a queue go, as its messages begin at 0 again at `begin`. Called by dispatch; raises StoreFailed."""
        if not self.gate.acquire(blocking=False):  # whoever has it may wait for dispatch: nobody waits for the other
            raise StoreFailed(
                "a queue begins anew, and files are being deleted just now; try again", path=queue.files.folder
            )
        try:
            self._deleted_topics.add_restart(queue.topic, queue.queue_id, begin)
            self._dispatcher.set_deleted(self._deleted_topics.ends, self._deleted_topics.restarts)
            self._remove(queue)
        except OSError as error:
            raise StoreFailed(
                f"cannot delete a queue: {error.strerror}; check who may write there", path=error.filename
            ) from error
        finally:
            self.gate.release()

    def delete_expired_queues(self) -> list[tuple[str, int]]:
        """Deletes the queues none of whose messages is in the log any more; returns topics and queue ids.

        None where another process owns the queues: it could not tell such a deletion from a queue that goes on.
        """
        going: list[ConsumeQueue] = []
        if self._external:
            return []

        def pick() -> Iterator[tuple[str, int]]:
            lowest = max(self._log.min_offset, 0)
            going.extend(queue for queue in self._queues if self._is_expired(queue, lowest))
            return ((queue.topic, queue.queue_id) for queue in going)

        with self._alone():
            self._log.restart_queues(pick, lambda log_end: None)
            for queue in going:
                while len(queue.files.files) > 1:
                    queue.files.drop_first(forced=True)
                self._remove(queue)
        return [(queue.topic, queue.queue_id) for queue in going]

    def _is_expired(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        """A queue without any unit of a record may just have been made; one with a message on its way is alive."""
        dispatched = self._log.next_offset(queue.topic, queue.queue_id) == queue.max_offset
        return dispatched and 0 <= queue.max_physical_offset <= log_min_offset

    def _remove(self, queue: ConsumeQueue) -> None:
        if self._external:
            self._queues.forget(queue)
            return
        self._queues.remove(queue)
        folder = self._layout.consume_queue_ext / queue.topic / str(queue.queue_id)
        if self._io.is_folder(folder):
            for name in self._io.names(folder):
                self._io.unlink(folder / name)
            for emptied in (folder, folder.parent):
                self._io.remove_folder(emptied)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with self.gate, self._dispatcher.paused():
                yield
        except PutRefused as refused:
            raise StoreFailed(refused.reason, path=self._layout.root) from None
        except OSError as error:
            raise StoreFailed(
                f"cannot delete a queue: {error.strerror}; check who may write there", path=error.filename
            ) from error
