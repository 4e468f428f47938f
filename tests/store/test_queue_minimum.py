"""A queue's minimum is its first message that is still in the log, whatever gaps there are behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock.format.queue_unit import PRE_BLANK, UNIT_SIZE, pack_unit
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.files.file_io import Files

if TYPE_CHECKING:
    from pathlib import Path

UNITS_PER_FILE = 8


def queue_with(folder: Path, units: str) -> ConsumeQueue:
    """A queue with one unit per character: `x` of a record 100 bytes behind the one before, `.` of none."""
    data = b"".join(pack_unit(100 * place, 100, 0) if unit == "x" else PRE_BLANK for place, unit in enumerate(units))
    size = UNITS_PER_FILE * UNIT_SIZE
    folder.mkdir()
    for start in range(0, len(data), size):
        (folder / f"{start:020d}").write_bytes(data[start : start + size].ljust(size, b"\0"))
    queue = ConsumeQueue(Files(), folder, "T", 0, size)
    queue.load()
    return queue


@pytest.mark.parametrize(
    ("units", "log_minimum", "expected"),
    [
        ("xxxxx", 0, 0),
        ("xxxxx", 200, 2),
        ("xxxxx", 201, 3),
        ("xxxxx", 500, 5),
        ("...xx", 0, 3),
        ("...xx", 400, 4),
        ("xx.xx", 0, 0),
        ("x...x", 0, 0),
        ("x...x", 100, 4),
        ("xxxx.......xxx", 0, 0),
        ("xxxx.......xxx", 300, 3),
        ("xxxx.......xxx", 301, 11),
        ("..........", 0, 10),
    ],
)
def test_the_minimum_is_the_first_unit_of_a_record_in_the_log(
    tmp_path: Path, units: str, log_minimum: int, expected: int
) -> None:
    queue = queue_with(tmp_path / "q", units)
    assert queue.max_offset == len(units)
    queue.correct_min_offset(log_minimum)
    assert queue.min_offset == expected
    queue.close()


def test_the_minimum_agrees_with_looking_at_every_unit(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    for number in range(200):
        units = "".join(generator.choice(["x", "."], size=int(generator.integers(1, 40))))
        log_minimum = int(generator.integers(0, 4200))
        alive = [place for place, unit in enumerate(units) if unit == "x" and 100 * place >= log_minimum]
        queue = queue_with(tmp_path / str(number), units)
        queue.correct_min_offset(log_minimum)
        assert queue.min_offset == (alive[0] if alive else len(units)), (units, log_minimum)
        queue.close()
