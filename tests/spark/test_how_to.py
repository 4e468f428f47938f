"""The pages about Spark: what they print runs, block after block, in the session of the tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.documents import to_run

import penstock.testing
from penstock.cli.main import main
from penstock.store import Message, MessageStore, Settings


def in_folder(text: str, folder: Path) -> str:
    """Paths of a page are relative to where the reader works, or in the root; Spark's JVM works elsewhere."""
    return re.sub(r"(?<=[\"'])/?data/", f"{folder}/data/", text)


@pytest.mark.parametrize(
    "page", ["query-with-spark", "tail-into-a-table", "write-with-spark", "from-kafka", "spark-recipes"]
)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = to_run(f"docs/how-to/{page}.md", "py")
    assert len(blocks) >= 2
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(in_folder(block.text, tmp_path), block.place, "exec"), names)  # the documents are ours
    if "listener" in names:
        spark.streams.removeListener(names["listener"])  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["README.md", "docs/quickstart.md", "docs/reference/spark.md", "docs/reference/spark-sink.md"]
)
def test_the_examples_of_a_reference_run(page: str, spark: SparkSession, tmp_path: Path) -> None:
    """They begin in the middle: a session, a store, a cluster and frames to be written are there already."""
    with MessageStore.open(tmp_path / "data" / "store", Settings.dev()) as store:
        assert store.put(Message("orders", b"two shirts", tags="paid")).ok
    rows = spark.createDataFrame([("shirts",)], "body string")
    arriving = spark.readStream.format("rocketmq").option("subscribe", "orders").load(str(store.layout.root))
    names: dict[str, object] = {"spark": spark, "df": rows, "totals": rows, "stream": arriving.select("body")}
    (block,) = to_run(page, "py")
    with penstock.testing.broker(topics=["orders", "clicks", "results"]) as broker:
        text = re.sub(r"(10\.0\.0\.1|127\.0\.0\.1):9876", broker.namesrv, in_folder(block.text, tmp_path))
        exec(compile(text, block.place, "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()


@pytest.mark.slow
def test_the_commands_of_the_page_about_lakes_run_one_after_the_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    commands = 0
    for block in to_run("docs/how-to/export-to-a-lake.md", "py", "sh"):
        if block.kind == "py":
            exec(compile(in_folder(block.text, tmp_path), block.place, "exec"), names)
            continue
        for line in block.text.splitlines():
            assert main(shlex.split(line)[1:]) == 0, line
            commands += 1
    assert commands == 5
