"""`penstock perf produce` and `penstock perf consume`, against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from cli.conftest import Ran

from penstock.cli.cluster.perf import Latencies
from penstock.testing import LocalBroker, broker

if TYPE_CHECKING:
    from cli.conftest import Run

Penstock = Callable[..., Ran]


@pytest.fixture(scope="module")
def b() -> Iterator[LocalBroker]:
    with broker() as running:
        yield running


@pytest.fixture
def penstock(run: Run, b: LocalBroker) -> Penstock:
    """Runs a verb against the broker."""
    return lambda *arguments: run(*arguments, "-n", b.namesrv)


def test_what_was_sent_is_read(penstock: Penstock) -> None:
    penstock("topic", "create", "perf-test", "-r", 4, "-w", 4).done()
    sent = (
        penstock("perf", "produce", "perf-test", "--count", 200, "--size", 100, "--in-flight", 8, "--json").done().json
    )
    assert (sent["messages"], sent["failed"], sent["size"], sent["in_flight"]) == (200, 0, 100, 8)
    assert sent["messages_per_second"] > 0
    assert 0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99"] <= sent["latency_ms"]["max"]
    read = penstock("perf", "consume", "perf-test", "--json").done().json
    assert (read["messages"], read["queues"]) == (201, 4)  # one more, which found the way
    assert 50 <= penstock("perf", "consume", "perf-test", "--count", 50, "--json").done().json["messages"] < 201
    text = penstock("perf", "produce", "perf-test", "--count", 5, "--rate", 1000).done().out
    assert text.startswith("sent 5 messages in ")
    assert "latency p50 " in text
    assert penstock("perf", "consume", "perf-test").done().out.startswith("read 207 messages in ")


def test_the_time_may_be_limited(penstock: Penstock) -> None:
    ran = penstock("perf", "produce", "perf-time", "--count", 10**9, "--seconds", 0.2, "--json").done().json
    assert 0 < ran["messages"] < 10**9


def test_a_topic_that_refuses_sends_is_one_sentence(penstock: Penstock, run: Run) -> None:
    penstock("topic", "create", "read-only", "--perm", 4).done()
    assert "no writable queue" in penstock("perf", "produce", "read-only").refused()
    assert "did you mean 'read-only'?" in penstock("perf", "consume", "read-onli").refused()
    assert "must be above 0" in penstock("perf", "produce", "read-only", "--rate", 0).refused()
    assert "Cannot reach name server" in run("perf", "produce", "-n", "127.0.0.1:1").refused()


def test_percentiles_are_exact_to_five_percent() -> None:
    latencies = Latencies()
    assert latencies.percentile_ms(50) == 0.0
    for milliseconds in range(1, 1001):
        latencies.add(milliseconds / 1000)
    for percent, exact in ((50, 500), (99, 990), (99.9, 999), (100, 1000)):
        assert exact <= latencies.percentile_ms(percent) <= exact * 1.06
    assert len(latencies.counts) < 200
