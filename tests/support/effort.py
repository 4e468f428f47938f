"""How a run is set: its seed, the twin of the kernels, quick rounds of the benchmark.

On a developer's machine each run has another seed, so that more is tried over time. In CI (the environment has CI) it
is always the same: a change is judged by what it changes, not by luck. PENSTOCK_SEED sets one anywhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.format import kernels

IS_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
_IN_CI = 20260401


def chosen_seed() -> int:
    """The seed of this test, printed as it can be set again."""
    seed = int(os.environ.get("PENSTOCK_SEED") or (_IN_CI if IS_CI else random.randrange(1 << 30)))
    print(f"PENSTOCK_SEED={seed}")
    return seed


TWINS = ["plain"]
if importlib.util.find_spec("penstock.format.kernels._compiled") is not None:
    TWINS.append("compiled")


@contextmanager
def running_on(twin: str) -> Iterator[None]:
    """Runs a block on one twin and then goes back; asserts which one it is."""
    before = kernels.active
    assert kernels.select(twin) == twin
    try:
        yield
    finally:
        kernels.select(before)


def quick_report(suite: str, folder: Path, *options: str) -> dict[str, Any]:
    """The JSON of one quick round, which is left in `folder` as `report.json`."""
    from bench.__main__ import main  # importable once the conftest of `tests/bench` was

    file = folder / "report.json"
    quick = ["--quick", "--rounds", "1", "--json", str(file), "--dir", str(folder)]
    assert main([suite, *quick, *options]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found
