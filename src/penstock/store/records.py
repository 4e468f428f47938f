"""Whether the queues confirm what a record says of its own place.

A record's topic, queue id and queue offset have no checksum. But its unit lies in another file and says the same. So a
record is not believed if the unit that it names is not its own, while another unit points to exactly these bytes: then
its header is damaged. If no unit points to it, its unit may be what is lost, and the record is believed.

Safe from any thread; owns nothing.


Reading one record from the log, and believing it only after checking it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.constants import MESSAGE_MAGIC_V2, MIN_RECORD_SIZE
from penstock.format.queue_unit import UNIT
from penstock.format.record import Record, decode_record
from penstock.format.rows import Reason
from penstock.format.sys_flag import enters_queue, host_sizes
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, Picks
from penstock.store.consume_queues import ConsumeQueues

if TYPE_CHECKING:
    from penstock.store.dispatch import Dispatcher

_PLACE = struct.Struct(">i8xi4xqqi")
"""Size, queue id, queue offset, physical offset and sysFlag of a record."""
_SLACK = 1 << 20
"""How far a queue's numbers may be ahead of what the log had room for: somebody may have begun a new log."""


class HeaderCheck:
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


_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BORN_HOST_AT = 48


class Records:
    """Whole, checked records by physical offset."""

    def __init__(self, commit_log: CommitLog, *, verify_crc: bool, witness: HeaderCheck | None = None) -> None:
        self._log = commit_log
        self._verify_crc = verify_crc
        self._witness = witness

    def raw(self, offset: int, size: int) -> tuple[bytes | None, Reason]:
        """The record's bytes, or None and why not; UNWRITTEN means that nothing is there (any more)."""
        data = self._log.read(offset, size)
        if data is None:
            return None, Reason.UNWRITTEN
        reason = Reason(kernels.check_record(data, 0, offset, self._verify_crc))
        if reason is Reason.STOP and _INT.unpack_from(data)[0] != size:
            reason = Reason.BAD_SIZE
        return (data if reason is Reason.STOP else None), reason

    def at(self, offset: int) -> Record | None:
        """The record at `offset`, None if no valid one begins there, or its queue knows it by another place."""
        head = self._log.read(offset, 4)
        if head is None:
            return None
        size = _INT.unpack(head)[0]
        if size <= 0:
            return None
        data, _ = self.raw(offset, size)
        if data is None:
            return None
        record = decode_record(data)
        return None if self._witness is not None and self._witness.denies(record.topic, data) else record

    def store_timestamp(self, offset: int) -> int:
        """Store time of the record at `offset`, -1 if it is not there; reads only its head."""
        head = self._log.read(offset, _BORN_HOST_AT)
        if head is None:
            return -1
        born_size, _ = host_sizes(_INT.unpack_from(head, 36)[0])
        found = self._log.read(offset + _BORN_HOST_AT + born_size, 8)
        return -1 if found is None else int(_LONG.unpack(found)[0])


def belongs_to(record: bytes, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether a checked record says that it is this message of this queue."""
    if _INT.unpack_from(record, 12)[0] != queue_id or _LONG.unpack_from(record, 20)[0] != queue_offset:
        return False
    born_size, store_size = host_sizes(_INT.unpack_from(record, 36)[0])
    body_at = _BORN_HOST_AT + born_size + 8 + store_size + 12
    topic_at = body_at + 4 + _INT.unpack_from(record, body_at)[0]
    wide = int.from_bytes(record[4:8], "big") == MESSAGE_MAGIC_V2
    length = int.from_bytes(record[topic_at : topic_at + 1 + wide], "big")
    topic_at += 1 + wide
    return record[topic_at : topic_at + length] == topic
