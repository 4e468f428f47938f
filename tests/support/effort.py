"""How much a run tries: its seed, the twin of the kernels, the parts that `make test` leaves to `make test-rest`.

On a developer's machine each run has another seed, so that more is tried over time. In CI (the environment has CI) it
is always the same: a change is judged by what it changes, not by luck. PENSTOCK_SEED sets one anywhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from penstock.format import kernels
from penstock.format.kernels import plain

IS_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
_IN_CI = 20260401


def chosen_seed() -> int:
    """The seed of this test, printed as it can be set again."""
    seed = int(os.environ.get("PENSTOCK_SEED") or (_IN_CI if IS_CI else random.randrange(1 << 30)))
    print(f"PENSTOCK_SEED={seed}")
    return seed


def tell_progress(what: str, done: int, total: int, every: int) -> None:
    """Prints a line after each `every` of many: a run of hours shows where it is.

    On stderr, which pytest-xdist's workers share with the terminal, where nothing captures it (`-s`).
    """
    if done % every == 0 or done == total:
        print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)


TWINS = ["plain"]
if importlib.util.find_spec("penstock.format.kernels._compiled") is not None:
    TWINS.append("compiled")


def use_twin(twin: str) -> None:
    """Replaces every kernel by that of the twin 'compiled' or 'plain'.

    Penstock chooses a twin once, at import. This reaches every caller that calls through the module
    (`kernels.walk(...)`), as all of src does.
    """
    module = plain if twin == "plain" else importlib.import_module("penstock.format.kernels._compiled")
    for name in plain.__all__:
        setattr(kernels, name, getattr(module, name))
    kernels.active = twin


@contextmanager
def running_on(twin: str) -> Iterator[None]:
    """Runs a block on one twin, then goes back to the other."""
    before = kernels.active
    use_twin(twin)
    try:
        yield
    finally:
        use_twin(before)


def quick_report(suite: str, folder: Path, *options: str) -> dict[str, Any]:
    """The JSON of one quick round, which is left in `folder` as `report.json`."""
    from bench.__main__ import main  # importable once the conftest of `tests/bench` was

    file = folder / "report.json"
    quick = ["--quick", "--rounds", "1", "--json", str(file), "--dir", str(folder)]
    assert main([suite, *quick, *options]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def in_parts(values: Iterable[Any], quick: int = 1) -> list[ParameterSet]:
    """Parameters of which `make test` runs the first few, and `make test-rest` the others."""
    return [pytest.param(value, marks=() if at < quick else pytest.mark.rest) for at, value in enumerate(values)]


BY_TWIN = in_parts(reversed(TWINS))
"""A parameter for tests that need a twin by name; `kernels_name` is for the others."""
