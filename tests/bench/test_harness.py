"""Rounds, ratios and goals; CPU time of process trees; which runs are kept, and what a kept one may not name."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest
from support.bench_reports import SPEED, report_of, runs

from bench.__main__ import Invocation, keep_full
from bench.report import Kept, cells, keep, private_words, public_command
from bench.run import Goal, Result, Row, Run, Stopwatch, Task, cpu_seconds, measure, summarise
from bench.workspace import BenchFailed, workspace


class Scripted:
    """A task whose figures come from lists, and the sides in the order in which they were called."""

    def __init__(self, java_work: int = 1, **figures: list[float]) -> None:
        self._figures = figures
        self._work = {"java": java_work}
        self.calls: list[str] = []
        self.task = Task("scripted", (SPEED,), {side: partial(self._run, side) for side in figures})

    def _run(self, side: str) -> Run:
        self.calls.append(side)
        return Run.of(self._figures[side].pop(0), {"messages": self._work.get(side, 1)}, cpu=0.5)


def test_the_sides_take_turns_in_alternating_order_and_the_warm_up_does_not_count() -> None:
    scripted = Scripted(ours=[1, 30, 10, 20], java=[999, 10, 10, 10])
    [result] = measure(scripted.task, 3, lambda step: None)
    assert scripted.calls == ["ours", "java", "java", "ours"] * 2
    assert result.ours is not None
    assert (result.ours.median, result.ours.least, result.ours.most) == (20, 10, 30)
    assert result.ratio is not None
    assert (result.ratio.value, result.ratio.least, result.ratio.most) == (2, 1, 3)
    assert result.met is True
    assert result.cpu is not None
    assert result.cpu.rounds == (0.5, 0.5, 0.5)


def test_a_row_takes_the_sides_and_the_figure_that_it_names() -> None:
    row = Row("b", "b", "s", less_is_better=True, side="one", beside="two", figure="b")
    sides = {"one": lambda: Run({"a": 9, "b": 2}, {}), "two": lambda: Run({"a": 9, "b": 6}, {})}
    [result] = measure(Task("g", (row,), sides), 1, lambda step: None)
    assert result.ratio is not None
    assert result.ratio.value == 3


def test_a_stopwatch_measures_the_cpu_time_of_this_process_and_of_another() -> None:
    with Stopwatch() as ours, Stopwatch(os.getpid()) as by_id:
        sum(range(300_000))
    assert 0 < by_id.cpu <= ours.cpu
    assert ours.seconds > 0


def test_the_cpu_time_of_a_process_is_that_of_all_it_has_started_and_of_those_that_have_ended() -> None:
    work = "sum(range(3_000_000))"
    parent = (
        "import subprocess, sys; "
        f"subprocess.run([sys.executable, '-c', '{work}']); "
        f"child = subprocess.Popen([sys.executable, '-c', '{work}; print(1, flush=True); input()'], "
        "stdin=subprocess.PIPE); print('up', flush=True); input(); child.stdin.close(); child.wait()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", parent], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        said = {process.stdout.readline().strip() for _ in range(2)}
        with Stopwatch() as alone:
            sum(range(3_000_000))
        assert said == {"1", "up"}
        assert cpu_seconds(process.pid) > alone.cpu
        process.communicate("\n", timeout=60)


def test_cpu_time_is_shown_for_each_message_where_their_number_is_known() -> None:
    mine, other = Run.of(10, {}, cpu=0.5, messages=100_000), Run.of(5, {}, cpu=1.0, messages=100_000)
    result = summarise(SPEED, [mine] * 3, [other] * 3)
    assert cells(result)[5] == "5 µs / 10 µs"
    assert cells(summarise(SPEED.cpu_row(), [mine] * 3, [other] * 3))[1:4] == ("5 µs", "10 µs", "2.00")
    assert cells(summarise(SPEED, [msgspec.structs.replace(mine, messages=0)] * 3))[5] == "0.500 s"


def test_without_a_peer_a_ratio_is_neither_met_nor_missed() -> None:
    [result] = measure(Scripted(ours=[1, 2], java=[]).task, 1, lambda step: None, with_peer=False)
    assert (result.java, result.ratio, result.met) == (None, None, None)


def test_sides_that_did_different_work_have_no_figures() -> None:
    [result] = measure(Scripted(ours=[1, 1], java=[1, 1], java_work=2).task, 1, lambda step: None)
    assert result.status == "failed"
    assert "not the same work" in result.note
    assert result.ours is None


def test_a_side_that_fails_or_is_absent_leaves_the_figures_of_the_others() -> None:
    def fail() -> Run:
        raise BenchFailed("it fell over")

    def row(beside: str) -> Row:
        return Row(beside, beside, "messages/s", beside=beside)

    sides = {"ours": lambda: Run.of(4, {}), "one": lambda: Run.of(2, {}), "two": fail}
    rows = (row("one"), row("two"), row("three"))
    found = measure(Task("g", rows, sides, absent={"three": "it is not installed"}), 2, lambda step: None)
    assert [result.status for result in found] == ["measured", "failed", "not yet"]
    assert found[0].ratio is not None
    assert found[0].ratio.value == 2
    assert [result.note for result in found[1:]] == ["it fell over", "it is not installed"]


def test_a_ratio_above_one_is_in_our_favour_also_where_less_is_better() -> None:
    lag = Row("lag", "lag", "bytes", less_is_better=True)
    result = summarise(lag, runs(10, 10, 10), runs(20, 20, 20))
    assert result.ratio is not None
    assert result.ratio.value == 2


def test_a_figure_of_zero_gives_no_ratio() -> None:
    assert summarise(SPEED, runs(0, 1, 1), runs(1, 1, 1)).ratio is None


@pytest.mark.parametrize(("goal", "met"), [(Goal("at least", 1), True), (Goal("at most", 1), False)])
def test_a_goal_of_its_own_needs_no_peer(goal: Goal, met: bool) -> None:
    assert summarise(Row("walk", "walk", "GB/s", goal), runs(2, 2, 2)).met is met


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    need = shutil.disk_usage(tmp_path).free + (1 << 40)
    with pytest.raises(BenchFailed, match="GiB free and up to"), workspace(tmp_path, need):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"quick": True}, {"rounds": 2}, {"java_left_out": "no mvn"}, {"results": []}])
def test_only_a_full_run_is_kept(tmp_path: Path, change: dict[str, object]) -> None:
    report = report_of(summarise(SPEED, runs(20, 20, 20), runs(10, 10, 10)))
    with pytest.raises(BenchFailed, match="not kept"):
        keep(msgspec.structs.replace(report, **change), tmp_path)
    assert Kept.load("store", tmp_path).runs == []
    assert not list(tmp_path.iterdir())


def test_the_last_full_run_of_each_row_is_kept(tmp_path: Path) -> None:
    def result(name: str, figure: float) -> Result:
        return summarise(msgspec.structs.replace(SPEED, name=name), runs(figure, figure, figure), runs(10, 10, 10))

    failed = Result(msgspec.structs.replace(SPEED, name="bad"), "failed", note="it fell over")
    keep(report_of(result("a", 10), result("b", 20)), tmp_path)
    keep(report_of(result("b", 30), failed), tmp_path)
    kept = Kept.load("store", tmp_path)
    assert [[each.row.name for each in run.results] for run in kept.runs] == [["a"], ["b"]]
    assert kept.results()["b"].ours == result("b", 30).ours
    keep(report_of(result("a", 40), result("b", 40)), tmp_path)
    assert len(Kept.load("store", tmp_path).runs) == 1


def test_a_run_on_a_busy_machine_is_kept_only_if_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.__main__.keep", lambda report: keep(report, tmp_path))
    report = report_of(summarise(SPEED, runs(20, 20, 20), runs(10, 10, 10)))
    for load, wanted, kept in ((9.0, None, 0), (0.1, False, 0), (0.1, None, 1), (9.0, True, 1)):
        keep_full(report, Invocation("python -m bench", load), wanted)
        assert len(list(tmp_path.iterdir())) == kept
        (tmp_path / "store.json").unlink(missing_ok=True)
    said = capsys.readouterr().err
    assert "load average was 9.0" in said
    assert said.count("\n") == 3


def test_a_kept_run_names_no_folder_and_no_host(tmp_path: Path) -> None:
    command = public_command(["store", "--dir", "/data/stores", "--json=/data/run.json", "--only", "put,get"])
    assert command == "python -m bench store --dir PATH --json=PATH --only put,get"
    sound = report_of(summarise(SPEED, runs(20, 20, 20), runs(10, 10, 10)))
    for word in (str(Path.home()), platform.node()):
        if word in private_words(f"in {word}"):
            with pytest.raises(BenchFailed, match="it names"):
                keep(msgspec.structs.replace(sound, command=f"python -m bench {word}"), tmp_path)
    assert private_words(f"in {Path.home()}/x") == [str(Path.home())]
    assert not list(tmp_path.iterdir())


def test_the_facts_name_machine_command_and_both_sides() -> None:
    report = report_of()
    text = msgspec.structs.replace(report, versions={**report.versions, "nats-server": "2.15"}).facts()
    assert "Java 17, nats-server 2.15, rounds: 3" in text
    for fact in (
        "2026-01-02",
        "load average 0.0 at the start",
        "`python -m bench store`",
        "2 cores of a processor",
        "RocketMQ 4.9.8",
        "Java 17",
    ):
        assert fact in text


def test_a_busy_machine_is_named_in_the_report() -> None:
    report = report_of()
    busy = msgspec.structs.replace(report.machine, load_average=(3.0, 1.0, 1.0))
    assert any("load average was 3.0" in note for note in msgspec.structs.replace(report, machine=busy).notes())
    assert report.notes() == []
