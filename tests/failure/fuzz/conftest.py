"""The broker that the tests of hostile input attack, as a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from failure.fuzz.neighbour import DECOY, Memory, Neighbour
from support.brokers import Served
from support.loopback import SOON_S

GROWTH_MIB = 96
"""What one test's attack may leave behind in the process."""


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("home") / "between"
    folder.mkdir()
    with Served(folder / "store") as broker:
        decoy = broker.folder / DECOY
        decoy.parent.mkdir()
        decoy.write_text("not a queue")
        yield broker
        assert broker.stop() == 0
        assert "Traceback" not in broker.said


@pytest.fixture
def neighbour(served: Served) -> Iterator[Neighbour]:
    """Served throughout; and what the attack took is given back."""
    memory = Memory(served.pid)
    with Neighbour(served) as client:
        before = memory.own
        yield client
    deadline = time.monotonic() + SOON_S
    while memory.own - before >= GROWTH_MIB:  # large frames are read, and dropped, in turns
        assert time.monotonic() < deadline, f"the attack left {memory.own - before:.0f} MiB behind"
        time.sleep(0.01)
