"""A `limit`: Spark leaves a worker in the middle of its rows, and nothing is printed about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.stores import StoreHome

from penstock.store import Message

COUNT = 1600


@pytest.mark.parametrize("unix_sockets", ["true", "false"])
def test_a_worker_that_spark_leaves_ends_without_a_traceback(home: StoreHome, unix_sockets: str) -> None:
    with home.open(mapped_file_size_commit_log=64 << 20) as store:
        for _ in range(COUNT):
            assert store.put(Message("T", bytes(30_000))).ok
    program = Path(__file__).with_name("limited_read.py")
    done = subprocess.run(
        [sys.executable, program, home.path, unix_sockets], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["rows: 3", "rows: 3", f"all: {COUNT}"]
    said, end, _ = done.stderr.partition("END")
    assert end
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
