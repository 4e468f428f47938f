"""The pytest plugin: fixtures for a running broker.

    def test_orders(penstock_broker):
        producer = Producer("orders-service", penstock_broker.namesrv)

`penstock_broker` is new for each test, with an empty store. The marker `penstock` gives it topics and settings:

    @pytest.mark.penstock(topics={"orders": 4}, settings={"messageDelayLevel": "1s 1s 1s"})

`penstock_broker_session` is shared by the whole run, for tests that use their own topics and groups. The broker runs in
a thread, so both serve asynchronous tests as well. The plugin imports Penstock only when a test uses one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing.local_broker import LocalBroker


_ARGUMENTS = ("topics", "settings")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker, so that `--strict-markers` knows it."""
    config.addinivalue_line(
        "markers", "penstock(topics, settings): the topics and the broker's settings of the fixture penstock_broker"
    )


@pytest.fixture
def penstock_broker(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """A RocketMQ broker with a name server, on free ports, with an empty store: `.namesrv`, `.address`, `.admin()`,
    `.messages(topic)`. The marker `penstock` gives it topics and settings.
    """
    from penstock.testing.local_broker import broker

    with broker(**_marked(request.node)) as running:
        yield running


def _marked(item: pytest.Item) -> dict[str, Any]:
    """Returns the arguments of the markers of a test. Those of the test itself override those of its class or module,
    argument by argument. Raises pytest.UsageError for an argument that the marker does not take.
    """
    arguments: dict[str, Any] = {}
    for marker in item.iter_markers("penstock"):  # the closest first
        unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in _ARGUMENTS)]
        if unknown:
            raise pytest.UsageError(
                f"the marker penstock takes {' and '.join(_ARGUMENTS)} by name; found {', '.join(unknown)}"
            )
        for name, value in marker.kwargs.items():
            arguments.setdefault(name, value)
    return arguments


@pytest.fixture(scope="session")
def penstock_broker_session() -> Iterator[LocalBroker]:
    """A RocketMQ broker like `penstock_broker`, but shared by the whole run."""
    from penstock.testing.local_broker import broker

    with broker() as running:
        yield running
