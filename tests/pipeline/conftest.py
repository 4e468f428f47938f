"""What the tests of the pipeline share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import LocalBroker, broker


@pytest.fixture
def b() -> Iterator[LocalBroker]:
    """A broker with the topic `orders`, of four queues."""
    with broker({"orders": 4}) as running:
        yield running
