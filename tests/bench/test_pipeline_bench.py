"""What the benchmark of the pipeline's jobs is made of, without Spark. `tests/spark/test_bench.py` runs it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the suite `pipeline` needs the extra `spark`")

from bench import pinned
from bench.pinned import Given, Pinned, serve
from bench.pipeline import PipelineSuite
from bench.pipeline.dispatch import DispatchSuite
from bench.workspace import BenchFailed

CALL = f"{__name__}:in_session"


@pytest.fixture
def all_cores() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_each_job_has_a_row_for_each_size_on_one_core_on_two_and_without_spark(tmp_path: Path) -> None:
    rows = [row for task in PipelineSuite().tasks(tmp_path, quick=False) for row in task.rows]
    names = [row.name for row in rows]
    assert len(names) == len(set(names))
    assert names[:2] == ["session-1core", "session-2cores"]
    assert names[2:14] == [
        f"{job}-{size}-{how}"
        for job in ("usage", "verify")
        for size in ("1k", "100b")
        for how in ("1core", "2cores", "alone")
    ]
    assert all(name.startswith("rebuild-") for name in names[14:])
    goals = {row.name: (row.goal.kind, row.goal.value) for row in rows[:14] if row.goal}
    assert goals == {
        "usage-1k-1core": ("at least", 2),
        "usage-1k-2cores": ("at least", 2),
        "verify-1k-1core": ("at least", 1),
        "verify-1k-2cores": ("at least", 1),
    }
    assert not list(tmp_path.iterdir()), "nothing is made, and nothing started, before it is measured"


def in_session(spark: Any, number: int) -> dict[str, Any]:
    if number < 0:
        raise ValueError("too small")
    return {"double": 2 * number, "session": spark, "cores": len(os.sched_getaffinity(0))}


def test_a_pinned_process_answers_with_seconds_and_memory_and_tells_of_errors(
    all_cores: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Session(str):
        stopped = 0

        def stop(self) -> None:
            Session.stopped += 1

    started: list[int] = []
    monkeypatch.setattr(pinned, "_session", lambda folder, cores: started.append(cores) or Session("spark"))
    orders = [{"call": name, "given": {"number": number}} for name, number in ((CALL, 3), (CALL, -1))]
    answers = io.StringIO()
    core = min(os.sched_getaffinity(0))
    serve(str(tmp_path), [str(core)], io.StringIO("".join(json.dumps(order) + "\n" for order in orders)), answers)
    first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert (first["double"], first["session"], first["cores"]) == (6, "spark", 1)
    assert first["seconds"] >= 0
    assert first["memory"] > 1 << 20
    assert second == {"error": f"{CALL}: too small"}
    assert (started, Session.stopped) == ([1], 1), "one session for all that is asked"


def test_a_process_on_more_cores_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="this takes 1000 cores"):
        Pinned(1000, tmp_path).ask("x")
    Pinned(1, tmp_path).stop()


def test_a_figure_needs_all_messages_to_have_been_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = PipelineSuite()
    (scan,) = [each for each in suite.tasks(tmp_path, quick=True) if each.rows[0].name == "usage-100b-1core"]
    for session in (1, 2):
        suite.sessions[session] = Given(None)
    answer = {"messages": 6000, "bytes": 10**9, "seconds": 0.5, "cpu": 0.4}
    monkeypatch.setattr(pinned, "call", lambda spark, name, given: answer)
    runs = {name: side() for name, side in scan.sides.items()}
    assert {name: run.figures["value"] for name, run in runs.items()} == {"1core": 2.0, "2cores": 1.0, "alone": 2.0}
    assert all(run.work == {"messages": 6000, "bytes": 10**9} and run.cpu == 0.4 for run in runs.values())
    answer["messages"] = 5999
    with pytest.raises(BenchFailed, match="usage_on_spark saw 5999 of 6000 messages"):
        scan.sides["1core"]()


def test_the_latency_of_inline_dispatch_is_measured_and_stands_beside_that_of_external_dispatch(tmp_path: Path) -> None:
    (task,) = DispatchSuite().tasks(tmp_path, quick=True)
    assert [row.name for row in task.rows] == ["external-p50", "external-p90", "external-p99", "external-first"]
    run = task.sides["inline"]()
    assert run.work == {"messages": 5}
    assert 0 < run.figures["p50"] <= run.figures["p99"]
    assert run.cpu
