"""Fixtures of the store's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.disks import FaultyFiles
from support.stores import StoreHome

from penstock.format import kernels


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    place = StoreHome(tmp_path / "store")
    yield place
    place.close_all()


@pytest.fixture
def disk() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def run_python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python process that runs a text with arguments; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(text: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", text, *map(str, arguments)],
            env={**os.environ, "PENSTOCK_KERNELS": kernels.active},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
