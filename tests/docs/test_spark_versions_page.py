"""The table of Spark's versions is the one of the kept results, and has every version that is promised."""

from __future__ import annotations

import json
import re

import spark_matrix

RESULTS = json.loads(spark_matrix.RESULTS.read_text(encoding="utf-8"))


def test_the_table_is_made_of_the_kept_results() -> None:
    page = spark_matrix.PAGE.read_text(encoding="utf-8")
    assert spark_matrix.page_with(RESULTS, page) == page, "run tools/spark_matrix.py --table"


def test_no_kept_result_is_a_failure_or_of_another_version() -> None:
    assert {spark_matrix.cell_of(each) for each in RESULTS} <= set(map(str, spark_matrix.all_cells()))
    results = [result for each in RESULTS for part in each["checks"].values() for result in part.values()]
    assert results
    assert [result for result in results if result != "yes" and not result.startswith(("no: ", "not run: "))] == []


def test_the_table_names_exceptions_and_what_was_not_run() -> None:
    results = [
        {"spark": "4.0.5", "python": python, "checks": {"jobs": {"usage": "yes", "lake": "no: needs 4.2"}}}
        for python in ("3.11.7", "3.12.1")
    ]
    table = spark_matrix.table(results).splitlines()
    (row,) = (line for line in table if line.startswith("| 4.0.5 | 3.11, 3.12 |"))
    assert row.endswith("| yes, without lake | not run | not run |")
    assert any(re.fullmatch(r"\| 4\.0\.5 \| 3\.13 (\| not run )+\|", line) for line in table)
    checks = {
        "streams": {"a": "yes", "b": "not run: busy"},
        "jobs": {"c": "not run: busy"},
        "batch read": {"d": "no: x"},
    }
    (row,) = (
        line for line in spark_matrix.table([{**results[0], "checks": checks}]).splitlines() if "| 3.11 |" in line
    )
    assert row == "| 4.0.5 | 3.11 | no | not run | yes, not run: b | not run | not run | not run | not run |"
    newest = spark_matrix.table([{"spark": "4.3.0", "python": "3.11.7", "checks": {}}])
    assert any(line.startswith("| 4.3.0 | 3.11 |") and line.endswith("| no package |") for line in newest.splitlines())
