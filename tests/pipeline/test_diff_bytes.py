"""The job `diff` over the bytes of two logs: equal, or from where on not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.pipeline.jobs.diff import Sides, diff_bytes_here
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import Message

FILE = 65_536


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    """A log of several files."""
    made = StoreHome(tmp_path / "master")
    with made.open(mapped_file_size_commit_log=FILE) as store:
        for number in range(300):
            assert store.put(Message("T", b"%03d" % number * 300, queue_id=number % 2)).ok
    return made


def sides(a: StoreHome, b: StoreHome, **more: Any) -> Sides:
    return Sides(a=JobInput(stores=(str(a.path),)), b=JobInput(stores=(str(b.path),)), by="bytes", **more)


def plain(a: StoreHome, b: StoreHome, start: int, stop: int) -> list[int]:
    """The positions at which two logs differ."""
    one, two = (b"".join(path.read_bytes() for path in side.log_files()) for side in (a, b))
    return [at for at in range(start, stop) if one[at] != two[at]]


def test_a_copy_is_equal_to_the_byte(home: StoreHome, tmp_path: Path) -> None:
    found = diff_bytes_here(sides(home, home.copy_to(tmp_path / "slave")))
    assert (found.same, found.first, found.differing, found.examples) == (True, None, 0, [])
    assert found.compared == found.a_range[1] > 4 * FILE


def test_the_first_difference_is_told_with_the_messages_there(home: StoreHome, tmp_path: Path) -> None:
    slave = home.copy_to(tmp_path / "slave")
    slave.flip(slave.log_files()[2], 20_000)
    slave.flip(slave.log_files()[2], 20_010)
    slave.flip(slave.log_files()[3], 9)
    found = diff_bytes_here(sides(home, slave))
    assert (found.same, found.first, found.differing) == (False, 2 * FILE + 20_000, 3)
    first, second = found.examples
    assert (first.where.start, first.where.stop) == (2 * FILE + 20_000, 2 * FILE + 20_011)
    assert second.where.start == 3 * FILE + 9
    assert first.a is not None
    with home.open(read_only=True, mapped_file_size_commit_log=FILE) as store:
        record = store.look_up(first.a.physical_offset)
    assert record is not None
    assert record.physical_offset <= found.first < record.physical_offset + record.size
    assert (first.a.queue_id, first.a.queue_offset) == (record.queue_id, record.queue_offset)
    assert first.b is None, "its body was damaged, so there is no valid record"


def test_random_differences_are_those_of_a_plain_comparison(home: StoreHome, tmp_path: Path) -> None:
    chance = random.Random(5)
    for round_ in range(5):
        slave = home.copy_to(tmp_path / f"slave{round_}")
        for _ in range(chance.randrange(1, 12)):
            slave.flip(chance.choice(slave.log_files()[:-1]), chance.randrange(FILE))
        found = diff_bytes_here(sides(home, slave, up_to_common_end=True))
        positions = plain(home, slave, 0, found.compared)
        assert (found.first, found.differing) == (positions[0], len(positions))
        for position in positions:
            assert any(each.where.start <= position < each.where.stop for each in found.examples)


def test_a_slave_that_is_behind_or_began_later_has_no_differing_bytes(home: StoreHome, tmp_path: Path) -> None:
    slave = home.copy_to(tmp_path / "slave")
    with home.open(mapped_file_size_commit_log=FILE) as store:
        assert store.put(Message("T", b"more")).ok
        size = store.log.max_offset
    found = diff_bytes_here(sides(home, slave))
    assert (found.first, found.same, found.behind) == (None, False, size - found.b_range[1])
    assert diff_bytes_here(sides(home, slave, up_to_common_end=True)).same
    home.log_files()[0].unlink()
    later = diff_bytes_here(sides(home, slave, up_to_common_end=True))
    assert (later.same, later.a_range[0], later.b_range[0]) == (True, FILE, 0)


def test_a_file_that_one_side_lacks_is_a_range_that_differs(home: StoreHome, tmp_path: Path) -> None:
    slave = home.copy_to(tmp_path / "slave")
    slave.log_files()[1].unlink()
    found = diff_bytes_here(sides(home, slave, up_to_common_end=True))
    assert found.first == FILE
    assert (found.examples[0].where.stop, found.examples[0].where.missing, found.examples[0].b) == (2 * FILE, "b", None)


def test_empty_logs_are_equal(tmp_path: Path) -> None:
    a, b = StoreHome(tmp_path / "a"), StoreHome(tmp_path / "b")
    a.open().close()
    b.open().close()
    assert diff_bytes_here(sides(a, b)).same


def test_the_command_says_equal_or_where(home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slave = home.copy_to(tmp_path / "slave")
    both = ["store", "diff", str(home.path), str(slave.path), "--by", "bytes"]
    assert main(both) == 0
    assert "bytes are equal; the logs are the same." in capsys.readouterr().out
    slave.flip(slave.log_files()[0], 100)
    assert main(both) == 1
    assert "1 of" in (shown := capsys.readouterr().out)
    assert "the first at 100." in shown
    assert main([*both, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first"] == 100
    assert main([*both, "--topic", "T"]) == 2
    assert "leave --topic out" in capsys.readouterr().err
