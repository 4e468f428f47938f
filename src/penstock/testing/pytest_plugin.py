"""The pytest plugin: fixtures for a running broker.

    def test_orders(penstock_broker):
        producer = Producer("orders-service", penstock_broker.namesrv)

`penstock_broker` is new for each test, with an empty store. `penstock_broker_session` is shared by the whole run, for
tests that use their own topics and groups. The plugin imports Penstock only when a test uses one of these fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.local_broker import LocalBroker


@pytest.fixture
def penstock_broker() -> Iterator[LocalBroker]:
    """A RocketMQ broker with a name server, on free ports, with an empty store: `.namesrv`, `.address`, `.admin()`."""
    from penstock.testing.local_broker import broker

    with broker() as running:
        yield running


@pytest.fixture(scope="session")
def penstock_broker_session() -> Iterator[LocalBroker]:
    """A RocketMQ broker like `penstock_broker`, but shared by the whole run."""
    from penstock.testing.local_broker import broker

    with broker() as running:
        yield running
