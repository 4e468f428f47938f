"""All consume queues of a store: the folder `consumequeue/{topic}/{queue id}`.

A queue's object exists once a message of it was dispatched or its folder was found; looking for an unknown one makes
nothing. Names come from records and folders, so both are checked before they become a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadStore
from penstock.format.topics import is_readable_topic
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files import Files


class ConsumeQueues:
    """Finds queues by topic and id. The dispatcher adds, anyone looks."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self.folder = folder
        self._file_size = file_size
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def load(self) -> None:
        """Opens what is there; folders that are not numbers are left alone, as RocketMQ does."""
        for topic in self._io.names(self.folder):
            topic_folder = self.folder / topic
            if not self._io.is_folder(topic_folder):
                raise BadStore("a foreign file lies among the topics' folders; move it elsewhere", path=topic_folder)
            for name in self._io.names(topic_folder):
                if name.isascii() and name.isdecimal() and self._io.is_folder(topic_folder / name):
                    self._add(topic, int(name)).load()

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        folder = self.folder / topic / str(queue_id)
        queue = ConsumeQueue(self._io, folder, topic, queue_id, self._file_size)
        self._queues[topic, queue_id] = queue
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def find_or_add(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue for a record, None if its topic or queue id may not become a folder."""
        found = self._queues.get((topic, queue_id))
        if found is None and queue_id >= 0 and is_readable_topic(topic):
            found = self._add(topic, queue_id)
        return found

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter([self._queues[key] for key in sorted(self._queues)])

    def __len__(self) -> int:
        return len(self._queues)

    @property
    def max_physical_offset(self) -> int:
        """End of the newest record that any queue knows, -1 if none knows any."""
        return max((queue.max_physical_offset for queue in self._queues.values()), default=-1)

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._queues})

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
