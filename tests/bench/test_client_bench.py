"""The client is measured by its public names, on two source trees, with its broker apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import PROJECT
from bench.client import PARTS, WORK, ClientSuite
from bench.run import measure
from penstock.format import kernels

SUITE = ("send", 0), ("backlog", 1), ("backlog", 2)


@pytest.mark.skipif(kernels.active != "compiled", reason="the kernels are not compiled")
@pytest.mark.rest
@pytest.mark.parametrize(("group", "number"), SUITE)
def test_client_and_broker_are_measured_apart_and_together(tmp_path: Path, group: str, number: int) -> None:
    tasks = [task for task in ClientSuite(PROJECT, PROJECT).tasks(tmp_path, quick=True) if task.group == group]
    assert len(tasks) == len(WORK[group])
    results = measure(tasks[number], 1, lambda step: None)
    assert [result.status for result in results] == ["measured"] * len(PARTS), results[0].note
    both, client, broker = (result.ours.median for result in results if result.ours is not None)
    assert both == pytest.approx(client + broker)
