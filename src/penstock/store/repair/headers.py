"""Records that pass every check and still cannot be what was put: their headers have no checksum.

A flipped bit in a topic, a queue id, a queue offset or a transaction type makes a record of another place. It is told
by three things together: a unit of some queue points exactly to it, that queue's place is empty in the log, and in the
queue that the record names it fits nowhere. Nobody is served such a record, by Penstock at least; it counts as damaged.
A record of which only some of this is true is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from penstock.format import kernels
from penstock.format.placeholder import find_placeholders
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.format.sys_flag import enters_queue
from penstock.format.topics import is_readable_topic
from penstock.store.audit.cover import QueueCover, union, without
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.file_queue import FileQueue
from penstock.store.repair.compare import units_between
from penstock.store.repair.old_queues import OldQueues, QueueName
from penstock.store.repair.survey import Found

BAD_HEADER = "BAD_HEADER"
_UNITS_AT_ONCE = 1 << 16


class Sequences:
    """The queue offsets of a log, by queue, as stretches that follow each other. Fed by the walk."""

    def __init__(self) -> None:
        self.topics: kernels.Topics = kernels.TopicTable()
        self.queues: dict[QueueName, QueueCover] = {}

    def watch(self, data: memoryview, rows: kernels.Rows) -> None:
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            cover = self.queues.setdefault((self.topics.name(topic_id), queue_id), QueueCover())
            offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
            ends = positions + rows["size"][picks]
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(picks)], strict=True):
                first = int(offsets[start])
                cover.add(first, stop - start, int(positions[start]), int(ends[stop - 1]), matched=True)

    def missing(self, name: QueueName, begin: int, end: int) -> list[tuple[int, int]]:
        """What of the queue offsets from `begin` to `end` no record of the log has."""
        return without(begin, end, union(self.queues.get(name, QueueCover()).records))

    def fits(self, name: QueueName, queue_offset: int) -> bool:
        """Whether one record has this place, and a neighbour of it in the log has the place before or behind it."""
        if name[1] < 0 or not is_readable_topic(name[0]) or name not in self.queues:
            return False
        around = [each for each in self.queues[name].records if each.first <= queue_offset < each.end]
        return len(around) == 1 and around[0].end - around[0].first > 1


def restarts(sequences: Sequences, queues: OldQueues) -> dict[QueueName, int]:
    """Queues that begin anew at 0 within the log, and where: their topic was deleted, and made again.

    The queue's own first unit tells, if there is one. Where there is no queue, a record with offset 0 must be followed
    by one with offset 1, and no older offset may come after it.
    """
    found: dict[QueueName, int] = {}
    for name, cover in sequences.queues.items():
        anew = [later for _, later in pairwise(cover.records) if later.first == 0]
        if not anew:
            continue
        with queues.open(*name) as queue:
            first = None if queue is None else queue.unit(0)[0]
        told = [each.physical_first for each in anew if each.physical_first == first]
        behind = cover.records[cover.records.index(anew[-1]) :]
        in_order = all(before.end <= after.first for before, after in pairwise(behind))
        if told:
            found[name] = told[-1]
        elif first is None and anew[-1].end > 1 and in_order:
            found[name] = anew[-1].physical_first
    return found


def misplaced(sequences: Sequences, queues: Iterable[ConsumeQueue], log: FileQueue, log_begin: int) -> list[Found]:
    """The records whose headers are damaged, in log order, as ranges."""
    found: dict[int, Found] = {}
    for queue in queues:
        name = (queue.topic, queue.queue_id)
        for begin, end in sequences.missing(name, max(queue.files.min_offset, 0) // UNIT_SIZE, queue.max_offset):
            for start in range(begin, end, _UNITS_AT_ONCE):
                units = units_between(queue, start, min(start + _UNITS_AT_ONCE, end))
                real = units[(units["size"] != NO_RECORD_SIZE) & (units["offset"] >= log_begin)]
                for offset, size, _ in real.tolist():
                    record = _misplaced_at(sequences, log, offset, size)
                    if record is not None:
                        found[offset] = record
    return [found[offset] for offset in sorted(found)]


def _misplaced_at(sequences: Sequences, log: FileQueue, offset: int, size: int) -> Found | None:
    file = log.find(offset)
    if file is None:
        return None
    at = offset - file.from_offset
    rows, _, _ = kernels.walk(file.map.view, file.from_offset, at, at + 1, True, sequences.topics, 1)
    if not len(rows) or int(rows["size"][0]) != size or find_placeholders(rows, sequences.topics.name):
        return None
    row = rows[0]
    name = (sequences.topics.name(int(row["topic_id"])), int(row["queue_id"]))
    if enters_queue(int(row["sys_flag"])) and sequences.fits(name, int(row["queue_offset"])):
        return None
    return Found(file.from_offset, offset, size, BAD_HEADER, int(row["store_timestamp"]))
