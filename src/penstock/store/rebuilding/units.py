"""The units of one range, by queue, on their way into the staged queue files.

A unit's file and its place in it follow from its own queue offset, so ranges need not know of each other and nothing is
sorted. Files are made as they are needed, sparse, by whichever range comes first; several processes may store into one,
each its own units. A range that is built again stores the same bytes. A kill leaves a file with holes, which nobody
looks into before all ranges are done.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.queue_unit import UNIT_SIZE
from penstock.format.topics import is_readable_topic
from penstock.store.audit.cover import Stretch
from penstock.store.file_map import FileMap
from penstock.store.file_queue import file_name
from penstock.store.files import Files
from penstock.store.rebuilding.plan import Task
from penstock.store.witness import most_offset

_MOST_RUNS: Final = 64
_NEVER: Final = 2**63 - 1


class QueueRuns(msgspec.Struct):
    """The records of one queue in a range, in log order, as runs of queue offsets that follow each other."""

    topic: str
    queue_id: int
    runs: list[Stretch] = []
    too_many: bool = False
    """Whether there were so many that they are not told: the queue must be built in log order."""


def since(task: Task, topic: str, queue_id: int) -> int:
    """From which position on the records of a queue get units; behind every log if they get none."""
    if not task.selects(topic, queue_id) or queue_id < 0 or not is_readable_topic(topic):
        return _NEVER
    return task.deleted.get(topic, 0)


def unit_builder(task: Task) -> kernels.RangeBuilder:
    """What makes units and keys for a task while it walks the log."""
    slack = most_offset(0)
    asked = partial(since, task)
    return kernels.RangeBuilder(
        kernels.TopicTable(), task.delay_levels, task.index is not None, asked, slack, _MOST_RUNS
    )


def runs_of(part: kernels.QueuePart) -> QueueRuns:
    topic, queue_id, runs, _ = part
    return QueueRuns(topic, queue_id, [Stretch(*run) for run in runs], not runs)


def place_units(files: Files, folder: Path, file_size: int, part: kernels.QueuePart) -> None:
    """Stores the units of a queue into its files below a folder. Raises StoreFailed."""
    topic, queue_id, runs, units = part
    for run in runs:
        size = (run[1] - run[0]) * UNIT_SIZE
        _store(files, folder / topic / str(queue_id), file_size, run[0] * UNIT_SIZE, units[:size])
        units = units[size:]


def _store(files: Files, folder: Path, file_size: int, position: int, left: memoryview) -> None:
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
            files.create_sparse(path, size, synced=False)  # it is when it is finished
        except StoreFailed:
            if not files.exists(path):
                raise
    return files.open_map(path)
