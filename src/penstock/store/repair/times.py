"""Store times that cannot be: of a single record among others whose times are right, a flipped bit.

The message is whole, only nobody finds it by time; so the record stays, and gets the time of the record before it.
Where several records in a row have such times the clock was wrong, and nothing is changed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.format.kernels import Rows
from penstock.format.sys_flag import host_sizes
from penstock.store.audit.record_checks import DAY_MS, EARLIEST_MS
from penstock.store.mapped_file import MappedFile

_LONG = struct.Struct(">q")
_BORN_HOST_AT = 48


class OddTime(NamedTuple):
    """A record whose store time cannot be, and the time that it gets."""

    physical_offset: int
    size: int
    time_at: int
    """Where in the record its time is."""
    said: int
    right: int


class OddTimes:
    """Fed by the walk, in log order; afterwards `found` has those that stand alone."""

    def __init__(self, now: int) -> None:
        self._latest = now + DAY_MS
        self._run: list[OddTime] = []
        self._before = 0
        self._found: list[OddTime] = []

    def watch(self, data: memoryview, rows: Rows) -> None:
        times = rows["store_timestamp"]
        odd = (times < EARLIEST_MS) | (times > self._latest)
        if not self._run and not odd.any():
            self._before = int(times[-1])
            return
        for row, is_odd in zip(rows, odd.tolist(), strict=True):
            time = int(row["store_timestamp"])
            if is_odd:
                at = _BORN_HOST_AT + host_sizes(int(row["sys_flag"]))[0]
                self._run.append(OddTime(int(row["physical_offset"]), int(row["size"]), at, time, self._before))
                continue
            self._end_run(time)
            self._before = time

    def found(self) -> list[OddTime]:
        """After the walk."""
        self._end_run(0)
        return self._found

    def _end_run(self, after: int) -> None:
        if len(self._run) == 1 and (self._before or after):
            (alone,) = self._run
            self._found.append(alone._replace(right=alone.right or after))
        self._run.clear()


def set_time(file: MappedFile, odd: OddTime) -> None:
    """Stores the right time in the record's place."""
    _LONG.pack_into(file.map.view, odd.physical_offset - file.from_offset + odd.time_at, odd.right)
