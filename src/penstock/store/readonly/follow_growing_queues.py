"""Follows the ends of a store's queues in its files, cheaply and without recovery: for readers that poll.

The store's owner adds a unit to a queue file once consumers may see the record; under SYNC_FLUSH, once the record is on
disk. So a tail reads only records that units point to. The last unit may be a torn write, so a queue ends after the
last unit whose record is valid in the log. A batch that a sink is still appending is hidden.

A refresh compares the mapped files with the files on disk, because a start may truncate queues, and a topic may be
deleted and created again under the same name. Changes nothing on disk. Not thread-safe.

If the store was not closed cleanly, the queues may lack records of the log that the next start would dispatch. The tail
does not show those records. `is_cleanly_closed` excludes this case.

Keys are found in the index files as they are. The owner appends a record's keys after its unit, so what lies behind the
last indexed record is returned as well. A record counts only if its own unit points to it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT, UNIT_SIZE, Units
from penstock.format.record_layout import HEAD, LONG, head_of, physical_offset_of, size_and_magic, store_timestamp_at
from penstock.store.consume_queue import NO_UNIT, ConsumeQueue, count_valid, unit_pages, view_units
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.dispatch_checkpoint import read_state
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout, path_below
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.index import Index
from penstock.store.readonly.infer_file_sizes import fit_to_files
from penstock.store.readonly.view import FilesView, MapCache
from penstock.store.settings import Settings
from penstock.store.sink.journal import pending_start

_UNITS_AT_ONCE: Final = 65_536


class QueueTail:
    """One queue: its first and last queue offset, and its units."""

    def __init__(self, queue: ConsumeQueue, log: FilesView) -> None:
        self._queue = queue
        self._log = log
        self._io = OverlayFiles()
        self._file_size = queue.files.file_size
        self._checked = -1
        self._last = b""
        self._files: tuple[object, ...] = ()
        """The (device, inode) of the first and the last file when they were mapped."""
        self.max_offset = 0
        self.record_end = 0
        """Physical offset at which the last unit's record ends; 0 if no unit has a record."""

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
        """Returns a copy of at most `most` units of one file, from `queue_offset` on; None if there are none."""
        return self._queue.page(queue_offset, min(most, self.max_offset - queue_offset))

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Returns (physical offset, size, tags code); NO_UNIT if the queue does not have the unit (any more)."""
        return self._queue.unit(queue_offset) if queue_offset < self.max_offset else NO_UNIT

    def unit_files(self) -> list[kernels.UnitFile]:
        """Returns the queue's files up to `max_offset`. Valid until the next refresh."""
        end = self.max_offset * UNIT_SIZE
        return [
            kernels.UnitFile(
                self.queue_id, file.from_offset // UNIT_SIZE, min(file.wrote, end - file.from_offset), file.map.view
            )
            for file in self._queue.files.files
            if file.from_offset < end
        ]

    def count_after(self, physical_offset: int) -> int:
        """Returns the number of units behind the last one that points at or before `physical_offset`."""
        return self.max_offset - min(self._queue.first_from(physical_offset + 1), self.max_offset)

    def refresh(self, log_min: int, *, listing: bool) -> None:
        """Updates `min_offset` and `max_offset`. With `listing`, also detects a replaced first or last file."""
        last = self._queue.files.last
        if last is None or not self._is_unchanged(last) or (listing and self._ends_on_disk() != self._files):
            self._load()
        else:
            self._grow(last)
            if last.full and self._io.exists(last.path.with_name(file_name(last.from_offset + last.size))):
                self._load()
        if listing or self._checked < 0:
            self._queue.correct_min_offset(log_min)
        if self._queue.max_offset != self._checked:
            self.max_offset = self._count_confirmed()
            self.record_end = self._find_record_end()
            self._checked = self._queue.max_offset if self.max_offset == self._queue.max_offset else -1

    def cut(self, limit: int) -> None:
        """Hides units that point at or after the physical offset `limit`, until the next refresh."""
        self.max_offset = min(self.max_offset, self._queue.count_before(limit))
        self.record_end = self._find_record_end()
        self._checked = -1

    def _load(self) -> None:
        """Maps the queue's files again. A queue without a folder becomes empty."""
        self._queue.close()
        self._checked, self._last = -1, b""
        self._files = ()
        folder = self._queue.files.folder
        try:
            identities = {folder / name: self._io.identity(folder / name) for name in self._io.names(folder)}
            self._queue = self._loaded()
            self._files = tuple(identities.get(path) for path in self._end_paths())
        except FileNotFoundError:
            if self._io.exists(folder):  # a file was deleted during the load
                raise
        self._remember()

    def _loaded(self) -> ConsumeQueue:
        """Loads the queue with a new overlay, because an overlay does not show again a file that was removed in it."""
        queue = ConsumeQueue(OverlayFiles(), self._queue.files.folder, self.topic, self.queue_id, self._file_size)
        queue.load()
        return queue

    def _end_paths(self) -> tuple[Path, ...]:
        files = self._queue.files
        return tuple(file.path for file in (files.first, files.last) if file is not None)

    def _ends_on_disk(self) -> tuple[object, ...]:
        """Returns (device, inode) of the first and the last file now on disk. They differ if a file was replaced."""
        return tuple(self._io.identity(path) for path in self._end_paths())

    def _is_unchanged(self, last: MappedFile) -> bool:
        """Whether the last unit has the same bytes as at the last refresh. If not, a start has truncated the queue."""
        position = last.wrote - UNIT_SIZE
        return position < 0 or bytes(last.map.view[position : position + UNIT_SIZE]) == self._last

    def _remember(self) -> None:
        last = self._queue.files.last
        position = -1 if last is None else last.wrote - UNIT_SIZE
        self._last = b"" if last is None or position < 0 else bytes(last.map.view[position : position + UNIT_SIZE])

    def _grow(self, last: MappedFile) -> None:
        """Extends the queue by the new valid units of its last file."""
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

    def _count_confirmed(self) -> int:
        """Returns the queue offset after the last unit whose record is valid in the log."""
        count = self._queue.max_offset
        while count > self._queue.min_offset:
            offset, size, _ = self._queue.unit(count - 1)
            if size == NO_RECORD_SIZE or self._has_record(offset, size):
                return count
            count -= 1
        return count

    def _find_record_end(self) -> int:
        for number in range(self.max_offset - 1, self.min_offset - 1, -1):
            offset, size, _ = self._queue.unit(number)
            if size != NO_RECORD_SIZE:
                return offset + size
        return 0

    def _has_record(self, offset: int, size: int) -> bool:
        file = self._log.find(offset)
        if file is None:
            return True  # deleted by retention, or missing: not a torn unit
        at, data = offset - file.from_offset, file.map.view
        if at + size > file.size or size_and_magic(data, at)[0] != size:
            return False
        return kernels.check_record(data, at, file.from_offset, False) == Reason.STOP

    def close(self) -> None:
        self._queue.close()


