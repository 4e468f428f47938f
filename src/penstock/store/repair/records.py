"""Faults of records that pass every check of a single record. A repair finds them by comparing records.

- An impossible store time: before 2010, or more than a day in the future. If a single record has one between records
  with possible times, a bit was flipped: the record stays and gets the time of the record before it. If several records
  in a row have one, the clock was wrong, and nothing is changed.
- A damaged header. Headers have no checksum, so a flipped bit in a topic, a queue id, a queue offset or a transaction
  type makes the record belong to another queue or offset. The record counts as damaged if all three hold: a unit of
  some queue points exactly to it, no record in the log has the queue offset of that unit, and the record does not fit
  the queue that it names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from penstock.format import kernels
from penstock.format.damage_placeholder import find_placeholders
from penstock.format.kernels import Rows
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.format.record_layout import LONG, store_timestamp_at
from penstock.format.scan import row_at
from penstock.format.sys_flag import enters_queue
from penstock.format.topics import is_readable_queue
from penstock.store.audit.queue_coverage import QueueCover, QueueName, union, without
from penstock.store.audit.records import DAY_MS, EARLIEST_MS
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.rebuild.compare_queues import units_between
from penstock.store.rebuild.log_scan import DamagedFileRange


class WrongTime(NamedTuple):
    """A record with an impossible store time, and the time that replaces it."""

    physical_offset: int
    size: int
    time_at: int
    """Position of the store time in the record, in bytes."""
    stored: int
    corrected: int


class WrongTimes:
    """Collects impossible store times during a scan. `isolated` returns those that can be corrected."""

    def __init__(self, now: int) -> None:
        self._latest = now + DAY_MS
        self._run: list[WrongTime] = []
        self._before = 0
        self._isolated: list[WrongTime] = []

    def on_rows(self, data: memoryview, rows: Rows) -> None:
        times = rows["store_timestamp"]
        wrong = (times < EARLIEST_MS) | (times > self._latest)
        if not self._run and not wrong.any():
            self._before = int(times[-1])
            return
        for row, is_wrong in zip(rows, wrong.tolist(), strict=True):
            time = int(row["store_timestamp"])
            if is_wrong:
                at = store_timestamp_at(int(row["sys_flag"]))
                self._run.append(WrongTime(int(row["physical_offset"]), int(row["size"]), at, time, self._before))
                continue
            self._end_run(time)
            self._before = time

    def isolated(self) -> list[WrongTime]:
        """Returns the wrong times of single records. Callers must finish the scan first."""
        self._end_run(0)
        return self._isolated

    def _end_run(self, after: int) -> None:
        if len(self._run) == 1 and (self._before or after):
            (alone,) = self._run
            self._isolated.append(alone._replace(corrected=alone.corrected or after))
        self._run.clear()


def set_time(file: MappedFile, wrong: WrongTime) -> None:
    """Writes the corrected time into the record."""
    LONG.pack_into(file.map.view, wrong.physical_offset - file.from_offset + wrong.time_at, wrong.corrected)


# -- damaged headers ----------------------------------------------------------------------------------------------

BAD_HEADER = "BAD_HEADER"
_UNITS_AT_ONCE = 1 << 16


class QueueSequences:
    """Collects, during a scan, the queue offsets in the log, by queue, as runs."""

    def __init__(self) -> None:
        self.topics: kernels.Topics = kernels.TopicTable()
        self.queues: dict[QueueName, QueueCover] = {}

    def on_rows(self, data: memoryview, rows: kernels.Rows) -> None:
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            cover = self.queues.setdefault((self.topics.name(topic_id), queue_id), QueueCover())
            offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
            ends = positions + rows["size"][picks]
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(picks)], strict=True):
                first = int(offsets[start])
                cover.add(first, stop - start, int(positions[start]), int(ends[stop - 1]), matched=True)

    def missing(self, name: QueueName, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the queue offsets in [begin, end) that no record of the queue has, as ranges."""
        return without(begin, end, union(self.queues.get(name, QueueCover()).records))

    def fits(self, name: QueueName, queue_offset: int) -> bool:
        """Whether exactly one record of the queue has this queue offset, within a run of at least two records."""
        if not is_readable_queue(*name) or name not in self.queues:
            return False
        around = [each for each in self.queues[name].records if each.first <= queue_offset < each.end]
        return len(around) == 1 and around[0].end - around[0].first > 1


def find_misplaced(
    sequences: QueueSequences, queues: Iterable[ConsumeQueue], log: MappedFileQueue, log_begin: int
) -> list[DamagedFileRange]:
    """Returns the ranges of records with damaged headers, in log order."""
    misplaced: dict[int, DamagedFileRange] = {}
    for queue in queues:
        name = (queue.topic, queue.queue_id)
        for begin, end in sequences.missing(name, max(queue.files.min_offset, 0) // UNIT_SIZE, queue.max_offset):
            for start in range(begin, end, _UNITS_AT_ONCE):
                units = units_between(queue, start, min(start + _UNITS_AT_ONCE, end))
                real = units[(units["size"] != NO_RECORD_SIZE) & (units["offset"] >= log_begin)]
                for offset, size, _ in real.tolist():
                    record = _misplaced_at(sequences, log, offset, size)
                    if record is not None:
                        misplaced[offset] = record
    return [misplaced[offset] for offset in sorted(misplaced)]


def _misplaced_at(sequences: QueueSequences, log: MappedFileQueue, offset: int, size: int) -> DamagedFileRange | None:
    file = log.find(offset)
    if file is None:
        return None
    at = offset - file.from_offset
    rows = row_at(file.map.view, file.from_offset, at, check_crc=True, topics=sequences.topics)
    if not len(rows) or int(rows["size"][0]) != size or find_placeholders(rows, sequences.topics.name):
        return None
    row = rows[0]
    name = (sequences.topics.name(int(row["topic_id"])), int(row["queue_id"]))
    if enters_queue(int(row["sys_flag"])) and sequences.fits(name, int(row["queue_offset"])):
        return None
    return DamagedFileRange(file.from_offset, offset, size, BAD_HEADER, int(row["store_timestamp"]))
