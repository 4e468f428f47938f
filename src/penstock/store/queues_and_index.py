"""The consume queues and the index of one store: all that is derived from its log, and can be built again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.store.consume_queues import ConsumeQueues
from penstock.store.files import Files
from penstock.store.index import Index
from penstock.store.layout import Layout
from penstock.store.settings import Settings


class QueuesAndIndex(msgspec.Struct, frozen=True):
    """They are built, synced and let go together."""

    queues: ConsumeQueues
    index: Index | None
    """None if messageIndexEnable is false."""

    @classmethod
    def of(cls, files: Files, layout: Layout, settings: Settings, clock: Callable[[], int]) -> QueuesAndIndex:
        """Those of a store, in their places; nothing is mapped yet."""
        queues = ConsumeQueues(files, layout.consume_queue, settings.mapped_file_size_consume_queue)
        index: Index | None = None
        if settings.message_index_enable:
            index = Index(files, layout.index, settings.index_geometry, clock)
        return cls(queues, index)

    def sync(self) -> None:
        """Returns when everything in them is on disk. Raises StoreFailed or OSError."""
        for queue in self.queues:
            queue.flush(0)
        if self.index is not None:
            self.index.sync(everything=True)

    def close(self) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()
