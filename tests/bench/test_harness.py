"""Rounds, ratios and goals, and the table that goes into the documents."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from support.peers import Peer

from bench.harness import BenchFailed, Goal, Result, Row, Run, Scenario, measure, summarise
from bench.machine import Machine
from bench.report import Report, as_markdown, fill_page
from bench.workspace import workspace

SPEED = Row("speed", "speed", "messages/s", Goal("ratio at least", 1))


class Scripted(Scenario):
    """Figures and work from lists, in the order in which the sides are called."""

    group = "scripted"
    rows = (SPEED,)

    def __init__(self, ours: list[float], java: list[float], java_work: int = 1) -> None:
        self._figures = {"ours": ours, "java": java}
        self._java_work = java_work
        self.calls: list[str] = []

    def ours(self) -> Run:
        return self._next("ours", 1)

    def java(self, peer: Peer) -> Run:
        return self._next("java", self._java_work)

    def _next(self, side: str, work: int) -> Run:
        self.calls.append(side)
        return Run({"speed": self._figures[side].pop(0)}, {"messages": work})


class NoPeer(Peer):
    """Stands for a process that nobody asks anything."""

    def __init__(self) -> None:
        """Starts nothing."""


def test_the_sides_take_turns_and_the_warm_up_does_not_count() -> None:
    scenario = Scripted(ours=[1, 30, 10, 20], java=[999, 10, 10, 10])
    [result] = measure(scenario, NoPeer(), 3, lambda step: None)
    assert scenario.calls == ["ours", "java"] * 4
    assert result.ours is not None
    assert (result.ours.median, result.ours.least, result.ours.most) == (20, 10, 30)
    assert result.ratio is not None
    assert (result.ratio.value, result.ratio.least, result.ratio.most) == (2, 1, 3)
    assert result.met is True


def test_without_a_peer_a_ratio_is_neither_met_nor_missed() -> None:
    [result] = measure(Scripted(ours=[1, 2], java=[]), None, 1, lambda step: None)
    assert (result.java, result.ratio, result.met) == (None, None, None)


def test_sides_that_did_different_work_have_no_figures() -> None:
    [result] = measure(Scripted(ours=[1, 1], java=[1, 1], java_work=2), NoPeer(), 1, lambda step: None)
    assert result.status == "failed"
    assert "not the same work" in result.note
    assert result.ours is None


def test_a_ratio_above_one_is_in_our_favour_also_where_less_is_better() -> None:
    lag = Row("lag", "lag", "bytes", less_is_better=True)
    result = summarise(lag, [10, 10, 10], [20, 20, 20])
    assert result.ratio is not None
    assert result.ratio.value == 2


def test_a_figure_of_zero_gives_no_ratio() -> None:
    assert summarise(SPEED, [0, 1, 1], [1, 1, 1]).ratio is None


@pytest.mark.parametrize(("goal", "met"), [(Goal("at least", 1), True), (Goal("at most", 1), False)])
def test_a_goal_of_its_own_needs_no_peer(goal: Goal, met: bool) -> None:
    assert summarise(Row("walk", "walk", "GB/s", goal), [2, 2, 2], []).met is met


def test_a_full_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    need = shutil.disk_usage(tmp_path).free + (1 << 40)
    with pytest.raises(BenchFailed, match="GiB free and up to"), workspace(tmp_path, need):
        pass
    assert not list(tmp_path.iterdir())


def report_of(*results: Result) -> Report:
    machine = Machine(2, "a processor", 8 << 30, "Linux 6", "ext4", (0.0, 0.0, 0.0))
    versions = {"penstock": "1", "python": "3", "java": "17", "rocketmq-store": "4.9.8"}
    return Report(
        suite="store",
        command="python -m bench store",
        date="2026-01-02T03:04:05+00:00",
        quick=False,
        whole=True,
        rounds=3,
        machine=machine,
        versions=versions,
        java_left_out="",
        results=list(results),
    )


def test_the_table_replaces_what_stood_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench:store -->\nold figures\n<!-- bench:store end -->\nafter\n")
    report = report_of(summarise(SPEED, [20, 20, 20], [10, 10, 10]))
    fill_page(report, page)
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:store -->\n")
    assert text.endswith("<!-- bench:store end -->\nafter\n")
    assert "| speed | 20 /s | 10 /s | 2.00 | 2.00 - 2.00 | >= 1x | yes |" in text
    assert "old figures" not in text
    fill_page(report, page)
    assert page.read_text() == text


@pytest.mark.parametrize("change", [{"quick": True}, {"whole": False}, {"rounds": 2}, {"java_left_out": "no mvn"}])
def test_a_partial_run_does_not_reach_the_documents(tmp_path: Path, change: dict[str, object]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:store -->\n<!-- bench:store end -->\n")
    report = msgspec.structs.replace(report_of(), **change)
    with pytest.raises(BenchFailed, match="whole run"):
        fill_page(report, page)


def test_the_facts_name_machine_command_and_both_sides() -> None:
    text = as_markdown(report_of())
    for fact in ("2026-01-02", "`python -m bench store`", "2 cores of a processor", "RocketMQ 4.9.8", "Java 17"):
        assert fact in text


def test_a_busy_machine_is_named_in_the_report() -> None:
    report = report_of()
    busy = msgspec.structs.replace(report.machine, load_average=(3.0, 1.0, 1.0))
    assert any("load average was 3.0" in note for note in msgspec.structs.replace(report, machine=busy).notes())
    assert report.notes() == []
