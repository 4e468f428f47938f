"""Runs tests on both twins of the kernels.

Penstock chooses a twin once, at import. Here the attributes of `penstock.format.kernels` are replaced instead, which
reaches every caller that calls through this module (`kernels.walk(...)`), as all of src does.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.format import kernels
from penstock.format.kernels import plain

TWINS = ["plain"]
if importlib.util.find_spec("penstock.format.kernels._compiled") is not None:
    TWINS.append("compiled")


def use_twin(twin: str) -> None:
    """Has every kernel replaced by that of the twin 'compiled' or 'plain'."""
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
