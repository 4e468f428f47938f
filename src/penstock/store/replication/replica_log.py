"""A slave's log: appends the bytes that its master sends.

A master sends its log in pieces that end anywhere. `ReplicaLog` reassembles them: only whole records, fillers, and
ranges that are damaged in the master's log too reach the slave's log, so readers, also after a crash, see what the
master's log would show. A partial record stays in memory and is dropped with the connection; the next connection starts
at `end`. Owns no files besides the log's. One thread calls it.

Bytes that are not a valid record were damaged in transit, or are damaged in the master's log. They are refused once,
with `DamagedOnTheWay`; if the same bytes come again, they are appended as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self

from penstock.errors import PenstockError
from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE, BLANK_MAGIC
from penstock.format.rows import Reason
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.flush import GroupCommit
from penstock.store.worker import noop

_MIN_RECORD: Final = 64
_MAX_PARTIAL: Final = 8 << 20
"""Damaged bytes held back at most, while no record has been found after them."""


class BytesRefused(PenstockError):
    """The master's bytes do not fit the end of this log."""


class DamagedOnTheWay(BytesRefused):
    """The master's bytes are not a valid record; sent again, they may be."""


class ReplicaLog:
    """The receiving side of log replication."""

    def __init__(self, log: CommitLog, wake_flush: Callable[[], object]) -> None:
        self._log = log
        self._wake_flush = wake_flush
        self._partial = b""
        """Bytes received after `end` that are not a whole record yet."""
        self._partial_at = 0
        self._is_filler = False
        """Whether the next bytes belong to a filler, up to the end of the file."""
        self._refused_at = -1
        """Offset of the bytes refused last; -1 if none were."""

    @classmethod
    def for_slave(cls, log: CommitLog, group_commit: GroupCommit | None) -> Self:
        """The replica log of a slave's store: from now on nothing else is appended to `log`."""
        log.become_replica()
        return cls(log, noop if group_commit is None else group_commit.wake)

    @property
    def end(self) -> int:
        """Physical offset up to which the master's log is here."""
        return self._log.queue.wrote_offset

    @property
    def is_empty(self) -> bool:
        return not self._log.queue.files

    def drop_partial(self) -> None:
        """Drops a partial record after a disconnect. The next bytes start at `end`, maybe inside a filler."""
        self._partial = b""

    def append(self, offset: int, *pieces: bytes | memoryview) -> None:
        """Appends consecutive pieces of the master's log, the first at `offset`, all within one file.

        Keeps no reference to them. Raises BytesRefused or StoreFailed.
        """
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
        data = pieces[0] if len(pieces) == 1 and not self._partial else b"".join((self._partial, *pieces))
        self._partial = b""
        self._append_valid(base, memoryview(data))

    def _append_valid(self, base: int, data: memoryview) -> None:
        """Appends whole records and fillers of `data`, which begins at `base`, and keeps a partial one."""
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
            if reason == Reason.BEYOND_END or left < BLANK_HEADER_SIZE:
                if base + len(data) < file_end:
                    self._keep_partial(base + at, data[at:])
                    return
            elif int.from_bytes(data[at + 4 : at + 8], "big") == BLANK_MAGIC:
                if int.from_bytes(data[at : at + 4], "big") != file_end - base - at:
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
        """Refuses bytes that are not a record once, then appends them; where to continue, -1 to wait for more bytes."""
        if self._refused_at != base + at:
            self._refused_at = base + at
            raise DamagedOnTheWay(f"the master's bytes at {base + at} are not a valid message; asking for them again")
        following = kernels.find_record(data, base, at + 1, len(data), True)
        stop = len(data) if following < 0 else following
        if following < 0 and stop - at < _MAX_PARTIAL and base + stop < file_end:
            self._keep_partial(base + at, data[at:])
            return -1
        self._append(base + at, data[at:stop], whole=False)
        return stop

    def _keep_partial(self, offset: int, data: memoryview) -> None:
        self._partial_at, self._partial = offset, bytes(data)

    def _append(self, offset: int, data: memoryview, *, whole: bool = True, newest: int = 0) -> None:
        self._log.append_bytes(offset, data, whole=whole, newest=newest)
        self._wake_flush()


def last_record(log: CommitLog, queues: ConsumeQueues) -> tuple[int, bytes] | None:
    """Offset and bytes of the log's newest valid record; None if the log has none.

    Searches from the last record that a queue points to; may take as long as walking one file.
    """
    ends = ((queue, queue.max_offset - 1) for queue in queues)
    start = max((queue.unit(last)[0] for queue, last in ends if last >= queue.min_offset), default=0)
    for file in reversed(log.queue.files):
        if not file.acquire():
            continue
        try:
            at = start - file.from_offset
            view = file.map.view[: file.readable]
            record = _last_record_in(view, file.from_offset, at if 0 <= at < file.readable else 0)
        finally:
            file.release()
        if record is not None:
            return record
    return None


def _last_record_in(view: memoryview, base: int, start: int) -> tuple[int, bytes] | None:
    max_rows, last = 65_536, None
    at = start
    with view:
        while at < len(view):
            rows, reached, reason = kernels.walk(view, base, at, len(view), True, None, max_rows)
            if len(rows):
                offset, size = int(rows["physical_offset"][-1]), int(rows["size"][-1])
                last = offset, bytes(view[offset - base : offset - base + size])
            if reason != Reason.FULL:
                following = (
                    -1
                    if reason in (Reason.STOP, Reason.BLANK)
                    else kernels.find_record(view, base, reached + 1, len(view), True)
                )
                if following < 0:
                    return last
                reached = following
            at = reached
    return last
