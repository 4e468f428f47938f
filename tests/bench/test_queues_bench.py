"""The benchmark beside other queues runs from end to end; what is not installed is skipped with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.effort import quick_report

from bench.queues import OTHERS, QueuesSuite, fetch, servers
from bench.queues.client import Drained, windowed
from bench.workspace import BenchFailed

WORKLOADS = (
    *(f"python-128b-{window}" for window in (1, 64, 1000)),
    "python-1k-64",
    "backlog-push",
    *(f"on-disk-{window}" for window in (1, 64)),
)
ROWS = {
    *WORKLOADS,
    *(f"{workload}-{other}" for workload in WORKLOADS for other in OTHERS),
    "backlog-batch",
    "backlog-sync",
    *(f"{what}-{other}" for what in ("start", "memory", "memory-filled", "disk") for other in OTHERS),
} - {f"{what}-aiokafka" for what in ("start", "memory", "memory-filled", "disk")}


def by_name(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["row"]["name"]: result for result in report["results"]}


def test_every_workload_has_a_row_for_ours_and_one_beside_each_other_client(tmp_path: Path) -> None:
    rows = [row for task in QueuesSuite().tasks(tmp_path, quick=False) for row in task.rows]
    assert len(rows) == len({row.name for row in rows})
    assert {row.name for row in rows} == ROWS
    assert not list(tmp_path.iterdir())


def test_what_an_answer_means_in_each_system_stands_below_the_figures(tmp_path: Path) -> None:
    tasks = QueuesSuite().tasks(tmp_path, quick=False)
    said = {task.group: " ".join(task.remarks) for task in tasks if task.remarks}
    assert said.keys() >= {"send", "on-disk", "backlog"}
    for text in said.values():
        assert all(f"{name}:" in text for name in ("Penstock", "Redis", "NATS", "Kafka"))


def test_without_the_others_our_side_is_measured_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "PEERS", tmp_path / "nothing")
    report = quick_report("queues", tmp_path, "--only", "python-128b-64,on-disk-1")
    found = by_name(report)
    ours = ("python-128b-64", "on-disk-1")
    assert all(found[name]["status"] == "measured" and found[name]["cpu"]["least"] > 0 for name in ours)
    others = [each for name, each in found.items() if name not in ours]
    assert {each["status"] for each in others} == {"not yet"}
    assert all("python -m bench fetch clients" in each["note"] for each in others)
    assert any(remark.startswith("What an answer") for remark in report["remarks"])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.rest
def test_every_row_is_measured_or_says_why_not_and_nothing_is_left(tmp_path: Path) -> None:
    for name, result in by_name(quick_report("queues", tmp_path)).items():
        if result["status"] == "measured":
            assert result["ours"]["least"] > 0, name
        else:
            assert (result["status"], "fetch" in result["note"]) == ("not yet", True), name
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_no_more_sends_are_in_flight_than_asked_for() -> None:
    flying = most = done = 0

    async def send() -> None:
        nonlocal flying, most, done
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        done += 1

    assert asyncio.run(windowed(send, 50, 7)) > 0
    assert (most, done) == (7, 50)


def test_a_backlog_is_drained_when_its_last_message_has_come() -> None:
    drained = Drained(5)
    assert [drained.add(count) for count in (2, 2, 1)] == [False, False, True]
    assert drained.is_done
    assert drained.seconds >= 0


def test_what_cannot_be_fetched_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PEERS", tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchFailed, match="go is not installed"):
        fetch.fetch(["nats"], lambda step: None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BenchFailed, match="'rabbit' to fetch"):
        fetch.fetch(["rabbit"], lambda step: None)
