"""All consume queues of a store (`ConsumeQueues`), and its queues and index together (`DerivedFiles`).

`ConsumeQueues` owns the folder `consumequeue`. A queue is added when its first message is dispatched or its folder is
found; looking up an unknown queue creates nothing. Topic names come from records and folders, so they are checked
before they become a path. The dispatcher adds queues; any thread reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.format.topics import is_readable_topic
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout, path_below
from penstock.store.index import Index
from penstock.store.settings import Settings

_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class ConsumeQueues:
    """Queues by topic and queue id."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self.folder = folder
        self.file_size = file_size
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    @property
    def table(self) -> dict[tuple[str, int], ConsumeQueue]:
        """All queues by topic and queue id; one dict for all time."""
        return self._queues

    def find_all(self) -> list[ConsumeQueue]:
        """Adds and returns the queues that have a folder; does not load them. Ignores names that are not a queue id.

        Raises BadStore if a file lies where a topic's or queue's folder belongs.
        """
        for topic in self._io.names(self.folder):
            topic_folder = path_below(self.folder, topic)
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
        folder = path_below(self.folder, topic, queue_id)
        queue = ConsumeQueue(self._io, folder, topic, queue_id, self.file_size)
        self._queues[topic, queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Returns the queues of a topic in the order of their queue ids."""
        queues = self._queues.copy().values()  # the dispatcher may add one meanwhile
        return sorted((queue for queue in queues if queue.topic == topic), key=lambda queue: queue.queue_id)

    def find_or_add(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue, added if it is new; None if the topic or the queue id is not legal as a folder name."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and queue_id >= 0 and is_readable_topic(topic):
            queue = self._add(topic, queue_id)
        return queue

    def remove(self, queue: ConsumeQueue) -> None:
        """Deletes a queue's files and folder, then the topic's folder if it is empty. Current readers may continue.

        Callers must pause dispatch first. A power cut may bring deleted files back, so callers must first note the
        deletion, or leave at most one file to this call. If it raises OSError, the leftover files prevent a new queue
        of the same name: dispatch stops with a reason until the next start removes them.
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
        """Physical offset at which the newest record of any queue ends; -1 if all queues are empty."""
        return max((queue.max_physical_offset for queue in self._queues.copy().values()), default=-1)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._queues.copy()})

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()


class DerivedFiles(msgspec.Struct, frozen=True):
    """The consume queues and the index of one store. Both can be rebuilt from the log."""

    queues: ConsumeQueues
    index: Index | None
    """None if messageIndexEnable is false."""

    @classmethod
    def of(cls, files: Files, layout: Layout, settings: Settings, clock: Callable[[], int]) -> DerivedFiles:
        """Creates the derived files of a store. No file is mapped yet."""
        queues = ConsumeQueues(files, layout.consume_queue, settings.mapped_file_size_consume_queue)
        index: Index | None = None
        if settings.message_index_enable:
            index = Index(files, layout.index, settings.index_geometry, clock)
        return cls(queues, index)

    def sync(self) -> None:
        """Syncs all queues and the index. Raises StoreFailed or OSError."""
        for queue in self.queues:
            queue.flush(0)
        if self.index is not None:
            self.index.sync(everything=True)

    def close(self) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()
