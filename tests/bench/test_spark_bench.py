"""What the benchmark of the Spark source is made of, without Spark. `tests/spark/test_bench.py` runs it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the suite `spark` needs the extra `spark`")

from pyspark.sql.datasource import InputPartition

from bench.ready_source import ReadyReader, save_batch
from bench.report import cells
from bench.run import Run, Spread, summarise
from bench.spark import FULL, QUICK, Places, Session, SparkSuite, Wanted, messages

TABLES = ("count-table", "by-tag-table", "by-topic-table", "scan")
"""The questions to a table, whose CPU time is compared as well."""
GROUPS = (*TABLES, "count", "count-log", "count-all", "by-topic", "by-topic-log", "to-parquet")
OTHERS = ("ready", "parquet", "broker")
CPU = ("parquet-cpu", "ready-cpu")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, 128, QUICK, Session(tmp_path))


def test_each_question_has_a_row_for_each_size_and_each_other_side(tmp_path: Path) -> None:
    rows = [row for task in SparkSuite().tasks(tmp_path, quick=False) for row in task.rows]
    assert [row.name for row in rows] == [
        f"{group}-{size}-{other}"
        for size in ("128b", "1k")
        for group in GROUPS
        for other in (*OTHERS, *(CPU if group in TABLES else ()))
    ]
    assert not list(tmp_path.iterdir())


def test_every_goal_of_the_source_stands_at_its_row(tmp_path: Path) -> None:
    rows = [row for task in SparkSuite().tasks(tmp_path, quick=False) for row in task.rows]
    goals = {row.name: (row.goal.kind, row.goal.value) for row in rows if row.goal}
    counts_and_aggregates = {row.name for row in rows if not row.name.startswith(("to-parquet", "scan"))}
    assert {name for name, goal in goals.items() if goal == ("ratio at least", 0.8)} == {
        row.name for row in rows if row.name.endswith(("-ready", "-ready-cpu"))
    }
    by_parquet = {name: value for name, (_, value) in goals.items() if name.endswith("-parquet-cpu")}
    assert set(by_parquet.values()) == {1 / 2, 1 / 1.1}
    assert {name for name, value in by_parquet.items() if value > 1 / 2} == {
        "scan-128b-parquet-cpu",
        "scan-1k-parquet-cpu",
    }
    assert {name for name, goal in goals.items() if goal == ("ratio at least", 10)} == {
        name for name in counts_and_aggregates if name.endswith("-broker")
    }
    assert len(goals) == 52


def test_a_full_run_reads_about_a_gigabyte_of_log_of_each_size(tmp_path: Path) -> None:
    for body, count in FULL.messages.items():
        small = msgspec.structs.replace(QUICK, messages={body: 2_000}, topics=FULL.topics, queues=FULL.queues)
        places = Places(tmp_path, body, small, Session(tmp_path))
        file = next((places.store / "commitlog").iterdir())
        with file.open("rb") as log:
            record = int.from_bytes(log.read(4), "big")
        assert 0.8e9 < record * count < 1.3e9


def test_messages_are_spread_over_all_queues_and_do_not_depend_on_how_many_there_are() -> None:
    batch = messages(128, 0, 1600, FULL)
    spread = Counter(zip(batch.column("topic").to_pylist(), batch.column("queue_id").to_pylist(), strict=True))
    assert len(spread) == 16
    assert set(spread.values()) == {100}
    assert set(pa.compute.binary_length(batch.column("body")).to_pylist()) == {128}
    fewer = messages(128, 0, 10, FULL)
    assert fewer.select(["topic", "keys", "queue_id"]) == batch.slice(0, 10).select(["topic", "keys", "queue_id"])


@pytest.mark.parametrize(("rows", "tasks"), [(1000, 1), (1001, 3), (2, 4)])
def test_ready_made_batches_are_as_many_rows_as_asked_for(tmp_path: Path, rows: int, tasks: int) -> None:
    file = tmp_path / "ready.arrow"
    batch = pa.RecordBatch.from_pydict({"topic": ["a"] * 300})
    save_batch(batch, file)
    reader = ReadyReader(str(file), rows, tasks)
    parts = reader.partitions()
    assert len(parts) == tasks
    read = [each for part in parts for each in reader.read(part)]
    assert sum(each.num_rows for each in read) == rows
    assert {each.schema for each in read} == {batch.schema}
    assert list(reader.read(InputPartition(0))) == []


@pytest.mark.parametrize("wanted", [Wanted(("topic",)), Wanted(("topic", "store_size"), order="log"), Wanted()])
def test_the_ceiling_has_the_columns_and_the_batches_of_ours(places: Places, wanted: Wanted) -> None:
    options = places.ready_options(wanted)
    (batch,) = ReadyReader(options["file"], int(options["rows"]), 1).read(InputPartition(10))
    assert options["rows"] == str(QUICK.messages[128])
    assert batch.num_rows == 10
    assert len(batch.schema.names) == (len(wanted.columns) or 20)
    assert list(wanted.columns) == batch.schema.names[: len(wanted.columns)]


def test_the_table_says_how_many_bytes_of_bodies_a_figure_is(tmp_path: Path) -> None:
    row = SparkSuite().tasks(tmp_path, quick=True)[0].rows[0]
    result = summarise(row, [Run.of(2e6, {})] * 3, [Run.of(4e6, {})] * 3)
    assert cells(result)[1] == "2 M/s (256 MB/s)"
    assert result.java == Spread.of([4e6] * 3)
    assert result.met is False
