"""The benchmark of sync flush: it runs, takes turns with a bare msync, and counts system calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.syncflush import turn

pytestmark = pytest.mark.rest


def test_a_put_and_a_bare_msync_take_turns(tmp_path: Path) -> None:
    figures = turn(tmp_path, 5, 1)
    assert figures["put"]["us"] > 0
    assert figures["msync"]["us"] > 0
    assert figures["ratio"] == figures["put"]["us"] / figures["msync"]["us"]
    assert not list(tmp_path.iterdir()), "the store is removed"


def test_the_command_prints_a_line_for_each_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["syncflush", "--puts", "5", "--rounds", "1", "--threads", "2", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one thread: put ")
    assert lines[1].startswith("2 threads: ")
    assert len(lines) == (3 if shutil.which("strace") else 2)
    assert not list(tmp_path.iterdir())
