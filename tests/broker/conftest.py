"""What the tests of the broker share: a folder for a broker, and a loop that reports what went wrong in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import BrokerHome

from penstock.remoting.event_loop import loop_factory

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def home(tmp_path: Path) -> BrokerHome:
    return BrokerHome(tmp_path / "store")


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a coroutine; nothing in the loop may have failed unseen."""
    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        yield runner.run
    assert not problems
