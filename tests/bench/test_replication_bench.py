"""The benchmark of replication runs from end to end, on small sizes, without Java; it knows equal logs from others."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from support.effort import quick_report

from bench.replication import Log, check_equal, wait_until_equal
from bench.workspace import BenchFailed

FILE = 4 << 20
RECORD = b"r" * 100


def store(folder: Path, *pieces: tuple[int, bytes], files: int = 2) -> Log:
    """Log files, allocated as both brokers have them, with bytes at some offsets."""
    (folder / "commitlog").mkdir(parents=True)
    log = Log(folder, FILE)
    for number in range(files):
        with log.file(number * FILE).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, FILE)
    for offset, data in pieces:
        write(log, offset, data)
    return log


def write(log: Log, offset: int, data: bytes) -> None:
    with log.file(offset).open("r+b") as file:
        file.seek(offset % FILE)
        file.write(data)


@pytest.mark.parametrize("end", [100, 4096, (1 << 20) + 1, FILE, FILE + 100, FILE + (3 << 20)])
def test_a_log_ends_behind_its_last_byte_that_is_not_zero(tmp_path: Path, end: int) -> None:
    start = end - end % FILE if end % FILE else end - FILE
    assert store(tmp_path, (start, bytes(end - start - 1) + b"r")).end() == end


def test_a_log_without_a_record_ends_at_its_beginning(tmp_path: Path) -> None:
    assert store(tmp_path).end() == 0


def test_nothing_is_read_from_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    log = store(tmp_path, (0, RECORD))
    assert log.goes_beyond(0)
    assert not log.goes_beyond(100)
    assert not log.goes_beyond(2 * FILE)


def test_waiting_ends_when_the_last_record_has_come(tmp_path: Path) -> None:
    master, slave = store(tmp_path / "m", (0, RECORD * 3)), store(tmp_path / "s", (0, RECORD))
    with pytest.raises(BenchFailed, match="100 of 300 bytes"):
        wait_until_equal(master, slave, 0.01)
    copier = threading.Timer(0.02, write, (slave, 100, RECORD * 2))
    copier.start()
    wait_until_equal(master, slave, 30)
    copier.join()
    check_equal(master, slave)


def test_logs_that_end_alike_and_differ_before_are_no_copies(tmp_path: Path) -> None:
    master = store(tmp_path / "m", (0, RECORD), (FILE, RECORD))
    slave = store(tmp_path / "s", (0, b"s" + RECORD[1:]), (FILE, RECORD))
    wait_until_equal(master, slave, 30)
    with pytest.raises(BenchFailed, match="between 0 and"):
        check_equal(master, slave)


@pytest.mark.slow
def test_every_row_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    found = quick_report("replication", tmp_path, "--no-java")["results"]
    assert all(each["status"] == "measured" and each["ours"]["least"] > 0 for each in found)
    goals = {each["row"]["name"]: (each["row"]["goal"] or {}).get("value") for each in found}
    assert goals == {
        **{f"{role}-send-{window}": 1 for role in ("sync", "async") for window in (1, 64)},
        **{f"async-copied-{window}": 1 for window in (1, 64)},
        **{f"{role}-publishLatency{part}": 1 for role in ("sync", "async") for part in ("50pct", "99pct")},
        "catch-up-rate": 2,
        "catch-up-time": None,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert not any(str(tmp_path).encode() in line for line in command_lines())


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:  # it has ended meanwhile
            continue
    return found
