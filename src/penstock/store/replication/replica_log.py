"""A slave's log: the bytes of a master's, taken over as they come.

A master sends its log in pieces that end anywhere. Here they are put together again: only whole records, fillers and
what a master knows to be damaged reach the log, so that whoever reads it, also after a crash, sees what a master's own
log would show. An unfinished record is held in memory and is forgotten with the connection; `end` is where the next
connection goes on. Owns nothing on disk besides what the log itself does. One thread calls it.

Bytes that are no valid record may have been damaged on the way, or lie like that in the master's log. They are refused
once, with `DamagedOnTheWay`; if they come again they are the master's, and are taken as they are.
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

_SMALLEST_RECORD: Final = 64
_MAX_KEPT: Final = 8 << 20
"""Bytes that are no record and are held back in the hope that a record begins among them."""


class BytesRefused(PenstockError):
    """What a master sent cannot be put behind what is here."""


class DamagedOnTheWay(BytesRefused):
    """What came is no record; it may be one if it is sent again."""


class ReplicaLog:
    """The receiving end of a master's log."""

    def __init__(self, log: CommitLog, wake_disk: Callable[[], object]) -> None:
        self._log = log
        self._wake_disk = wake_disk
        self._rest = b""
        """What came behind `end` and is no whole record yet."""
        self._rest_at = 0
        self._is_filler = False
        """Whether what comes is the inside of a filler, up to the end of its file."""
        self._doubtful = -1
        """Where something came that is no record."""

    @classmethod
    def instead_of_puts(cls, log: CommitLog, group_commit: GroupCommit | None) -> Self:
        """For a store that is a slave: from now on nothing else is appended."""
        log.become_replica()
        return cls(log, noop if group_commit is None else group_commit.wake)

    @property
    def end(self) -> int:
        """The master's offset up to which its log is here."""
        return self._log.queue.wrote_offset

    @property
    def is_empty(self) -> bool:
        return not self._log.queue.files

    def forget_rest(self) -> None:
        """The connection is gone, and what comes next begins at `end`, which may lie inside a filler."""
        self._rest = b""

    def take(self, offset: int, *pieces: bytes | memoryview) -> None:
        """Appends pieces that lie, one behind the other, at `offset` of the master's log, within one file.

        They may change once this has returned. Raises BytesRefused, StoreFailed.
        """
        size = self._log.queue.file_size
        if self._rest:
            expected = self._rest_at + len(self._rest)
        elif not self.is_empty:
            expected = self.end
        elif offset % size:
            raise BytesRefused(
                f"the master begins at {offset}, where no file of {size} bytes does; mappedFileSizeCommitLog must be "
                "the same on both sides"
            )
        else:
            expected = offset
        if offset != expected:
            raise BytesRefused(f"the master sent what lies at {offset}, and this log goes on at {expected}")
        base = self._rest_at if self._rest else offset
        data = pieces[0] if len(pieces) == 1 and not self._rest else b"".join((self._rest, *pieces))
        self._rest = b""
        self._place(base, memoryview(data))

    def _place(self, base: int, data: memoryview) -> None:
        """Appends what can be judged of `data`, which begins at `base`, and keeps the rest."""
        at, file_end = 0, base + self._log.queue.file_size - base % self._log.queue.file_size
        while at < len(data):
            if self._is_filler:
                self._append(base + at, data[at:], whole=False)
                self._is_filler = base + len(data) < file_end
                return
            rows, reached, reason = kernels.walk(
                data, base, at, len(data), True, None, (len(data) - at) // _SMALLEST_RECORD + 1
            )
            if reached > at:
                self._append(base + at, data[at:reached], newest=int(rows["store_timestamp"][-1]))
                at = reached
            left = len(data) - at
            if reason in (Reason.STOP, Reason.FULL):
                continue
            if reason == Reason.BEYOND_END or left < BLANK_HEADER_SIZE:
                if base + len(data) < file_end:
                    self._keep(base + at, data[at:])
                    return
            elif int.from_bytes(data[at + 4 : at + 8], "big") == BLANK_MAGIC:
                if int.from_bytes(data[at : at + 4], "big") != file_end - base - at:
                    raise BytesRefused(
                        f"a file of the master ends elsewhere than at {file_end}; mappedFileSizeCommitLog must be the "
                        "same on both sides"
                    )
                self._is_filler = True
                continue
            at = self._judge(base, data, at, file_end)
            if at < 0:
                return

    def _judge(self, base: int, data: memoryview, at: int, file_end: int) -> int:
        """Takes what is no record as the master has it; where to go on, -1 if more has to come first."""
        if self._doubtful != base + at:
            self._doubtful = base + at
            raise DamagedOnTheWay(f"what the master sent at {base + at} is no message; it is asked for once more")
        found = kernels.find_record(data, base, at + 1, len(data), True)
        stop = len(data) if found < 0 else found
        if found < 0 and stop - at < _MAX_KEPT and base + stop < file_end:
            self._keep(base + at, data[at:])
            return -1
        self._append(base + at, data[at:stop], whole=False)
        return stop

    def _keep(self, offset: int, data: memoryview) -> None:
        self._rest_at, self._rest = offset, bytes(data)

    def _append(self, offset: int, data: memoryview, *, whole: bool = True, newest: int = 0) -> None:
        self._log.append_bytes(offset, data, whole=whole, newest=newest)
        self._wake_disk()


def last_record(log: CommitLog, queues: ConsumeQueues) -> tuple[int, bytes] | None:
    """The newest valid record of a log with its offset; None if there is none. Reads the log from the last queue unit.

    May take as long as walking one file takes.
    """
    ends = ((queue, queue.max_offset - 1) for queue in queues)
    known = max((queue.unit(last)[0] for queue, last in ends if last >= queue.min_offset), default=0)
    for file in reversed(log.queue.files):
        if not file.hold():
            continue
        try:
            at = known - file.from_offset
            found = _last_in(file.map.view[: file.readable], file.from_offset, at if 0 <= at < file.readable else 0)
        finally:
            file.release()
        if found is not None:
            return found
    return None


def _last_in(view: memoryview, base: int, start: int) -> tuple[int, bytes] | None:
    most, found = 65_536, None
    at = start
    with view:
        while at < len(view):
            rows, reached, reason = kernels.walk(view, base, at, len(view), True, None, most)
            if len(rows):
                offset, size = int(rows["physical_offset"][-1]), int(rows["size"][-1])
                found = offset, bytes(view[offset - base : offset - base + size])
            if reason != Reason.FULL:
                following = (
                    -1
                    if reason in (Reason.STOP, Reason.BLANK)
                    else kernels.find_record(view, base, reached + 1, len(view), True)
                )
                if following < 0:
                    return found
                reached = following
            at = reached
    return found
