"""The wall clock of one process is set while it runs, and its other clocks go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.failover.clocks import Clock, build_library

SHOW = """
import sys, time
for line in sys.stdin:
    time.sleep(0.001)
    print(time.time(), time.time_ns() / 1e9, time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


def test_a_wall_clock_jumps_and_the_others_do_not(tmp_path: Path) -> None:
    library = build_library(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler")
    clock = Clock(library, tmp_path / "clock")
    command = [*clock.within, sys.executable, "-c", SHOW]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def shown() -> list[float]:
            print(file=process.stdin, flush=True)
            assert process.stdout is not None
            return [float(word) for word in process.stdout.readline().split()]

        before = shown()
        clock.step(3600.0)
        ahead = shown()
        clock.step(-3600.0)
        behind = shown()
        process.stdin.close()
        process.wait(30)
    for at in (0, 1):
        assert 3600 <= ahead[at] - before[at] < 3660
        assert -3600 <= behind[at] - before[at] < -3540
    for at in (2, 3):
        assert 0 < ahead[at] - before[at] < 60
        assert 0 < behind[at] - ahead[at] < 60
