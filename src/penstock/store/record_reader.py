"""Reads and checks single records of the log, and cross-checks record headers against queue units.

A record's topic, queue id and queue offset have no checksum. But they name a unit, in another file, which must point
back to the record. If that unit points elsewhere, and another unit points to exactly the record's bytes, the header is
damaged, and the record is rejected. If no unit points to the record, its unit may be lost, and the record is accepted.

Thread-safe; owns no files.
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
from penstock.format.scan_rows import Reason
from penstock.format.sys_flag import enters_queue, host_sizes
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, QueueRun
from penstock.store.consume_queues import ConsumeQueues

if TYPE_CHECKING:
    from penstock.store.dispatch import Dispatcher

_PLACE = struct.Struct(">i8xi4xqqi")
"""Size, queue id, queue offset, physical offset and sysFlag of a record."""
_SLACK = 1 << 20
"""Tolerance of `max_queue_offset`, in messages: queue offsets may continue those of an earlier, replaced log."""
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BORN_HOST_AT = 48
T = TypeVar("T", int, kernels.Longs)


class RecordReader:
    """Reads whole records by physical offset and checks them."""

    def __init__(self, commit_log: CommitLog, *, verify_crc: bool, header_check: HeaderCheck | None = None) -> None:
        self._log = commit_log
        self._verify_crc = verify_crc
        self._header_check = header_check

    def raw(self, offset: int, size: int) -> tuple[bytes | None, Reason]:
        """Returns the record's bytes, or None and the Reason. UNWRITTEN: the log does not have the bytes (any more)."""
        data = self._log.read(offset, size)
        if data is None:
            return None, Reason.UNWRITTEN
        reason = Reason(kernels.check_record(data, 0, offset, self._verify_crc))
        if reason is Reason.STOP and _INT.unpack_from(data)[0] != size:
            reason = Reason.BAD_SIZE
        return (data if reason is Reason.STOP else None), reason

    def at(self, offset: int) -> Record | None:
        """Returns the record at `offset`; None if no valid record begins there, or the queues contradict its header."""
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
        check = self._header_check
        return None if check is not None and check.contradicts(record.topic, data) else record

    def store_timestamp(self, offset: int) -> int:
        """Store time in ms of the record at `offset`; -1 if the log does not have it. Reads only its header."""
        head = self._log.read(offset, _BORN_HOST_AT)
        if head is None:
            return -1
        born_size, _ = host_sizes(_INT.unpack_from(head, 36)[0])
        data = self._log.read(offset + _BORN_HOST_AT + born_size, 8)
        return -1 if data is None else int(_LONG.unpack(data)[0])


def belongs_to(record: bytes, topic: bytes, queue_id: int, queue_offset: int) -> bool:
    """Whether the header of a valid record has this topic, queue id and queue offset."""
    if _INT.unpack_from(record, 12)[0] != queue_id or _LONG.unpack_from(record, 20)[0] != queue_offset:
        return False
    born_size, store_size = host_sizes(_INT.unpack_from(record, 36)[0])
    body_at = _BORN_HOST_AT + born_size + 8 + store_size + 12
    topic_at = body_at + 4 + _INT.unpack_from(record, body_at)[0]
    wide = int.from_bytes(record[4:8], "big") == MESSAGE_MAGIC_V2
    length = int.from_bytes(record[topic_at : topic_at + 1 + wide], "big")
    topic_at += 1 + wide
    return record[topic_at : topic_at + length] == topic


# -- cross-checking headers against units --------------------------------------------------------------------------


class HeaderCheck:
    """Cross-checks the headers of dispatched records against the queues."""

    def __init__(self, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._queues = queues
        self._dispatcher = dispatcher

    def contradicts(self, topic: str, record: bytes) -> bool:
        """Whether the queues prove that a valid record of this topic has a damaged header."""
        size, queue_id, queue_offset, offset, sys_flag = _PLACE.unpack_from(record)
        queue = self._queues.find(topic, queue_id)
        if queue is not None and queue.points_to(queue_offset, offset, size):
            return False
        if not enters_queue(sys_flag):
            return False
        if not 0 <= queue_offset <= max_queue_offset(offset):
            return True
        if offset >= self._dispatcher.position or topic in self._dispatcher.deleted:
            return False  # it has no unit, or not yet
        return any(
            queue.max_physical_offset > offset and queue.points_to(queue.first_from(offset), offset, size)
            for queue in self._queues
        )


class UnitClaims:
    """The positions in the log range [begin, end) that units already point to. Loaded on first use."""

    def __init__(self, queues: ConsumeQueues, begin: int, end: int) -> None:
        self._queues = queues
        self._begin, self._end = begin, end
        self._targets: tuple[kernels.Longs, kernels.Longs] | None = None

    def _load(self) -> tuple[kernels.Longs, kernels.Longs]:
        """Returns the physical offsets, sorted, and the sizes of the records that units point to."""
        if self._targets is None:
            reaching = [queue for queue in self._queues if queue.max_physical_offset > self._begin]
            units = [queue.units_pointing(self._begin, self._end) for queue in reaching]
            joined = np.concatenate([np.empty(0, UNIT), *units])
            joined = joined[np.argsort(joined["offset"], kind="stable")]
            self._targets = joined["offset"].astype(np.int64), joined["size"].astype(np.int64)
        return self._targets

    def misplaced(self, queue: ConsumeQueue | None, run: QueueRun) -> npt.NDArray[np.bool_]:
        """Returns a mask of the records in `run` that cannot belong to `queue`, although their header names it.

        Callers must ask before any record of the range gets a unit. A record is misplaced if it is new to `queue`, but
        a unit of some queue already points to its bytes.
        """
        units = run.columns
        wrong = np.zeros(len(units), np.bool_)
        new = max((0 if queue is None else queue.max_offset) - run.first, 0)
        if new < len(units):
            claimed, sizes = self._load()
            if len(claimed):
                positions = units["offset"][new:].astype(np.int64)
                at = np.minimum(np.searchsorted(claimed, positions), len(claimed) - 1)
                wrong[new:] = (claimed[at] == positions) & (sizes[at] == units["size"][new:])
        return wrong


def max_queue_offset(position: T) -> T:
    """Returns the greatest queue offset that a record at this physical offset can have."""
    return position // MIN_RECORD_SIZE + _SLACK
