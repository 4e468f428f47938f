"""Compares a store's queues with those that were built from the log.

Both are opened read-only, one queue at a time. The comparison ignores units of records that retention deleted, bytes
past the queue's end, and tags codes that a unit replaces by an extension address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.errors import BadStore
from penstock.format.queue_unit import MAX_EXT_ADDRESS, NO_RECORD_SIZE, UNIT, UNIT_SIZE, Units
from penstock.format.topics import is_readable_topic
from penstock.store.audit.queue_coverage import QueueName
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import path_below


class QueueFolder:
    """The queues in a folder. Opens one queue at a time, and skips queues that cannot be read."""

    def __init__(
        self, files: Files, folder: Path, file_size: int, selects: Callable[[str, int], bool] | None = None
    ) -> None:
        """`selects`: which queues to include; None for all."""
        self._io = files if files.read_only else OverlayFiles()
        self._folder = folder
        self._file_size = file_size
        self._selects = selects

    def names(self) -> list[QueueName]:
        """Returns the names of the selected queues, including queues whose files cannot be read."""
        names: list[QueueName] = []
        for topic in self._io.names(self._folder) if self._io.is_folder(self._folder) else ():
            folder = path_below(self._folder, topic)
            for name in self._io.names(folder) if self._io.is_folder(folder) else ():
                if name.isascii() and name.isdecimal() and self._io.is_folder(folder / name):
                    names.append((topic, int(name)))
        return [name for name in names if self._selects is None or self._selects(*name)]

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """Yields the readable queues; each is closed before the next one opens."""
        for name in self.names():
            with self.open(*name) as queue:
                if queue is not None:
                    yield queue

    @contextlib.contextmanager
    def open(self, topic: str, queue_id: int) -> Iterator[ConsumeQueue | None]:
        """Opens one queue; yields None if it does not exist or its files cannot be read."""
        queue = ConsumeQueue(self._io, path_below(self._folder, topic, queue_id), topic, queue_id, self._file_size)
        with contextlib.closing(queue):
            usable = False
            with contextlib.suppress(BadStore, OSError):
                queue.load()
                usable = bool(queue.files.files)
            yield queue if usable else None


# -- comparing ----------------------------------------------------------------------------------------------------

_UNITS_AT_ONCE = 1 << 16


def difference(
    old: ConsumeQueue | None, built: ConsumeQueue | None, log_begin: int, damage: Sequence[DamagedRange] = ()
) -> str:
    """Returns what is wrong with the old queue, in a few words; an empty string if the queue can stay.

    `damage`: ranges of the log that dispatch skips.
    """
    if old is None:
        return "" if built is None else "it was missing, or its files could not be read"
    if built is None:
        return "" if not _points_into_log(old, log_begin) else "its units point to records of other queues"
    if old.max_offset != built.max_offset:
        return f"it ended at {old.max_offset} instead of {built.max_offset}"
    first = max(built.files.min_offset, 0) // UNIT_SIZE
    for number in range(first, built.max_offset, _UNITS_AT_ONCE):
        stop = min(number + _UNITS_AT_ONCE, built.max_offset)
        wrong = _wrong(units_between(old, number, stop), units_between(built, number, stop), log_begin, damage)
        if len(wrong):
            return f"its unit {number + int(wrong[0])} was wrong"
    return ""


def _points_into_log(queue: ConsumeQueue, log_begin: int) -> bool:
    low = max(queue.files.min_offset, 0) // UNIT_SIZE
    for number in range(low, queue.max_offset, _UNITS_AT_ONCE):
        units = units_between(queue, number, min(number + _UNITS_AT_ONCE, queue.max_offset))
        if ((units["size"] != NO_RECORD_SIZE) & (units["offset"] >= log_begin)).any():
            return True
    return False


def _wrong(old: Units, built: Units, log_begin: int, damage: Sequence[DamagedRange]) -> npt.NDArray[np.int64]:
    """Returns the positions of old units that are wrong.

    A pre-blank built unit matches any old unit without a record: one that is pre-blank, or that points before the log
    or into `damage`.
    """
    same = (old["offset"] == built["offset"]) & (old["size"] == built["size"])
    same &= (old["tags_code"] == built["tags_code"]) | (old["tags_code"] <= MAX_EXT_ADDRESS)
    no_record = (old["size"] == NO_RECORD_SIZE) | (old["offset"] < log_begin)
    for each in damage:
        no_record |= (old["offset"] >= each.physical_offset) & (old["offset"] < each.end)
    return np.flatnonzero(~same & ~((built["size"] == NO_RECORD_SIZE) & no_record))


def differing_queues(
    old_queues: QueueFolder, built: QueueFolder, log_begin: int, damage: Sequence[DamagedRange]
) -> dict[QueueName, str]:
    """Returns the old queues that differ from the built ones, each with a short reason."""
    wrong = obsolete_queues(old_queues, built.names(), log_begin)
    for queue in built:
        with old_queues.open(queue.topic, queue.queue_id) as old:
            reason = difference(old, queue, log_begin, damage)
        if reason:
            wrong[queue.topic, queue.queue_id] = reason
    return wrong


def obsolete_queues(old_queues: QueueFolder, built: Collection[QueueName], log_begin: int) -> dict[QueueName, str]:
    """Returns the old queues that were not built and should be removed, each with a short reason.

    Leaves out queues of topics that dispatch would not create.
    """
    wrong: dict[QueueName, str] = {}
    for name in old_queues.names():
        if name in built or not is_readable_topic(name[0]):
            continue
        with old_queues.open(*name) as old:
            reason = difference(old, None, log_begin)
            if old is None:
                reason = "its files could not be read, and the log has no records for it"
        if reason:
            wrong[name] = reason
    return wrong


def units_between(queue: ConsumeQueue, first: int, stop: int) -> Units:
    """Returns a copy of the units first … stop - 1, with pre-blank units for those that have no file."""
    pieces: list[Units] = []
    while first < stop:
        page = queue.page(first, stop - first)
        if page is None:
            per_file = queue.files.file_size // UNIT_SIZE
            page = np.zeros(min(stop, first - first % per_file + per_file) - first, UNIT)
            page["size"] = NO_RECORD_SIZE
        pieces.append(page)
        first += len(page)
    return np.concatenate(pieces)
