"""Reads single records of the log by physical offset, and decides which bytes are a record of the log.

A body may contain bytes that look like a record, with the right physical offset and CRC, because its sender can guess
where it will be stored. So valid bytes alone prove nothing. An offset is that of a record only if a queue unit points
to exactly these bytes, or if a walk over the log that begins at a known boundary reaches it (`RecordProof`).

A record's topic, queue id and queue offset have no checksum. But they name a unit, in another file, which must point
back to the record. If that unit points elsewhere, and another unit points to exactly the record's bytes, the header is
damaged, and the record is rejected. If no unit points to the record, its unit may be lost: then the walk decides.

Thread-safe; owns no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.constants import MIN_RECORD_SIZE
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import UNIT
from penstock.format.record import Record, decode_record
from penstock.format.record_layout import HEAD, LONG, head_of, store_timestamp_at
from penstock.format.sys_flag import enters_queue
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, QueueRun
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.files.file_io import NotResident

if TYPE_CHECKING:
    from penstock.store.dispatch import Dispatcher

_SLACK = 1 << 20
"""Tolerance of `max_queue_offset`, in messages: queue offsets may continue those of an earlier, replaced log."""
T = TypeVar("T", int, kernels.Longs)


class RecordReader:
    """Reads whole records by physical offset and checks them.

    Raises StoreFailed if the disk cannot read a record. With `at_once` raises NotResident instead of waiting for it.
    """

    def __init__(self, commit_log: CommitLog, *, verify_crc: bool, proof: RecordProof | None = None) -> None:
        self._log = commit_log
        self._verify_crc = verify_crc
        self._proof = proof

    def raw(self, offset: int, size: int, *, at_once: bool = False) -> tuple[bytes | None, Reason]:
        """Returns the record's bytes, or None and the Reason. UNWRITTEN: the log does not have the bytes (any more)."""
        file = self._log.queue.find(offset)
        at = 0 if file is None else offset - file.from_offset
        if file is None or at + size > file.readable or not file.acquire():
            return None, Reason.UNWRITTEN
        try:
            if at_once and size > self._log.appender.max_record_bytes:  # a stranger may name any size, up to a file's
                raise NotResident
            file.map.ensure_resident(at, at + size, at_once=at_once)
            with file.map.view[at : at + size] as record:  # copied only if it is one
                reason = Reason(kernels.check_record(record, 0, offset, self._verify_crc))
                if reason is Reason.STOP and head_of(record).size != size:
                    reason = Reason.BAD_SIZE
                return (bytes(record) if reason is Reason.STOP else None), reason
        finally:
            file.release()

    def at(self, offset: int, *, at_once: bool = False) -> Record | None:
        """Returns the record at `offset`; None if no valid record of the log begins there."""
        found = self._find(offset, at_once)
        return None if found is None else found[0]

    def encoded_at(self, offset: int, *, at_once: bool = False) -> bytes | None:
        """Like `at`, but returns the record's bytes."""
        found = self._find(offset, at_once)
        return None if found is None else found[1]

    def _find(self, offset: int, at_once: bool) -> tuple[Record, bytes] | None:
        data = self._log.read(offset, HEAD.size, at_once=at_once)
        head = None if data is None else head_of(data)
        if head is None or head.size <= 0 or head.physical_offset != offset:
            return None
        data, _ = self.raw(offset, head.size, at_once=at_once)
        if data is None:
            return None
        record = decode_record(data)
        proof = self._proof
        if proof is not None and not proof.holds(record.topic, data, at_once=at_once):
            return None
        return record, data

    def store_timestamp(self, offset: int) -> int:
        """Store time in ms of the record at `offset`; -1 if the log does not have it. Reads only its header."""
        head = self._log.read(offset, HEAD.size)
        if head is None:
            return -1
        data = self._log.read(offset + store_timestamp_at(head_of(head).sys_flag), LONG.size)
        return -1 if data is None else int(LONG.unpack(data)[0])


# -- which bytes are a record --------------------------------------------------------------------------------------


class RecordProof:
    """Decides whether valid bytes are a record of the log: see the module's docstring."""

    def __init__(self, commit_log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._log = commit_log
        self._queues = queues
        self._dispatcher = dispatcher

    def holds(self, topic: str, record: bytes, *, at_once: bool = False) -> bool:
        """Whether these valid bytes are a record of this topic, and its header is not damaged.

        Searches all queues if the record's own unit does not point to it. With `at_once` raises NotResident instead.
        """
        dispatched = self._dispatcher.position  # first: a record before it has its unit now
        head = head_of(record)
        size, offset, queue_offset = head.size, head.physical_offset, head.queue_offset
        queue = self._queues.find(topic, head.queue_id)
        if queue is not None and queue.points_to(queue_offset, offset, size, at_once=at_once):
            return True
        if enters_queue(head.sys_flag) and not 0 <= queue_offset <= max_queue_offset(offset):
            return False
        if offset >= dispatched:
            return self._walk_reaches(offset, dispatched, at_once)
        if at_once:  # the search may read any queue
            raise NotResident
        claims = []
        for queue in self._queues:
            unit = queue.last_before(offset + 1)
            if unit is None:
                continue
            if unit == (offset, size) and enters_queue(head.sys_flag):
                return False  # its header names another queue
            claims.append((unit[0] if unit[0] == offset else sum(unit), *unit))
        for end, begin, length in sorted(claims, reverse=True):
            if end == offset == begin or self._is_record(begin, length):
                return end <= offset and self._walk_reaches(offset, end, at_once)  # else it lies inside another record
        return self._walk_reaches(offset, 0, at_once)

    def _is_record(self, offset: int, size: int) -> bool:
        """Whether a unit that claims a record points to valid bytes of its size. A damaged unit proves nothing."""
        data = self._log.read(offset, size)
        return (
            data is not None
            and kernels.check_record(data, 0, offset, True) == Reason.STOP
            and head_of(data).size == size
        )

    def _walk_reaches(self, offset: int, start: int, at_once: bool) -> bool:
        """Whether a walk from the boundary `start`, or from the start of the file if that is later, reaches `offset`.

        It passes damage that is known, as dispatch does. It ends at damage that is not: what follows may be part of a
        body.
        """
        file = self._log.queue.find(offset)
        if file is None or not file.acquire():
            return False
        try:
            base = file.from_offset
            begin, stop = max(start - base, 0), offset - base
            file.map.ensure_resident(begin, stop, at_once=at_once)
            while begin < stop:
                reached = kernels.find_valid_end(file.map.view, base, begin, stop, False)[0]
                begin = self._dispatcher.end_of_damage(base + reached) - base if reached < stop else reached
                if begin == reached:
                    break
            return begin == stop
        finally:
            file.release()


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