_LIST_EVERY_S: Final = 0.2
_TRIES: Final = 3
_MAX_UNINDEXED: Final = 10_000
"""The most messages of a topic behind the end of the index among which a search by key does not use the index."""


class StoreTail:
    """The queues of one store, as they were on disk at the last `refresh`."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        self._layout = layout
        self._io = OverlayFiles()
        self._given = settings
        self.settings = settings
        """The given settings, with the sizes of the store's files once files exist."""
        self._index_problem = ""
        self._log = FilesView(layout.commit_log, settings.mapped_file_size_commit_log)
        self._listed = float("-inf")
        self._folders: dict[Path, tuple[int, int] | None] = {}
        """The states of the folders of queues and topics before they were listed last."""
        self._noted = 0
        self.queues: dict[tuple[str, int], QueueTail] = {}
        self.log_min = 0
        self.log_end = 0
        """Physical offset at which the readable log ends: all records visible to consumers lie before it."""
        self.refresh()

    def refresh(self) -> None:
        """Updates all queues. Cheap if there are no new units. Once units exist, lists folders every 0.2 s.

        Lists them at once if a topic or a queue was added. Raises BadStore if files are still invalid after three
        attempts.
        """
        now = time.monotonic()
        listing = now - self._listed >= _LIST_EVERY_S or any(
            self._io.folder_state(folder) != state for folder, state in self._folders.items()
        )
        if listing:
            self._listed = now
        pending_before = pending_start(self._io, self._layout)
        for tries_left in reversed(range(_TRIES)):
            try:
                self._refresh_queues(listing=listing or not self._knows_sizes)
                break
            except (BadStore, FileNotFoundError):  # files may have been added or deleted meanwhile
                if not tries_left:
                    raise
        # Checked before and after: a batch may have been rolled back in between, with units that were seen.
        pending = [start for start in (pending_before, pending_start(self._io, self._layout)) if start is not None]
        for queue in self.queues.values() if pending else ():
            queue.cut(min(pending))
        seen = max((queue.record_end for queue in self.queues.values()), default=0)
        self.log_end = max(seen, 0 if pending else self._noted, self.log_min)

    @property
    def _knows_sizes(self) -> bool:
        """Whether any unit was seen. Until then, the file sizes may still change."""
        return any(queue.max_offset for queue in self.queues.values())

    def _refresh_queues(self, *, listing: bool) -> None:
        if listing:
            self._list()
        for queue in self.queues.values():
            queue.refresh(self.log_min, listing=listing)

    def _list(self) -> None:
        self._log.close()  # a store may have been recreated, with other files of the same names
        if not self._knows_sizes:
            self._adopt_file_sizes()
        self.log_min = next(iter(self._log.offsets()), 0)
        parent = self._layout.consume_queue
        self._folders = {parent: self._io.folder_state(parent)}
        for topic in self._io.names(parent):
            folder_of_topic = path_below(parent, topic)
            self._folders[folder_of_topic] = self._io.folder_state(folder_of_topic)
        folder = ConsumeQueues(self._io, self._layout.consume_queue, self.settings.mapped_file_size_consume_queue)
        existing = {(queue.topic, queue.queue_id): queue for queue in folder.find_all()}
        for deleted in self.queues.keys() - existing.keys():
            self.queues.pop(deleted).close()
        for new in existing.keys() - self.queues.keys():
            self.queues[new] = QueueTail(existing[new], self._log)
        state = read_state(self._io, self._layout.dispatched)
        self._noted = 0 if state is None else min(state.position, state.flushed)  # prepared records have no units

    def _adopt_file_sizes(self) -> None:
        """Adopts the sizes of the files now on disk, and starts without queues. An empty store has no sizes yet."""
        self.settings, self._index_problem = fit_to_files(self._given, self._io, self._layout)
        for queue in self.queues.values():
            queue.close()
        self.queues.clear()
        self._log = FilesView(self._layout.commit_log, self.settings.mapped_file_size_commit_log)

    def store_timestamp(self, offset: int) -> int:
        """Returns the store time (epoch ms) in the header of the record at `offset`; -1 if no record begins there."""
        file = self._log.find(offset) if offset >= 0 else None
        if file is None:
            return -1
        at, data = offset - file.from_offset, file.map.view
        if at + HEAD.size > file.size or physical_offset_of(data, at) != offset:
            return -1
        at += store_timestamp_at(head_of(data, at).sys_flag)
        return int(LONG.unpack_from(data, at)[0]) if at + LONG.size <= file.size else -1

    # -- keys ------------------------------------------------------------------------------------------------

    def find_keys(self, topic: str, keys: Sequence[str]) -> list[int] | None:
        """Returns the physical offsets of the topic's messages that may have one of the keys, sorted.

        These are the messages that have one, and those that the index does not contain yet. Does not check CRCs.
        Returns None if the index files cannot tell: some are missing, have another size, or end too early.
        """
        state = read_state(self._io, self._layout.dispatched)
        if self._index_problem or (state is not None and state.index_end is None):
            return None
        index = Index(self._io, self._layout.index, self.settings.index_geometry, lambda: 0)
        try:
            names = index.names()
            if any(self._io.size(index.folder / name) != index.geometry.file_size for name in names):
                return None
            index.load(names)
        except (BadStore, FileNotFoundError):  # a file was deleted meanwhile, or a foreign file is there
            return None
        with closing(index):
            end = index.end_offset
            queues = [queue for (name, _), queue in sorted(self.queues.items()) if name == topic]
            behind = {queue: queue.count_after(end) for queue in queues}
            if sum(behind.values()) > _MAX_UNINDEXED or (state is not None and end < (state.index_end or 0)):
                return None
            found = self._find_in(index, topic, list(keys), [file for queue in queues for file in queue.unit_files()])
        if found is None:
            return None
        for queue, count in behind.items():
            for _, units in unit_pages(queue, queue.max_offset - count, queue.max_offset):
                found.update(units["offset"][units["size"] != NO_RECORD_SIZE].tolist())
        return sorted(offset for offset in found if self.log_min <= offset < self.log_end)

    def _find_in(self, index: Index, topic: str, keys: list[str], units: list[kernels.UnitFile]) -> set[int] | None:
        """Returns the physical offsets of the records with one of the keys; None if a file of the log is missing."""
        size, end = self._log.file_size, self.log_end
        with MapCache(self._io) as maps:
            log = FilesView(self._layout.commit_log, size, maps)
            files = [log.find_any_size(begin) for begin in range(self.log_min, end, size)]
            logs = [file.map.view for file in files if file is not None and file.size == size]
            if len(logs) < len(files):
                return None
            geometry = index.geometry
            tables: list[kernels.Buffer] = [file.map.view for file in index.files]
            _, offsets, confirmed = kernels.find_keys(
                keys, topic.encode("utf-8", "surrogateescape"), tables, geometry.slots, geometry.items, logs,
                self.log_min, size, end, 0, 2**63 - 1, False, units,
            )  # fmt: skip
            return set(offsets[confirmed].tolist())

    # -- a store that is not open ---------------------------------------------------------------------------

    @property
    def is_cleanly_closed(self) -> bool:
        """Whether log and queues end where the last clean close left them. Then a start would serve the same messages.

        Compares these ends with the snapshot of that close in `penstock/dispatched.json`. Does not check records before
        the end of the log.
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
        """Whether no log file is missing and nothing was written after the log's end."""
        size, end = self._log.file_size, self.log_end
        offsets = self._log.offsets()
        if offsets != list(range(self.log_min, max(end, self.log_min + len(offsets) * size), size)):
            return False
        tails = (max(offset, end) for offset in offsets if offset + size > end)  # files may be preallocated
        return not any(self._has_data_at(position) for position in tails)

    def _has_data_at(self, position: int) -> bool:
        """Whether any of the 8 bytes at a physical offset is not zero; True if the log file is missing."""
        file = self._log.find(position)
        return file is None or any(file.map.view[position - file.from_offset :][:8])

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()
        self._log.close()
