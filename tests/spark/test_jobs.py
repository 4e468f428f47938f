"""Jobs on Spark give what the same code gives without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_rows import sentence
from store_home import StoreHome

from penstock.pipeline.jobs.usage import usage, usage_here
from penstock.store import Message


def fill(home: StoreHome) -> None:
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in range(300):
            tags = "red" if number % 3 else "green"
            body = b"%d" % number * 100
            assert store.put(Message(f"T{number % 2}", body, tags=tags, queue_id=number % 4, keys=(f"k{number}",))).ok


def test_usage_on_spark_is_usage_here(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    fill(home)
    other = home.copy_to(tmp_path / "copy")
    found = usage(spark, [str(home.path), str(other.path)])
    here = usage_here([str(home.path), str(other.path)])
    assert found.tally == here.tally
    assert found.messages == 600


def test_what_a_worker_meets_is_one_sentence(spark: SparkSession, home: StoreHome) -> None:
    from penstock.errors import BadStore
    from penstock.pipeline.workers import in_workers

    def fail(piece: int) -> object:
        raise BadStore(f"piece {piece} is no good", path="somewhere")

    with pytest.raises(Exception) as error:
        in_workers(spark, [7], fail, "x int").collect()  # type: ignore[arg-type]
    assert sentence(error) == "somewhere: piece 7 is no good"
