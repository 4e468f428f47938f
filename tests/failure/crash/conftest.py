"""Fixtures of the crash tests."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def only_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of starts tell hundreds of times what they found; what matters is asserted."""
    caplog.set_level(logging.ERROR, logger="penstock.store")
