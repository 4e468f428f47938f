"""Fixtures of the damage tests."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from failure.corruption.damaged_store import Base, make_base


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of starts tell hundreds of times what they found; what matters is asserted."""
    caplog.set_level(logging.CRITICAL, logger="penstock.store")


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Base, Base]:
    """A store that was closed, and one that was killed."""
    folder: Path = tmp_path_factory.mktemp("bases")
    return make_base(folder / "closed", is_clean=True), make_base(folder / "killed", is_clean=False)
