"""A second process follows the log while the store's owner appends at full speed.

It sees nothing or whole records, never a broken or half one: size and magic are stored last and read first.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import full_speed_writer
from support.effort import BY_TWIN, TWINS, running_on

from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.format.record import Record, encode_record
from penstock.store.files.mapped_file_queue import file_name

WRITER = full_speed_writer.__file__
FILE_SIZE = full_speed_writer.FILE_SIZE
LONGEST_SECONDS = 240
HARMLESS = (Reason.STOP, Reason.FULL, Reason.BLANK, Reason.UNWRITTEN)


class Tail:
    """Reads the files of a log through maps of its own, from where it was to where the writer is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_start = 0
        self._position = 0
        self._map: mmap.mmap | None = None
        self.offsets: list[int] = []
        self.total = 0
        self.refreshes = 0
        """How often it looked and saw something new: how close it was on the writer's heels."""

    @property
    def end(self) -> int:
        return self._file_start + self._position

    def read_on(self) -> None:
        """Takes in all that is there now."""
        while self._open() and self._walk():
            pass

    def _open(self) -> bool:
        if self._map is None:
            path = self._folder / file_name(self._file_start)
            if not path.exists():
                return False
            with path.open("rb") as file:
                assert path.stat().st_size == FILE_SIZE, f"{path.name} was seen before it had its size"
                self._map = mmap.mmap(file.fileno(), FILE_SIZE, prot=mmap.PROT_READ)
        return True

    def _walk(self) -> bool:
        """True if there may be more behind."""
        rows, reached, code = kernels.walk(self._map, self._file_start, self._position, FILE_SIZE, True, None, 1000)
        reason = Reason(code)
        assert reason in HARMLESS, (
            f"{reason.name} at {self._file_start + reached}: {self._map[reached : reached + 100]!r}"
        )
        self.offsets += rows["physical_offset"].tolist()
        self.total += int(rows["size"].sum())
        self.refreshes += bool(len(rows))
        self._position = reached
        if reason in (Reason.BLANK, Reason.STOP):
            self._map.close()
            self._map = None
            self._file_start += FILE_SIZE
            self._position = 0
        return reason is not Reason.UNWRITTEN

    def close(self) -> None:
        if self._map is not None:
            self._map.close()


@pytest.mark.parametrize("reader", BY_TWIN)
@pytest.mark.parametrize(
    ("writer", "count", "settings"),
    [
        ("compiled", 60_000, []),
        (
            "compiled",
            30_000,
            ["transientStorePoolEnable=true", "commitIntervalCommitLog=1", "commitCommitLogThoroughInterval=1"],
        ),
        ("plain", 15_000, []),
    ],
    ids=["compiled writer", "compiled writer with the transient pool", "plain writer"],
)
def test_a_process_that_tails_the_log_sees_whole_records_in_order(
    tmp_path: Path, reader: str, writer: str, count: int, settings: list[str]
) -> None:
    if writer not in TWINS:
        pytest.skip("the compiled kernels are not there")
    process = subprocess.Popen(
        [sys.executable, WRITER, str(tmp_path / "store"), str(count), *settings],
        env={**os.environ, "PENSTOCK_KERNELS": writer},
        stderr=subprocess.PIPE,
        text=True,
    )
    tail = Tail(tmp_path / "store" / "commitlog")
    with process, running_on(reader):
        try:
            follow(tail, lambda: process.poll() is None)
            _, errors = process.communicate()
        finally:
            process.kill()
        assert process.returncode == 0, errors
        tail.read_on()
    written = json.loads((tmp_path / "store.json").read_text())
    tail.close()
    assert tail.offsets == written["offsets"]
    assert tail.total == written["total"]
    assert tail.end == written["end"]
    assert len(tail.offsets) >= count
    assert tail.refreshes > 100, "it must really have followed, not read everything at the end"


@pytest.mark.parametrize("twin", BY_TWIN)
@pytest.mark.parametrize("magic", ["daa320a7", "daa320ab", "cbd43194"])
@pytest.mark.parametrize("seen", [(0,), (3,), (0, 1), (2, 3), (0, 1, 2), (1, 2, 3)], ids=str)
def test_a_magic_that_is_seen_in_part_is_not_there_yet(twin: str, magic: str, seen: tuple[int, ...]) -> None:
    """A store over the border of two cache lines reaches another processor in two halves, in either order."""
    record = bytearray(encode_record(Record(topic="orders", body=b"x")))
    record[4:8] = bytes(byte if place in seen else 0 for place, byte in enumerate(bytes.fromhex(magic)))
    with running_on(twin):
        assert kernels.walk(record, 0, 0, len(record), True, None, 10)[1:] == (0, Reason.UNWRITTEN)
        record[7] ^= 0x10
        assert kernels.walk(record, 0, 0, len(record), True, None, 10)[1:] == (0, Reason.BAD_MAGIC)


def follow(tail: Tail, running: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while running():
        tail.read_on()
        os.sched_yield()
        assert time.monotonic() < deadline, "the writer did not finish"
