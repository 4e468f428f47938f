"""Walking a log from end to end on one core, as verify and recovery do: with the bodies' CRC and without.

Java walks only when it starts, together with much else, so there is nothing to put beside it.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from bench.harness import Goal, Row, Run, Scenario
from bench.store.ground import SIZE_IDS, SIZE_NAMES, Ground
from penstock.format.scan import Batch, Scan


class Walk(Scenario):
    """Every record of one log file, which is mapped anew and lies in the page cache."""

    group = "walk"

    def __init__(self, ground: Ground, size: int, *, check_crc: bool) -> None:
        self._ground = ground
        self._size = size
        self._check_crc = check_crc
        how = "with CRC" if check_crc else "without CRC"
        self._row = Row(
            f"walk-{'crc-' if check_crc else ''}{SIZE_IDS[size]}",
            f"walk {how}, {SIZE_NAMES[size]}, one core",
            "GB/s",
            Goal("at least", 1) if check_crc else None,
        )
        self.rows = (self._row,)

    def ours(self) -> Run:
        path, end = self._ground.filled_log(self._size)
        started = time.perf_counter()
        messages = walk_file(path, end, self._check_crc)
        took = time.perf_counter() - started
        return Run({self._row.name: end / took / 1e9}, {"messages": messages, "bytes": end})


def walk_file(path: Path, end: int, check_crc: bool) -> int:
    """How many records begin before `end` in the log's first file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        scan = Scan(data, 0, 0, end, check_crc=check_crc)
        messages = sum(len(item.rows) for item in scan if isinstance(item, Batch))
        del scan
    return messages
