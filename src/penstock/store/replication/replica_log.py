"""A slave's log: appends the bytes that its master sends.

A master sends its log in pieces that may end inside a record. `ReplicaLog` reassembles them. It appends only whole
records, fillers, and ranges that are damaged in the master's log, too. So readers see the same records as in the
master's log, also after a crash. A partial record stays in memory. It is dropped when the connection ends, and the next
connection starts at `end`. Only one thread may call a ReplicaLog.

Bytes that are not a valid record were damaged in transit, or are damaged in the master's log. `append` refuses them
once, with `DamagedOnTheWay`. If the bytes at the same offset are invalid again, it appends them unchanged. Bytes that
arrive after a damaged size field, or while the next valid record is looked for, are examined once, not with each piece.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from penstock.errors import PenstockError, StoreFailed
from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.kernel_row_types import Reason
from penstock.format.record_layout import is_filler, physical_offset_of, size_and_magic
from penstock.format.scan import next_valid, valid_rows
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.damage_and_quarantine import DamagedRange

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_MIN_RECORD: Final = 64
_MAX_RECORD: Final = 64 << 20
"""Bytes. No record is larger, so a larger size field is damaged."""
_MAX_PARTIAL: Final = 8 << 20
"""Maximum number of damaged bytes kept in memory while no valid record follows them."""


_MASTERS: Final = "DAMAGED_AT_MASTER"
_MAX_JOINED: Final = 4 << 20
"""Bytes: more than arrive in one read, with a partial record of 2 MB before them."""


class BytesRefused(PenstockError):
    """The master's bytes cannot be appended to this log: wrong offset, wrong file size, or damage."""


class DamagedOnTheWay(BytesRefused):
    """The master's bytes are not a valid record. They may be valid if the master sends them again."""


class ReplicaLog:
    """The receiving side of log replication."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._partial = bytearray()
        """Bytes received after `end` that are not a whole record yet."""
        self._partial_at = 0
        self._joined = bytearray()
        """The memory of `_join`."""
        self._needed = 0
        """How many partial bytes the record takes; 0 if that is not known. They are not examined before."""
        self._searched = 0
        """How many partial bytes are damaged for certain: no valid record begins in them."""
        self._is_filler = False
        """Whether the next bytes, up to the end of the file, belong to a filler."""
        self.epoch = log.role.epoch
        """The epoch of the role in which bytes are received; `append` raises PutRefused once the store has another."""
        self._refused_at = -1
        """Physical offset of the last refused bytes; -1 if none were refused."""
        self._refusal = ""
        self.damaged: list[DamagedRange] = []
        """Damaged ranges of the master's log that were appended as they are. Any thread may read it."""

    @property
    def end(self) -> int:
        """Physical offset up to which this log has the master's bytes."""
        return self._log.queue.wrote_offset

    @property
    def is_empty(self) -> bool:
        return not self._log.queue.files

    def drop_partial(self) -> None:
        """Drops the partial record. Must be called after a disconnect. The next bytes start at `end`."""
        self._partial, self._needed, self._searched = bytearray(), 0, 0

    def enter_epoch(self, epoch: int) -> None:
        """The bytes from now on are those of a master in this epoch, which the store's role has entered before."""
        self.epoch = epoch

    def refuse(self, reason: str) -> None:
        """From now on `append` raises StoreFailed: the store can no longer keep what it acknowledges. Thread-safe."""
        self._refusal = reason

    def append(self, offset: int, *pieces: bytes | memoryview) -> None:
        """Appends consecutive pieces of the master's log, all within one file. The first piece begins at `offset`.

        Keeps no reference to the pieces. Raises BytesRefused, DamagedOnTheWay or StoreFailed.
        """
        if self._refusal:
            raise StoreFailed(self._refusal, path=self._log.queue.folder)
        size = self._log.queue.file_size
        if self._partial:
            expected = self._partial_at + len(self._partial)
        elif not self.is_empty:
            expected = self.end
        elif offset % size:
            raise BytesRefused(
                f"the master's log begins at {offset}, which is not a multiple of the file size {size}; "
                "mappedFileSizeCommitLog must be the same on both sides"
            )
        else:
            expected = offset
        if offset != expected:
            raise BytesRefused(f"the master sent bytes at {offset}, but this log continues at {expected}")
        base = self._partial_at if self._partial else offset
        if not self._partial and len(pieces) == 1:
            self._append_valid(base, memoryview(pieces[0]))
            return
        total = len(self._partial) + sum(map(len, pieces))
        if total < self._needed and (base + total) % size:
            for piece in pieces:
                self._partial += piece
            self._partial_at = base
            return
        data = self._join(total, self._partial, *pieces)
        self._partial, self._needed = bytearray(), 0
        self._append_valid(base, data)

    def _join(self, total: int, *pieces: bytes | bytearray | memoryview) -> memoryview:
        """Returns the pieces as one. Up to _MAX_JOINED bytes are in memory that the next call uses again."""
        if total > _MAX_JOINED:
            joined = memoryview(bytearray(total))
        else:
            self._joined = self._joined or bytearray(_MAX_JOINED)  # new memory each time would cost its page faults
            joined = memoryview(self._joined)[:total]
        at = 0
        for piece in pieces:
            joined[at : at + len(piece)] = piece
            at += len(piece)
        return joined

    def _append_valid(self, base: int, data: memoryview) -> None:
        """Appends whole records and fillers of `data`, which begins at `base`. Keeps a partial record in memory.

        Walks by itself: where `data` ends, the next bytes are still on their way, and what is no record is refused.
        """
        at, file_end = 0, base + self._log.queue.file_size - base % self._log.queue.file_size
        while at < len(data):
            if self._is_filler:
                self._append(base + at, data[at:], whole=False)
                self._is_filler = base + len(data) < file_end
                return
            rows, reached, reason = kernels.walk(
                data, base, at, len(data), True, None, (len(data) - at) // _MIN_RECORD + 1
            )
            if reached > at:
                self._append(base + at, data[at:reached], newest=int(rows["store_timestamp"][-1]))
                at = reached
            left = len(data) - at
            if reason in (Reason.STOP, Reason.FULL):
                continue
            size = size_and_magic(data, at)[0] if left >= BLANK_HEADER_SIZE else 0
            if left < BLANK_HEADER_SIZE or (reason == Reason.BEYOND_END and size <= _MAX_RECORD):
                if base + len(data) < file_end:
                    self._keep_partial(base + at, data[at:], needed=size)
                    return
            elif is_filler(data, at):
                if size != file_end - base - at:
                    raise BytesRefused(
                        f"a log file of the master does not end at {file_end}; mappedFileSizeCommitLog must be the "
                        "same on both sides"
                    )
                self._is_filler = True
                continue
            at = self._handle_damage(base, data, at, file_end)
            if at < 0:
                return

    def _handle_damage(self, base: int, data: memoryview, at: int, file_end: int) -> int:
        """Refuses invalid bytes once, then appends them. Returns the next position; -1 if more bytes are needed."""
        if self._refused_at != base + at:
            self._refused_at = base + at
            raise DamagedOnTheWay(f"the master's bytes at {base + at} are not a valid message; asking for them again")
        start = at + max(1, self._searched)
        following = next_valid(data, base, start, len(data))
        stop = len(data) if following < 0 else following
        if following < 0 and stop - at < _MAX_PARTIAL and base + stop < file_end:
            cut_off, size = _first_cut_off(data, base, start)
            self._searched = cut_off - at
            self._keep_partial(base + at, data[at:], needed=min(cut_off - at + size, _MAX_PARTIAL))
            return -1
        self._searched = 0
        self.damaged.append(DamagedRange(base + at, stop - at, _MASTERS))
        self._append(base + at, data[at:stop], whole=False)
        return stop

    def _keep_partial(self, offset: int, data: memoryview, *, needed: int = 0) -> None:
        whole = data.obj
        if not isinstance(whole, bytearray) or whole is self._joined or len(whole) != len(data):
            whole = bytearray(data)
        self._partial_at, self._partial, self._needed = offset, whole, needed

    def _append(self, offset: int, data: memoryview, *, whole: bool = True, newest: int = 0) -> None:
        self._log.append_bytes(offset, data, whole=whole, newest=newest, epoch=self.epoch)
        self._log.watermarks.sync_soon(offset + len(data))


