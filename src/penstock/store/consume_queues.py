"""All consume queues of a store, and `DerivedFiles`: queues and index together, all that is derived from the log.

Owns the folder `consumequeue/{topic}/{queue id}`. A queue object exists once one of its messages was dispatched or its
folder was found; looking up an unknown queue creates nothing. Topic names come from records and folders, so they are
checked before they become a path. The dispatcher adds queues; any thread reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.format.topics import is_readable_topic
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.index import Index
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.settings import Settings

_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class ConsumeQueues:
    """Queues by topic and queue id."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self.folder = folder
        self.file_size = file_size
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def find_all(self) -> list[ConsumeQueue]:
        """The queues that have a folder, not loaded yet; ignores folders whose name is not a number.

        Raises BadStore if a file lies where only folders belong.
        """
        for topic in self._io.names(self.folder):
            topic_folder = self.folder / topic
            if not self._io.is_folder(topic_folder):
                raise BadStore("a foreign file lies among the topics' folders; move it elsewhere", path=topic_folder)
            for name in self._io.names(topic_folder):
                if not _QUEUE_ID.fullmatch(name):
                    continue
                if not self._io.is_folder(topic_folder / name):
                    raise BadStore(
                        "a foreign file lies among the queues' folders; move it elsewhere", path=topic_folder / name
                    )
                self._add(topic, int(name))
        return list(self)

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        folder = self.folder / topic / str(queue_id)
        queue = ConsumeQueue(self._io, folder, topic, queue_id, self.file_size)
        self._queues[topic, queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def find_or_add(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue for a record; None if its topic or queue id is not a legal folder name."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and queue_id >= 0 and is_readable_topic(topic):
            queue = self._add(topic, queue_id)
        return queue

    def remove(self, queue: ConsumeQueue) -> None:
        """Deletes a queue's files and folder, and the topic's folder if it is empty then; current readers may continue.

        Dispatch must be paused. Raises OSError; leftover files then keep a new queue from being created, which stops
        dispatch with a reason until the next start removes them. A power cut may bring files back, so the caller has
        noted the deletion before, or leaves at most one file to this call.
        """
        del self._queues[queue.topic, queue.queue_id]
        queue.files.destroy()
        self._io.remove_folder(queue.files.folder.parent)

    def add(self, queue: ConsumeQueue) -> None:
        """Adds a queue that another process has built."""
        self._queues[queue.topic, queue.queue_id] = queue

    def forget(self, queue: ConsumeQueue) -> None:
        """Closes a queue whose files belong to another process; the files stay."""
        del self._queues[queue.topic, queue.queue_id]
        queue.close()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter([queue for _, queue in sorted(self._queues.copy().items())])  # the dispatcher may add one meanwhile

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def max_physical_offset(self) -> int:
        """End of the newest record that any queue points to, -1 if all are empty."""
        return max((queue.max_physical_offset for queue in self._queues.copy().values()), default=-1)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._queues.copy()})

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()


class DerivedFiles(msgspec.Struct, frozen=True):
    """Queues and index of one store; both can be rebuilt from the log."""

    queues: ConsumeQueues
    index: Index | None
    """None if messageIndexEnable is false."""

    @classmethod
    def of(cls, files: Files, layout: Layout, settings: Settings, clock: Callable[[], int]) -> DerivedFiles:
        """The derived files of a store; nothing is mapped yet."""
        queues = ConsumeQueues(files, layout.consume_queue, settings.mapped_file_size_consume_queue)
        index: Index | None = None
        if settings.message_index_enable:
            index = Index(files, layout.index, settings.index_geometry, clock)
        return cls(queues, index)

    def sync(self) -> None:
        """Syncs all of them. Raises StoreFailed or OSError."""
        for queue in self.queues:
            queue.flush(0)
        if self.index is not None:
            self.index.sync(everything=True)

    def close(self) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()
