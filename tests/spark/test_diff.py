"""The job `diff` on Spark finds what the same code finds without it; what that is, tests below Spark say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.stores import StoreHome

from penstock.cli.main import main
from penstock.pipeline.jobs.diff import Sides, diff, diff_bytes, diff_bytes_here, diff_frame, diff_here
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import Message


def put(home: StoreHome, numbers: list[int]) -> StoreHome:
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in numbers:
            body, key = b"%d" % number * 50, {"UNIQ_KEY": f"u{number}"}
            message = Message(f"T{number % 2}", body, queue_id=number % 3, properties=key, born_timestamp=number)
            assert store.put(message).ok
    return home


def sides(a: StoreHome, b: StoreHome, **more: Any) -> Sides:
    return Sides(a=JobInput(stores=(str(a.path),)), b=JobInput(stores=(str(b.path),)), **more)


def test_diff_on_spark_is_diff_here(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    put(home, list(range(300)))
    copy = home.copy_to(tmp_path / "copy")
    lossy = put(StoreHome(tmp_path / "lossy"), [n for n in range(300) if n not in (50, 51)])
    damaged = home.copy_to(tmp_path / "damaged")
    damaged.flip(damaged.log_files()[0], 500)
    empty = StoreHome(tmp_path / "empty")
    empty.open().close()
    for other, by, same in (
        (copy, "place", True),
        (lossy, "key", False),
        (damaged, "place", False),
        (empty, "place", False),
    ):
        both = sides(home, other, by=by)
        found = diff(spark, both)
        assert found == diff_here(both), (other.path, by)
        assert found.same == same
    logs = sides(home, damaged, by="bytes")
    assert diff_bytes(spark, logs) == diff_bytes_here(logs)


def test_differences_are_rows(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    put(home, list(range(40)))
    lossy = put(StoreHome(tmp_path / "lossy"), [n for n in range(40) if n != 12])
    frame = diff_frame(spark, sides(home, lossy))
    kinds = {row.kind: row["count"] for row in frame.groupBy("kind").count().collect()}
    found = diff_here(sides(home, lossy))
    assert kinds == {"only_a": 1, "moved": found.count("moved")}
    (lost,) = frame.where("kind = 'only_a'").collect()
    assert (lost.topic, lost.a_queue_id, lost.a_queue_offset, lost.b_queue_id) == ("T0", 0, 2, None)
    assert diff_frame(spark, sides(home, home.copy_to(tmp_path / "copy"))).count() == 0


def test_the_command_runs_on_spark(
    spark: SparkSession, home: StoreHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(home, list(range(20)))
    other = home.copy_to(tmp_path / "other")
    both = ["pipeline", "diff", str(home.path), str(other.path)]
    assert main(both) == 0
    shown = capsys.readouterr()
    assert "A and B are the same." in shown.out
    assert "penstock diff" in shown.err, "the instant twin is named"
    put(other, [20])
    assert main([*both, "--by", "bytes", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["behind"] < 0
    assert main([*both, "--up-to-common-end"]) == 0
    assert main(["pipeline", "diff", str(home.path)]) == 2
    assert "compare with what?" in capsys.readouterr().err
