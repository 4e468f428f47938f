"""Whether the queues confirm what a record says of its own place.

A record's topic, queue id and queue offset have no checksum. But its unit lies in another file and says the same. So a
record is not believed if the unit that it names is not its own, while another unit points to exactly these bytes: then
its header is damaged. If no unit points to it, its unit may be what is lost, and the record is believed.

Safe from any thread; owns nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.queue_unit import UNIT
from penstock.format.sys_flag import enters_queue
from penstock.store.consume_queue import ConsumeQueue, Picks
from penstock.store.consume_queues import ConsumeQueues

if TYPE_CHECKING:
    from penstock.store.dispatch import Dispatcher

_PLACE = struct.Struct(">i8xi4xqqi")
"""Size, queue id, queue offset, physical offset and sysFlag of a record."""

_SLACK = 1 << 20
"""How far a queue's numbers may be ahead of what the log had room for: somebody may have begun a new log."""


class Witness:
    """Asks the queues, as far as they are built."""

    def __init__(self, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._queues = queues
        self._dispatcher = dispatcher

    def denies(self, topic: str, record: bytes) -> bool:
        """Whether a valid record of this topic was put into another place than it says."""
        size, queue_id, queue_offset, offset, sys_flag = _PLACE.unpack_from(record)
        queue = self._queues.find(topic, queue_id)
        if queue is not None and queue.points_to(queue_offset, offset, size):
            return False
        if not enters_queue(sys_flag):
            return False
        if not 0 <= queue_offset <= most_offset(offset):
            return True
        if offset >= self._dispatcher.position or topic in self._dispatcher.deleted:
            return False  # it has no unit, or none yet
        return any(
            queue.max_physical_offset > offset and queue.points_to(queue.first_from(offset), offset, size)
            for queue in self._queues
        )


class Claims:
    """Where units point to already, in the part of the log that some rows come from; looked up when it is needed."""

    def __init__(self, queues: ConsumeQueues, rows: kernels.Rows) -> None:
        self._queues = queues
        self._begin, self._end = int(rows["physical_offset"][0]), int(rows["physical_offset"][-1])
        self._found: tuple[kernels.Longs, kernels.Longs] | None = None

    def _units(self) -> tuple[kernels.Longs, kernels.Longs]:
        """Offsets, in order, and sizes."""
        if self._found is None:
            reaching = [queue for queue in self._queues if queue.max_physical_offset > self._begin]
            units = [queue.units_pointing(self._begin, self._end + 1) for queue in reaching]
            found = np.concatenate([np.empty(0, UNIT), *units])
            found = found[np.argsort(found["offset"], kind="stable")]
            self._found = found["offset"].astype(np.int64), found["size"].astype(np.int64)
        return self._found

    def denied(self, queue: ConsumeQueue | None, rows: kernels.Rows, picks: Picks) -> npt.NDArray[np.bool_]:
        """Which of the rows that name one queue cannot belong there; asked before they get units.

        A queue offset that the log had no room for; or a record that is new to this queue, though a unit of some queue
        points to exactly its bytes.
        """
        offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
        wrong = np.zeros(len(picks), np.bool_)
        if offsets.min() < 0 or offsets.max() > most_offset(int(positions[0])):
            wrong = np.asarray((offsets < 0) | (offsets > most_offset(positions)))
        is_new = offsets >= (0 if queue is None else queue.max_offset)
        if is_new.any():
            claimed, sizes = self._units()
            if len(claimed):
                at = np.minimum(np.searchsorted(claimed, positions), len(claimed) - 1)
                wrong |= is_new & (claimed[at] == positions) & (sizes[at] == rows["size"][picks])
        return wrong


T = TypeVar("T", int, kernels.Longs)


def most_offset(position: T) -> T:
    """The greatest queue offset that a record at a position of the log can have."""
    return position // MIN_RECORD_SIZE + _SLACK
