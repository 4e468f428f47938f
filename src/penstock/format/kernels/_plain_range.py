"""The plain twin's walk over a range of the log that makes units and keys as it goes. Reference for `_range.pxi`."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernels._plain_columns import TopicTable, append_units, group_rows, index_keys, tag_codes
from penstock.format.kernels._plain_log import first_torn, walk
from penstock.format.kernels._types import Buffer, QueuePart, Rows, UnitRun
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.rows import Reason
from penstock.format.sys_flag import TRANSACTION_MASK, TRANSACTION_ROLLBACK

_KEY = struct.Struct("<iqq")
_Name = tuple[int, int]


class RangeBuilder:
    """Walks the log and makes units by queue, keys, and a list of what was rolled back. One thread.

    `since` is asked once for each queue from which position on its records get units. Queue offsets that a log of that
    length had no room for, more than `slack` ahead, get none. Nor does a queue with more than `most_runs` runs of queue
    offsets that follow each other.
    """

    def __init__(
        self,
        topics: TopicTable,
        delay_levels: tuple[int, ...],
        with_keys: bool,
        since: Callable[[str, int], int],
        slack: int,
        most_runs: int,
    ) -> None:
        self._topics = topics
        self._delay_levels = delay_levels
        self._with_keys = with_keys
        self._ask_since = since
        self._slack = slack
        self._most_runs = most_runs
        self._since: dict[_Name, int] = {}
        self._runs: dict[_Name, list[UnitRun]] = {}
        self._units: dict[_Name, bytearray] = {}
        self._spoilt: set[_Name] = set()
        self._keys = bytearray()
        self.rolled_back: list[tuple[int, int, str]] = []
        """(physical offset, size, topic) of the records of ROLLBACK type."""
        self.records = 0

    def take(self, data: Buffer, base: int, start: int, stop: int) -> tuple[int, int, int, int]:
        """Takes the valid records that start in [start, stop), CRC checked.

        Returns the position after them, why it ends there, how many there are, and the size of the record at that
        position if it has lost a sector (`first_torn`), else 0.
        """
        rows, reached, reason = walk(data, base, start, stop, True, self._topics, max(stop - start, 0))
        torn, torn_size = first_torn(data, base, rows), 0
        if torn >= 0:
            reached, reason = int(rows["physical_offset"][torn]) - base, int(Reason.UNWRITTEN)
            torn_size = int(rows["size"][torn])
            rows = rows[:torn]
        tag_codes(data, base, rows, self._delay_levels)
        for topic_id, queue_id, picks in group_rows(rows):
            for number in picks.tolist():
                self._add_unit((topic_id, queue_id), rows, number)
        for number in np.flatnonzero(rows["sys_flag"] & TRANSACTION_MASK == TRANSACTION_ROLLBACK).tolist():
            row = rows[number]
            topic = self._topics.name(int(row["topic_id"]))
            self.rolled_back.append((int(row["physical_offset"]), int(row["size"]), topic))
        if self._with_keys:
            for key_hash, number in zip(*(each.tolist() for each in index_keys(data, base, rows)), strict=True):
                row = rows[number]
                self._keys += _KEY.pack(key_hash, int(row["physical_offset"]), int(row["store_timestamp"]))
        self.records += len(rows)
        return reached, reason, len(rows), torn_size

    def _add_unit(self, name: _Name, rows: Rows, number: int) -> None:
        if name not in self._since:
            self._since[name] = self._ask_since(self._topics.name(name[0]), name[1])
        offset, position = int(rows["queue_offset"][number]), int(rows["physical_offset"][number])
        is_possible = 0 <= offset <= position // MIN_RECORD_SIZE + self._slack
        if name in self._spoilt or position < self._since[name] or not is_possible:
            return
        end = position + int(rows["size"][number])
        runs, units = self._runs.setdefault(name, []), self._units.setdefault(name, bytearray())
        if runs and runs[-1][1] == offset:
            first, _, physical_first, _ = runs[-1]
            runs[-1] = first, offset + 1, physical_first, end
        elif len(runs) < self._most_runs:
            runs.append((offset, offset + 1, position, end))
        else:
            self._spoilt.add(name)
            runs.clear()
            units.clear()
            return
        units += bytes(UNIT_SIZE)
        append_units(units, len(units) - UNIT_SIZE, rows, np.array([number]))

    def queues(self) -> list[QueuePart]:
        """(topic, queue id, runs, units) of each queue with records, by first appearance; the units are given away.

        A run is (first and end of its queue offsets, physical offset of its first record, and where its last one
        ends); its units follow those of the run before it. No runs: there were too many.
        """
        return [
            (self._topics.name(name[0]), name[1], self._runs[name], memoryview(self._units.pop(name)))
            for name in self._since
            if name in self._runs
        ]

    def key_table(self) -> memoryview:
        """The keys, 20 bytes each in log order: hash, physical offset and store time, little-endian; given away."""
        given, self._keys = self._keys, bytearray()
        return memoryview(given)
