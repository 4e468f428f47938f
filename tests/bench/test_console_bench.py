"""The benchmark of the console runs from end to end, on small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.effort import quick_report

pytest.importorskip("nicegui")


@pytest.mark.slow
def test_the_broker_is_measured_with_it_and_without(tmp_path: Path) -> None:
    report = quick_report("console", tmp_path, "--only", "beside")
    found = {each["row"]["name"]: each for each in report["results"]}
    assert len(found) == 2
    assert all(each["ratio"]["value"] > 0 for each in found.values())


@pytest.mark.slow
def test_idle_cost_is_measured(tmp_path: Path) -> None:
    report = quick_report("console", tmp_path, "--no-java", "--only", "idle")
    found = {each["row"]["name"]: each for each in report["results"]}
    assert found["idle-memory"]["ours"]["median"] > 20e6
    assert found["idle-processor"]["ours"]["median"] >= 0
