"""RocketMQ's own benchmark producer: its rows, and a short run with both brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.effort import quick_report

from bench.producer import ProducerSuite

NAMES = ("producer-128b-64", "producer-128b-16", "producer-128b-1", "producer-1k-64")


def test_each_number_of_threads_has_a_rate_and_the_brokers_cpu_time(tmp_path: Path) -> None:
    rows = [row for task in ProducerSuite().tasks(tmp_path, quick=False) for row in task.rows]
    assert [row.name for row in rows] == [name for base in NAMES for name in (base, f"{base}-cpu")]
    assert not list(tmp_path.iterdir())


@pytest.mark.java
def test_both_brokers_take_what_it_sends_and_nothing_is_left(tmp_path: Path) -> None:
    found = quick_report("producer", tmp_path, "--only", "producer-128b-16")
    if found["java_left_out"]:
        pytest.skip(found["java_left_out"])
    assert all(each["status"] == "measured" and each["ratio"]["value"] > 0 for each in found["results"])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
