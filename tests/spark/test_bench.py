"""The benchmarks of the source and of the jobs run, and do the same work. How fast is not a test's matter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support import ROOT

sys.path.insert(0, str(ROOT))

from bench.pipeline import PipelineSuite
from bench.report import as_markdown
from bench.run import Options, run
from bench.spark import SparkSuite

CHOSEN = ("by-topic-128b", "to-parquet-128b")
OTHERS = ("ready", "parquet", "broker")


@pytest.mark.slow
def test_questions_are_asked_of_all_four_sides_and_nothing_is_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    only = tuple(f"{question}-ready" for question in CHOSEN)
    report = run(SparkSuite(spark), Options(quick=True, rounds=1, only=only, folder=tmp_path), lambda step: None)
    names = [result.row.name for result in report.results]
    assert names == [f"{question}-{other}" for question in CHOSEN for other in OTHERS]
    for result in report.results:
        assert result.status == "measured", result.note
        assert result.ours is not None
        assert result.java is not None
        assert min(result.ours.least, result.java.least) > 0
        assert result.ratio is not None
    assert not list(tmp_path.iterdir())
    assert spark.range(3).count() == 3  # a session that was given goes on
    text = as_markdown(report)
    assert "| Row | Penstock | Other side |" in text
    assert "Spark 4" in text


@pytest.mark.slow
def test_jobs_go_over_all_messages_on_spark_and_without(spark: SparkSession, tmp_path: Path) -> None:
    only = ("usage-100b-1core", "verify-1k-1core")
    options = Options(quick=True, rounds=1, only=only, folder=tmp_path, with_java=False)
    report = run(PipelineSuite(spark), options, lambda step: None)
    names = [result.row.name for result in report.results]
    ways = ("1core", "2cores", "alone")
    assert names == [f"{job}-{way}" for job in ("usage-100b", "verify-1k") for way in ways]
    for result in report.results:
        assert result.status == "measured", result.note
        assert result.ours is not None
        assert result.ours.least > 0
    assert not list(tmp_path.iterdir())
    assert spark.range(3).count() == 3
