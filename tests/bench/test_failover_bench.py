"""The benchmark of failover: outages are measured as a client sees them, and every row exists."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.effort import quick_report

from bench.failover import GOALS_S, STRIKES, FailoverSuite, longest_gap, share_of


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5.0), (0.99, 10.0), (0.1, 1.0), (1.0, 10.0)])
def test_a_share_is_the_least_value_that_it_does_not_exceed(share: float, expected: float) -> None:
    assert share_of([float(each) for each in range(1, 11)], share) == expected


def test_a_share_of_one_value_is_that_value() -> None:
    assert share_of([3.0], 0.5) == share_of([3.0], 0.99) == 3.0


def test_an_outage_is_the_longest_time_between_two_acknowledgements() -> None:
    assert longest_gap([1.0, 1.1, 1.2, 4.2, 4.3, 5.0]) == pytest.approx(3.0)


def test_each_strike_has_rows_with_goals(tmp_path: Path) -> None:
    rows = {row.name: row for task in FailoverSuite().tasks(tmp_path, quick=True) for row in task.rows}
    for strike in STRIKES:
        for part, goal in zip(("p50", "p99"), GOALS_S[strike], strict=True):
            found = rows[f"{strike}-{part}"].goal
            assert found is not None
            assert found.value == goal
    assert {"steady-1", "steady-64"} <= rows.keys()
    assert not list(tmp_path.iterdir()), "nothing is started"


@pytest.mark.etcd
@pytest.mark.slow
def test_every_row_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    found = quick_report("failover", tmp_path, "--no-java")["results"]
    assert all(each["status"] == "measured" and each["ours"]["least"] > 0 for each in found)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
