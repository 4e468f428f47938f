"""Follows the ends of a store's queues in its files, cheaply and without recovering: for readers that poll.

What is on disk is what counts. A store that somebody is writing to puts a unit into its queue's file once the record
may be seen by consumers, under SYNC_FLUSH only when it is on disk; so what the queues refer to may be read, and nothing
else is. The last unit found is believed only if the record it points to stands in the log, because it may be half
written. A batch that a sink is still appending is not there yet.

A store that was not closed cleanly and is not in use shows what its queues held; a start would add what was not
dispatched yet. `is_as_closed` tells whether it would. One thread.
"""

from __future__ import annotations

import time
from typing import Final

from penstock.errors import BadStore
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.dispatch_state import read_state
from penstock.store.geometry import fit_to_files
from penstock.store.layout import Layout
from penstock.store.light_view import FilesView
from penstock.store.overlay_files import OverlayFiles
from penstock.store.queue_tail import QueueTail
from penstock.store.settings import Settings
from penstock.store.sink.journal import pending_start

_LIST_EVERY_S: Final = 0.2
_TRIES: Final = 3


class StoreTail:
    """The queues of one store, as they are in its files at the last `look`."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        self._layout = layout
        self._io = OverlayFiles()
        self._given = settings
        self.settings = settings
        """With the sizes that the files have, as soon as there are some."""
        self._log = FilesView(layout.commit_log, settings.mapped_file_size_commit_log)
        self._listed = float("-inf")
        self._noted = 0
        self.queues: dict[tuple[str, int], QueueTail] = {}
        self.log_min = 0
        self.log_end = 0
        """Up to where the log may be read: what consumers can see lies before it."""
        self.look()

    def look(self) -> None:
        """Looks again. Cheap where nothing has come; folders are listed a few times a second at most.

        Raises BadStore if files are not as they must be, and stay so.
        """
        now = time.monotonic()
        listing = now - self._listed >= _LIST_EVERY_S
        if listing:
            self._listed = now
        begun = pending_start(self._io, self._layout)
        for tries_left in reversed(range(_TRIES)):
            try:
                self._look_at_queues(listing=listing or not self._knows_sizes)
                break
            except (BadStore, FileNotFoundError):  # files may have come or gone at the wrong moment
                if not tries_left:
                    raise
        # Asked before the look too: a batch may have been taken back meanwhile, with units that were seen.
        pending = [start for start in (begun, pending_start(self._io, self._layout)) if start is not None]
        for queue in self.queues.values() if pending else ():
            queue.cut(min(pending))
        seen = max((queue.record_end for queue in self.queues.values()), default=0)
        self.log_end = max(seen, 0 if pending else self._noted, self.log_min)

    @property
    def _knows_sizes(self) -> bool:
        """Whether units were found: until then the files that told their sizes may not have been those that came."""
        return any(queue.max_offset for queue in self.queues.values())

    def _look_at_queues(self, *, listing: bool) -> None:
        if listing:
            self._list()
        for queue in self.queues.values():
            queue.look(self.log_min, listing=listing)

    def _list(self) -> None:
        self._log.close()  # a store may have been made anew, with other files of the same names
        if not self._knows_sizes:
            self._fit()
        self.log_min = next(iter(self._log.offsets()), 0)
        found = ConsumeQueues(self._io, self._layout.consume_queue, self.settings.mapped_file_size_consume_queue)
        there = {(queue.topic, queue.queue_id): queue for queue in found.find_all()}
        for gone in self.queues.keys() - there.keys():
            self.queues.pop(gone).close()
        for new in there.keys() - self.queues.keys():
            self.queues[new] = QueueTail(there[new], self._log)
        state = read_state(self._io, self._layout.dispatched)
        self._noted = 0 if state is None else min(state.position, state.flushed)  # prepared records have no units

    def _fit(self) -> None:
        """Takes the files' sizes: a store that was empty so far could not tell them."""
        self.settings = fit_to_files(self._given, self._io, self._layout).settings
        for queue in self.queues.values():
            queue.close()
        self.queues.clear()
        self._log = FilesView(self._layout.commit_log, self.settings.mapped_file_size_commit_log)

    # -- a store that nobody has open ------------------------------------------------------------------------

    @property
    def is_as_closed(self) -> bool:
        """Whether the files hold what a clean close left, and nothing else: then a start would serve just this.

        By the note of that close: where log and queues end. Records before the end are not looked at.
        """
        layout, state = self._layout, read_state(self._io, self._layout.dispatched)
        if state is None or any(map(self._io.exists, (layout.abort, layout.damaged))):
            return False
        sizes = state.sizes.commit_log, state.sizes.consume_queue
        noted = {(each.topic, each.queue_id): (each.count, max(each.end, 0)) for each in state.queues}
        return (
            sizes == (self.settings.mapped_file_size_commit_log, self.settings.mapped_file_size_consume_queue)
            and state.position == state.flushed == self.log_end
            and noted == {key: (queue.max_offset, queue.record_end) for key, queue in self.queues.items()}
            and pending_start(self._io, layout) is None
            and self._log_ends_here()
        )

    def _log_ends_here(self) -> bool:
        """Whether every file of the log is there, and nothing was begun behind its end."""
        size, end = self._log.file_size, self.log_end
        offsets = self._log.offsets()
        if offsets != list(range(self.log_min, max(end, self.log_min + len(offsets) * size), size)):
            return False
        behind = (max(offset, end) for offset in offsets if offset + size > end)  # files may have been made ahead
        return not any(self._begins(position) for position in behind)

    def _begins(self, position: int) -> bool:
        """Whether a record or a filler begins at a position."""
        file = self._log.find(position)
        return file is None or any(file.map.view[position - file.from_offset :][:8])

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()
        self._log.close()
