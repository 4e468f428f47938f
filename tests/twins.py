"""The two forms of the kernels, for tests that run on both."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.format import kernels

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
