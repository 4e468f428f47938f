"""The how-to pages about Spark: what they print runs, block after block, in the session of the tests."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.cli.main import main

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("page", ["query-with-spark", "tail-into-a-table", "write-with-spark"])
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Relative paths of the page are relative to where the reader works; Spark's JVM works elsewhere.
    text = (HOW_TO / f"{page}.md").read_text(encoding="utf-8").replace('"data/', f'"{tmp_path}/data/')
    text = text.replace("'data/", f"'{tmp_path}/data/")
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) >= 2
    names: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}-{number}", "exec"), names)  # the documents are ours


@pytest.mark.slow
def test_the_commands_of_the_page_about_lakes_run_one_after_the_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (HOW_TO / "export-to-a-lake.md").read_text(encoding="utf-8").replace('"data/', f'"{tmp_path}/data/')
    names: dict[str, object] = {"__name__": "page"}
    commands = 0
    for kind, block in re.findall(r"^```(py|sh)\n(.*?)^```", text, re.M | re.S):
        if kind == "py":
            exec(compile(block, "export-to-a-lake", "exec"), names)
            continue
        for line in block.splitlines():
            assert main(shlex.split(line)[1:]) == 0, line
            commands += 1
    assert commands == 5
