"""Two brokers are measured beside one, with the same work on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.brokers import BrokersSuite
from bench.run import measure


@pytest.mark.rest
def test_both_sides_send_and_consume_the_same(tmp_path: Path) -> None:
    suite = BrokersSuite()
    try:
        for task in suite.tasks(tmp_path, quick=True):
            (result,) = measure(task, 1, lambda step: None)
            assert result.status == "measured", result.note
            assert result.cpu is not None
            assert result.java_cpu is not None
    finally:
        suite.close()
