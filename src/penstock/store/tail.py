"""Follows the ends of a store's queues in its files, cheaply and without recovering: for readers that poll.

What is on disk is what counts. A store that somebody is writing to puts a unit into its queue's file once the record
may be seen by consumers, under SYNC_FLUSH only when it is on disk; so what the queues refer to may be read, and nothing
else is. The last unit found is believed only if the record it points to stands in the log, because it may be half
written. A batch that a sink is still appending is not there yet.

A store that was not closed cleanly and is not in use shows what its queues held; a start would add what was not
dispatched yet. One thread.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.rows import Reason
from penstock.store.consume_queue import NO_RECORD_SIZE, ConsumeQueue, Units, count_sound, view_units
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.dispatch_state import read_state
from penstock.store.layout import Layout
from penstock.store.light_view import FilesView
from penstock.store.mapped_file import MappedFile
from penstock.store.overlay_files import OverlayFiles
from penstock.store.settings import Settings
from penstock.store.sink import pending_start

_LIST_EVERY_S: Final = 0.2
_UNITS_AT_ONCE: Final = 65_536


class QueueTail:
    """Where one queue begins and ends, and its units."""

    def __init__(self, queue: ConsumeQueue, log: FilesView) -> None:
        self._queue = queue
        self._log = log
        self._checked = -1
        self._last = b""
        self.max_offset = 0
        self.record_end = 0
        """Where the record of the last unit that points to one ends in the log, 0 if there is none."""

    @property
    def topic(self) -> str:
        return self._queue.topic

    @property
    def queue_id(self) -> int:
        return self._queue.queue_id

    @property
    def units_in_file(self) -> int:
        return self._queue.units_in_file

    @property
    def min_offset(self) -> int:
        return min(self._queue.min_offset, self.max_offset)

    def page(self, queue_offset: int, most: int) -> Units | None:
        """A copy of the units from `queue_offset` on, within one file, at most `most`; None if there are none."""
        return self._queue.page(queue_offset, min(most, self.max_offset - queue_offset))

    def look(self, log_min: int, *, listing: bool) -> None:
        """Moves the ends to where they are now. `listing`: files may have come or gone."""
        last = self._queue.files.last
        if last is None or not self._as_it_was(last) or (last.full and listing) or (listing and self._first_is_gone()):
            self._load()
        else:
            self._grow(last)
        if listing or self._checked < 0:
            self._queue.correct_min_offset(log_min)
        if self._queue.max_offset != self._checked:
            self.max_offset = self._believed()
            self.record_end = self._find_record_end()
            self._checked = self._queue.max_offset

    def cut(self, limit: int) -> None:
        """Leaves out, until the next look, units that point at or behind a position of the log."""
        self.max_offset = min(self.max_offset, self._queue.count_before(limit))
        self.record_end = self._find_record_end()
        self._checked = -1

    def _load(self) -> None:
        """From the beginning. A file that is being made or removed right now is looked at the next time."""
        self._queue.close()
        self._checked, self._last = -1, b""
        with contextlib.suppress(BadStore, FileNotFoundError):
            self._queue.load()
        self._remember()

    def _first_is_gone(self) -> bool:
        first = self._queue.files.first
        return first is not None and not first.path.exists()

    def _as_it_was(self, last: MappedFile) -> bool:
        """Whether the last unit is still the one that was seen: a start may have cut the queue meanwhile."""
        position = last.wrote - UNIT_SIZE
        return position < 0 or bytes(last.map.view[position : position + UNIT_SIZE]) == self._last

    def _remember(self) -> None:
        last = self._queue.files.last
        position = -1 if last is None else last.wrote - UNIT_SIZE
        self._last = b"" if last is None or position < 0 else bytes(last.map.view[position : position + UNIT_SIZE])

    def _grow(self, last: MappedFile) -> None:
        """Takes the units that have come to the last file."""
        position = last.wrote
        while position < last.size and any(last.map.view[position + 8 : position + 12]):
            units = view_units(last, position, min(_UNITS_AT_ONCE * UNIT_SIZE, last.size - position)).copy()
            count = count_sound(units, None)
            position += count * UNIT_SIZE
            if count < len(units):
                break
        if position > last.wrote:
            last.wrote = position
            self._remember()

    def _believed(self) -> int:
        """The end of the units up to the last one whose record stands in the log."""
        count = self._queue.max_offset
        while count > self._queue.min_offset:
            offset, size, _ = self._queue.unit(count - 1)
            if size == NO_RECORD_SIZE or self._stands(offset, size):
                return count
            count -= 1
        return count

    def _find_record_end(self) -> int:
        for number in range(self.max_offset - 1, self.min_offset - 1, -1):
            offset, size, _ = self._queue.unit(number)
            if size != NO_RECORD_SIZE:
                return offset + size
        return 0

    def _stands(self, offset: int, size: int) -> bool:
        file = self._log.find(offset)
        if file is None:
            return True  # retention has removed it, or the file is missing: not a unit that was half written
        at, data = offset - file.from_offset, file.map.view
        if at + size > file.size or int.from_bytes(data[at : at + 4], "big") != size:
            return False
        return kernels.check_record(data, at, file.from_offset, False) == Reason.STOP

    def close(self) -> None:
        self._queue.close()


class StoreTail:
    """The queues of one store, as they are in its files at the last `look`."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        self._layout = layout
        self._settings = settings
        self._io = OverlayFiles()
        self._log = FilesView(layout.commit_log, settings.mapped_file_size_commit_log)
        self._listed = float("-inf")
        self._noted = 0
        self.queues: dict[tuple[str, int], QueueTail] = {}
        self.log_min = 0
        self.log_end = 0
        """Up to where the log may be read: what consumers can see lies before it."""
        self.look()

    def look(self) -> None:
        """Looks again. Cheap where nothing has come; folders are listed a few times a second at most."""
        now = time.monotonic()
        listing = now - self._listed >= _LIST_EVERY_S
        if listing:
            self._listed = now
            self.log_min = next(iter(self._log.offsets()), 0)
            self._list_queues()
            state = read_state(self._io, self._layout.dispatched)
            self._noted = 0 if state is None else min(state.position, state.flushed)  # prepared records have no units
        for queue in self.queues.values():
            queue.look(self.log_min, listing=listing)
        pending = pending_start(self._io, self._layout)  # asked behind the look: what begins later was not seen
        if pending is not None:
            for queue in self.queues.values():
                queue.cut(pending)
        seen = max((queue.record_end for queue in self.queues.values()), default=0)
        self.log_end = max(seen, self._noted if pending is None else 0, self.log_min)

    def _list_queues(self) -> None:
        found = ConsumeQueues(self._io, self._layout.consume_queue, self._settings.mapped_file_size_consume_queue)
        there = {(queue.topic, queue.queue_id): queue for queue in found.find_all()}
        for gone in self.queues.keys() - there.keys():
            self.queues.pop(gone).close()
        for new in there.keys() - self.queues.keys():
            self.queues[new] = QueueTail(there[new], self._log)

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()
        self._log.close()
