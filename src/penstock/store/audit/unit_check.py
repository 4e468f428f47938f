"""Compares the records of a range of the log with the units of their queues, in bulk.

For each record the unit at its own queue offset is compared, so nothing is sorted and nothing is searched. What is left
over, records without their unit, is kept as stretches; what those units hold instead is looked at later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from penstock.format import kernels
from penstock.format.kernels import Longs, Rows, Topics
from penstock.format.queue_unit import MAX_EXT_ADDRESS, UNIT, UNIT_SIZE
from penstock.format.topics import is_readable_topic
from penstock.store.audit.cover import QueueCover, QueueName
from penstock.store.audit.queue_units import QueueUnits
from penstock.store.queue_ext import QueueExtensions


class UnitCheck:
    """The covers of all queues that a range has records of."""

    def __init__(
        self,
        topics: Topics,
        open_queue: Callable[[QueueName], QueueUnits],
        extensions: QueueExtensions,
        deleted: Mapping[str, int],
    ) -> None:
        self._topics = topics
        self._open_queue = open_queue
        self._extensions = extensions
        self._deleted = deleted
        self._known: dict[tuple[int, int], _Queue | None] = {}
        self.covers: dict[QueueName, QueueCover] = {}
        self.deleted_messages: dict[QueueName, int] = {}

    def check(self, rows: Rows) -> None:
        """Takes the next rows of the range, with their tags codes."""
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            if (topic_id, queue_id) not in self._known:
                self._known[topic_id, queue_id] = self._queue(self._topics.name(topic_id), queue_id)
            queue = self._known[topic_id, queue_id]
            if queue is None:
                continue
            deleted_before = self._deleted.get(queue.name[0], 0)
            if deleted_before:
                kept = rows["physical_offset"][picks] >= deleted_before
                gone = len(picks) - int(np.count_nonzero(kept))
                self.deleted_messages[queue.name] = self.deleted_messages.get(queue.name, 0) + gone
                picks = picks[kept]
            queue.match(rows, picks[rows["queue_offset"][picks] >= 0])

    def _queue(self, topic: str, queue_id: int) -> _Queue | None:
        """None if no queue can have this name."""
        if queue_id < 0 or not is_readable_topic(topic):
            return None
        name = (topic, queue_id)
        return _Queue(name, self._open_queue(name), self._extensions, self.covers.setdefault(name, QueueCover()))


class _Queue:
    def __init__(self, name: QueueName, units: QueueUnits, extensions: QueueExtensions, cover: QueueCover) -> None:
        self.name = name
        self._units = units
        self._extensions = extensions
        self._cover = cover

    def match(self, rows: Rows, picks: Longs) -> None:
        done = 0
        while done < len(picks):
            queue_offset = int(rows["queue_offset"][picks[done]])
            found = self._units.data_at(queue_offset)
            stop = done if found is None else kernels.match_units(*found, rows, picks, done)
            if stop > done:
                self._add(rows, picks[done:stop], matched=True)
            else:
                stop = done + self._leave(rows, picks[done:], found)
            done = stop

    def _leave(self, rows: Rows, picks: Longs, found: tuple[memoryview, int] | None) -> int:
        """Takes the first of these and what follows with the same answer; returns how many."""
        offsets = rows["queue_offset"][picks]
        jumps = np.flatnonzero(np.diff(offsets) != 1)
        count = int(jumps[0]) + 1 if len(jumps) else len(picks)
        first = int(offsets[0])
        if found is None:
            known = self._units.next_known(first)
            if known is not None:
                count = min(count, known - first)
            self._add(rows, picks[:count], matched=False)
            return count
        data, base = found
        count = min(count, len(data) // UNIT_SIZE - (first - base))
        units = np.frombuffer(bytes(data[(first - base) * UNIT_SIZE :][: count * UNIT_SIZE]), UNIT)
        right = self._compare(rows[picks[:count]], units)
        changes = np.flatnonzero(right != right[0])
        count = int(changes[0]) if len(changes) else count
        self._add(rows, picks[:count], matched=bool(right[0]))
        return count

    def _compare(self, rows: Rows, units: np.ndarray) -> kernels.Bools:
        """Which units are right; an address of the extension file stands for the tags code that is there."""
        codes = units["tags_code"].astype(np.int64)
        if (codes <= MAX_EXT_ADDRESS).any():
            codes = self._extensions.resolve(*self.name, codes)
        unknown = codes <= MAX_EXT_ADDRESS
        self._cover.unresolved += int(np.count_nonzero(unknown))
        right = (units["offset"] == rows["physical_offset"]) & (units["size"] == rows["size"])
        return np.asarray(right & ((codes == rows["tags_code"]) | unknown), np.bool_)

    def _add(self, rows: Rows, picks: Longs, *, matched: bool) -> None:
        first, last = rows[picks[0]], rows[picks[-1]]
        self._cover.add(
            int(first["queue_offset"]),
            len(picks),
            int(first["physical_offset"]),
            int(last["physical_offset"]) + int(last["size"]),
            matched=matched,
        )
