"""The queues that are in the store, as far as they can be read: only looked at, through a view that changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.errors import BadStore
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.overlay_files import OverlayFiles

QueueName = tuple[str, int]
"""Topic and queue id."""


class OldQueues:
    """Opens one queue after the other; thousands of them are never open at once."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        file_size: int,
        selects: Callable[[str, int], bool] | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder`: where they are, if not in their place."""
        self._io = files if files.read_only else OverlayFiles()
        self._folder = folder or layout.consume_queue
        self._file_size = file_size
        self._selects = selects

    def names(self) -> list[QueueName]:
        """Those that are selected, also if their files are of no use."""
        found: list[QueueName] = []
        for topic in self._io.names(self._folder) if self._io.is_folder(self._folder) else ():
            folder = self._folder / topic
            for name in self._io.names(folder) if self._io.is_folder(folder) else ():
                if name.isascii() and name.isdecimal() and self._io.is_folder(folder / name):
                    found.append((topic, int(name)))
        return [name for name in found if self._selects is None or self._selects(*name)]

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Those that can be read, each closed when the next one comes."""
        for name in self.names():
            with self.open(*name) as queue:
                if queue is not None:
                    yield queue

    @contextlib.contextmanager
    def open(self, topic: str, queue_id: int) -> Iterator[ConsumeQueue | None]:
        """One queue, None if there is none or its files are of no use."""
        queue = ConsumeQueue(self._io, self._folder / topic / str(queue_id), topic, queue_id, self._file_size)
        with contextlib.closing(queue):
            usable = False
            with contextlib.suppress(BadStore, OSError):
                queue.load()
                usable = bool(queue.files.files)
            yield queue if usable else None
