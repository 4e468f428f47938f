"""Follows one consume queue in its files: where it begins and ends, and its units. A part of `penstock.store.tail`.

Units are believed up to the last one whose record stands in the log: the last that is found may be half written. What
was mapped is compared with what is on disk, because a start cuts queues, and topics are deleted and made again under
the same names. Nothing on disk is changed. One thread.


Follows the ends of a store's queues in its files, cheaply and without recovering: for readers that poll.

What is on disk is what counts. A store that somebody is writing to puts a unit into its queue's file once the record
may be seen by consumers, under SYNC_FLUSH only when it is on disk; so what the queues refer to may be read, and nothing
else is. The last unit found is believed only if the record it points to stands in the log, because it may be half
written. A batch that a sink is still appending is not there yet.

A store that was not closed cleanly and is not in use shows what its queues held; a start would add what was not
dispatched yet. `is_as_closed` tells whether it would. One thread.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT, UNIT_SIZE, Units
from penstock.format.rows import Reason
from penstock.store.consume_queue import ConsumeQueue, count_valid, view_units
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.dispatch_state import read_state
from penstock.store.layout import Layout
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import file_name
from penstock.store.overlay import OverlayFiles
from penstock.store.readonly.geometry import fit_to_files
from penstock.store.readonly.view import FilesView
from penstock.store.settings import Settings
from penstock.store.sink.journal import pending_start

_UNITS_AT_ONCE: Final = 65_536


class QueueTail:
    """Where one queue begins and ends, and its units."""

    def __init__(self, queue: ConsumeQueue, log: FilesView) -> None:
        self._queue = queue
        self._log = log
        self._io = OverlayFiles()
        self._file_size = queue.files.file_size
        self._checked = -1
        self._last = b""
        self._files: tuple[object, ...] = ()
        """Which files the first and the last one were when they were mapped."""
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
        if last is None or not self._as_it_was(last) or (listing and self._ends_on_disk() != self._files):
            self._load()
        else:
            self._grow(last)
            if last.full and self._io.exists(last.path.with_name(file_name(last.from_offset + last.size))):
                self._load()
        if listing or self._checked < 0:
            self._queue.correct_min_offset(log_min)
        if self._queue.max_offset != self._checked:
            self.max_offset = self._believed()
            self.record_end = self._find_record_end()
            self._checked = self._queue.max_offset if self.max_offset == self._queue.max_offset else -1

    def cut(self, limit: int) -> None:
        """Leaves out, until the next look, units that point at or behind a position of the log."""
        self.max_offset = min(self.max_offset, self._queue.count_before(limit))
        self.record_end = self._find_record_end()
        self._checked = -1

    def _load(self) -> None:
        """From the beginning. What is gone altogether is empty until it comes again."""
        self._queue.close()
        self._checked, self._last = -1, b""
        self._files = ()
        folder = self._queue.files.folder
        try:
            there = {folder / name: self._io.identity(folder / name) for name in self._io.names(folder)}
            self._queue = self._loaded()
            self._files = tuple(there.get(path) for path in self._end_paths())
        except FileNotFoundError:
            if self._io.exists(folder):  # a file of it went this very moment
                raise
        self._remember()

    def _loaded(self) -> ConsumeQueue:
        """With new files each time: what a view has left out once, it does not see again."""
        queue = ConsumeQueue(OverlayFiles(), self._queue.files.folder, self.topic, self.queue_id, self._file_size)
        queue.load()
        return queue

    def _end_paths(self) -> tuple[Path, ...]:
        files = self._queue.files
        return tuple(file.path for file in (files.first, files.last) if file is not None)

    def _ends_on_disk(self) -> tuple[object, ...]:
        """The first and the last file as they are on disk now: others may have come under the same names."""
        return tuple(self._io.identity(path) for path in self._end_paths())

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
        seen: Units = np.frombuffer(self._last, UNIT)
        before = seen if (seen["size"] != NO_RECORD_SIZE).any() else None
        while position < last.size and any(last.map.view[position + 8 : position + 12]):
            units = view_units(last, position, min(_UNITS_AT_ONCE * UNIT_SIZE, last.size - position)).copy()
            count = count_valid(units, before)
            before = units[count - 1 : count] if count and units["size"][count - 1] != NO_RECORD_SIZE else before
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
