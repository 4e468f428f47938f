"""Fixtures of the tests of repair and rebuild."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.damage import DamagedHome


@pytest.fixture
def home(tmp_path: Path) -> Iterator[DamagedHome]:
    place = DamagedHome(tmp_path / "store")
    yield place
    place.close_all()


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Starts and builds log what they skip; the tests assert what matters."""
    caplog.set_level(logging.CRITICAL, logger="penstock.store")
