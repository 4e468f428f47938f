"""Showing a store that another process is writing to: making one moment of it out of files that keep changing.

A view keeps its own changes in memory, but pages that it has not changed still show what the writer does to them. The
log needs no help, because nothing before its end ever changes; but what looked broken while it was walked may have been
on its way, and has to be judged again. The index is changed in place: what its counts did not cover when it was looked
at is taken out of the slots, and slots and header are copied so that they stay as they are.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.index_layout import HEADER_SIZE, SLOT_SIZE
from penstock.format.rows import Reason
from penstock.format.scan import is_unpublished
from penstock.store.damage import DamagedRange
from penstock.store.file_queue import FileQueue
from penstock.store.index_file import IndexFile

_MOST_UNPUBLISHED = 64 << 20
"""No record is larger; a range that is was damaged, or stands in for a file that is missing."""


def settle_log(log: FileQueue, end: int, damage: list[DamagedRange]) -> tuple[int, list[DamagedRange]]:
    """The log's end and its damage, as they are by now: what has been written meanwhile is no damage.

    A batch whose first record is not published yet hides all of its records: there the log ends.
    """
    real: list[DamagedRange] = []
    for found in damage:
        file = log.find(found.physical_offset)
        assert file is not None, "damage lies in a file of the log"
        data, base, at = file.map.view, file.from_offset, found.physical_offset - file.from_offset
        reason = kernels.check_record(data, at, base, True)
        if reason in (Reason.STOP, Reason.BLANK):
            continue
        may_be_on_its_way = reason == Reason.UNWRITTEN and found.size <= _MOST_UNPUBLISHED
        if may_be_on_its_way and is_unpublished(data, base, at, at + found.size):
            return found.physical_offset, real
        real.append(found)
    return end, real


def freeze_index(file: IndexFile) -> None:
    """Makes an index file in a view stay as it is: with the items that its header counted when this began."""
    header, count, slots = file.header, file.count, file.geometry.slots
    view = file.map.view[HEADER_SIZE : HEADER_SIZE + SLOT_SIZE * slots]
    newest = np.frombuffer(bytes(view), ">i4").copy()
    late = newest >= count
    while late.any():
        for slot in np.flatnonzero(late).tolist():
            number = int(newest[slot])
            previous = file.item(number).previous
            newest[slot] = previous if previous < number else 0
        late = newest >= count
    view[:] = newest.tobytes()
    view.release()
    if count > 1:
        header = msgspec.structs.replace(header, end_physical_offset=file.item(count - 1).physical_offset)
    file.set_header(header)
