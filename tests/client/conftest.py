"""What the tests of the client share: a real broker for each test, and a loop that reports what went wrong in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from penstock.remoting.event_loop import loop_factory
from penstock.testing import LocalBroker, broker

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a coroutine; nothing in the loop may have failed unseen."""
    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        yield runner.run
    assert not problems


@pytest.fixture
def b() -> Iterator[LocalBroker]:
    """A broker with the topic `orders`, of four queues, whose delay levels are short."""
    with broker({"orders": 4}, settings={"messageDelayLevel": "1s 1s 1s 1s 1s 1s"}) as running:
        yield running
