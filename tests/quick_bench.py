"""Runs a suite of the benchmark on small sizes, as a person would, and reads what it reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def quick_report(suite: str, folder: Path, *options: str) -> dict[str, Any]:
    """The JSON of one quick round, which is left in `folder` as `report.json`."""
    from bench.__main__ import main  # importable once the conftest of `tests/bench` was

    file = folder / "report.json"
    quick = ["--quick", "--rounds", "1", "--json", str(file), "--dir", str(folder)]
    assert main([suite, *quick, *options]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found
