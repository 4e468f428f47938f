"""What tests of lakes share: runs in processes of their own, each with a Spark of its own kind, and their tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from spark_cluster import QUICK

import penstock

SETTINGS = [
    *("--master", "local[2]"),
    *("--conf", "spark.driver.memory=1g"),
    *("--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", f"spark.driver.extraJavaOptions={QUICK}"),
]


def start(lake: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    environment.pop("SPARK_CONF_DIR", None)
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=lake.parent
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        written, said = process.communicate(timeout=1200)
    finally:
        process.kill()
    return process.returncode, written, said


def command(lake: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", "pipeline", "lake", "run", str(lake), *SETTINGS, *more]


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    return ds.dataset(lake / "tables" / table, format="parquet").to_table().to_pylist()
