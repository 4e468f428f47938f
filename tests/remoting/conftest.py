"""What the tests of connections share: they run on uvloop and on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from penstock.remoting import handler_types_and_errors

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine on each of the two loops; nothing that it started may be left over."""
    handler_types_and_errors._failures.clear()  # a line a second, also from test to test
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        yield runner.run
    assert not problems
