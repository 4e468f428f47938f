"""Fixtures of the crash tests."""

from __future__ import annotations

import logging

import pytest
from support.messages import SMALL_STEPS


@pytest.fixture(autouse=True)
def a_log_that_grows_has_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SMALL_STEPS.items():
        monkeypatch.setattr(name, size)


@pytest.fixture(autouse=True)
def only_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of starts tell hundreds of times what they found; what matters is asserted."""
    caplog.set_level(logging.ERROR, logger="penstock.store")
