"""The units of one range, by queue, on their way into the staged queue files.

A unit's file and its place in it follow from its own queue offset, so ranges need not know of each other and nothing is
sorted. Files are made as they are needed, sparse, by whichever range comes first; several processes may store into one,
each its own units. A range that is built again stores the same bytes. A kill leaves a file with holes, which nobody
looks into before all ranges are done.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.topics import is_readable_topic
from penstock.store.audit.cover import Stretch
from penstock.store.file_queue import file_name
from penstock.store.files import FileMap, Files
from penstock.store.rebuilding.plan import Task
from penstock.store.witness import most_offset

_MOST_RUNS: Final = 64


class QueueRuns(msgspec.Struct):
    """The records of one queue in a range, in log order, as runs of queue offsets that follow each other."""

    topic: str
    queue_id: int
    runs: list[Stretch] = []
    too_many: bool = False
    """Whether there were so many that they are not told: the queue must be built in log order."""


class Units:
    """Collects what a walk finds. One thread."""

    def __init__(self, task: Task, topics: kernels.Topics) -> None:
        self._task = task
        self._topics = topics
        self.queues: dict[tuple[str, int], QueueRuns] = {}
        self._units: dict[tuple[str, int], list[bytearray]] = {}
        """Those of each run."""

    def take(self, rows: kernels.Rows) -> None:
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            topic = self._topics.name(topic_id)
            if not self._task.selects(topic, queue_id) or queue_id < 0 or not is_readable_topic(topic):
                continue
            offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
            if topic in self._task.deleted or offsets.min() < 0 or offsets.max() > most_offset(int(positions[0])):
                possible = (offsets >= 0) & (offsets <= most_offset(positions))
                picks = picks[possible & (positions >= self._task.deleted.get(topic, 0))]
            if len(picks):
                self._add(topic, queue_id, rows, picks)

    def _add(self, topic: str, queue_id: int, rows: kernels.Rows, picks: kernels.Longs) -> None:
        name = topic, queue_id
        known = self.queues.setdefault(name, QueueRuns(topic, queue_id))
        if known.too_many:
            return
        units = self._units.setdefault(name, [])
        offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
        ends = positions + rows["size"][picks]
        breaks = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(picks)]
        if len(known.runs) + len(breaks) > _MOST_RUNS:
            known.too_many = True
            known.runs.clear()
            units.clear()
            return
        for start, stop in pairwise(breaks):
            first, end = int(offsets[start]), int(offsets[stop - 1]) + 1
            kernels.append_units(made := bytearray((stop - start) * UNIT_SIZE), 0, rows, picks[start:stop])
            last = known.runs[-1] if known.runs else None
            if last is not None and last.end == first:
                last.end, last.physical_end = end, int(ends[stop - 1])
                units[-1] += made
            else:
                known.runs.append(Stretch(first, end, int(positions[start]), int(ends[stop - 1])))
                units.append(made)

    def place(self, files: Files, folder: Path) -> None:
        """Stores everything into the files below a folder. Raises StoreFailed."""
        for name, known in self.queues.items():
            for run, units in zip(known.runs, self._units[name], strict=True):
                store_units(files, folder / known.topic / str(known.queue_id), self._task.queue_file_size, run, units)


def store_units(files: Files, folder: Path, file_size: int, run: Stretch, units: bytearray) -> None:
    """Stores the units of a run into the files of its queue. Raises StoreFailed."""
    position, left = run.first * UNIT_SIZE, memoryview(units)
    while left:
        base = position - position % file_size
        count = min(base + file_size - position, len(left))
        with contextlib.closing(open_sparse(files, folder / file_name(base), file_size)) as file:
            file.write(position - base, left[:count])
        position, left = position + count, left[count:]


def open_sparse(files: Files, path: Path, size: int) -> FileMap:
    """A file, made if it is not there, perhaps by others meanwhile. Only to `write` into. Raises StoreFailed."""
    if not files.exists(path):
        files.make_folder(path.parent)
        try:
            files.create_sparse(path, size)
        except StoreFailed:
            if not files.exists(path):
                raise
    return files.open_map(path)
