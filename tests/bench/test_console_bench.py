"""The benchmark of the console runs from end to end, on small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("nicegui")


@pytest.mark.slow
def test_the_broker_is_measured_with_it_and_without(tmp_path: Path) -> None:
    from bench.__main__ import main

    file = tmp_path / "report.json"
    options = ["--quick", "--rounds", "1", "--only", "beside", "--json", str(file), "--dir", str(tmp_path)]
    assert main(["console", *options]) == 0
    found = {each["row"]["name"]: each for each in json.loads(file.read_text())["results"]}
    assert len(found) == 2
    assert all(each["ratio"]["value"] > 0 for each in found.values())


@pytest.mark.slow
def test_idle_cost_is_measured(tmp_path: Path) -> None:
    from bench.__main__ import main

    file = tmp_path / "report.json"
    options = ["--quick", "--rounds", "1", "--no-java", "--only", "idle", "--json", str(file), "--dir", str(tmp_path)]
    assert main(["console", *options]) == 0
    found = {each["row"]["name"]: each for each in json.loads(file.read_text())["results"]}
    assert found["idle-memory"]["ours"]["median"] > 20e6
    assert found["idle-processor"]["ours"]["median"] >= 0
