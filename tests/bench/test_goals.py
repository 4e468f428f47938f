"""Every row of the project's goals exists, and one command gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import SUITES, chosen, main
from bench.goals import GOALS
from bench.workspace import BenchFailed


def rows_of(name: str) -> set[str]:
    (suite,) = [suite for suite in SUITES if suite.name == name]
    return {row.name for task in suite.tasks(Path("unused"), quick=True) for row in task.rows}


@pytest.mark.parametrize("suite", GOALS)
def test_every_row_of_the_goals_exists(suite: str) -> None:
    assert set(GOALS[suite]) <= rows_of(suite)


def test_send_and_consume_have_a_row_of_cpu_time_beside_them() -> None:
    both = [name for name in GOALS["broker"] if name.startswith(("send-", "consume-"))]
    assert {f"{name}-cpu" for name in both} <= rows_of("broker")


def test_goals_are_the_rows_of_all_suites_that_have_some() -> None:
    assert {suite.name: names for suite, names in chosen(["goals"])} == GOALS


def test_a_name_chooses_the_suites_that_have_it() -> None:
    assert [(suite.name, names) for suite, names in chosen(["send-128b-64", "catch-up"])] == [
        ("broker", ("send-128b-64",)),
        ("replication", ("catch-up",)),
    ]
    assert [(suite.name, names) for suite, names in chosen(["recovery"])] == [("recovery", ())]
    assert [suite for suite, _ in chosen([])] == list(SUITES)


def test_a_name_that_no_suite_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchFailed, match="nothing called 'putt'"):
        chosen(["putt"])
    assert main(["putt"]) == 2
    assert "'putt'" in capsys.readouterr().err


def test_a_row_is_measured_by_its_name_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get-raw-1k", "--quick", "--rounds", "1", "--no-java", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "get raw pages of 32, 1 KB" in said.out
    assert "not kept" in said.err