def _first_cut_off(data: memoryview, base: int, start: int) -> tuple[int, int]:
    """Returns the first position from `start` on where a record may begin that continues after the data, and its size.

    The size is 0 if not enough of the record is there to know it.
    """
    for magic in _MAGIC.finditer(data, start + 4):
        at = magic.start() - 4
        if len(data) - at < _MIN_RECORD:
            return at, 0
        size = size_and_magic(data, at)[0]
        if len(data) - at < size <= _MAX_RECORD and physical_offset_of(data, at) == base + at:
            return at, size
    return max(start, len(data) - BLANK_HEADER_SIZE + 1), 0


def last_record(log: CommitLog, queues: ConsumeQueues, end: int) -> tuple[int, bytes] | None:
    """Returns the physical offset and the bytes of the newest valid record before `end`; None if the log has none.

    The search starts at the newest record that a queue points to. It may take as long as a walk over one file.
    """
    ends = ((queue, queue.max_offset - 1) for queue in queues)
    targets = [queue.unit(last)[0] for queue, last in ends if last >= queue.min_offset]
    start = max((target for target in targets if target < end), default=0)
    for file in reversed(log.queue.files):
        if not file.acquire():
            continue
        try:
            at, readable = start - file.from_offset, min(file.readable, end - file.from_offset)
            if readable <= 0:
                continue
            record = _last_record_in(file.map.view[:readable], file.from_offset, at if 0 <= at < readable else 0)
        finally:
            file.release()
        if record is not None:
            return record
    return None


def _last_record_in(view: memoryview, base: int, start: int) -> tuple[int, bytes] | None:
    with view:
        last = deque(valid_rows(view, base, start, len(view), check_crc=True), maxlen=1)
        if not last:
            return None
        offset, size = last[0][["physical_offset", "size"]][-1].item()
        return offset, bytes(view[offset - base : offset - base + size])
