"""Rounds: both sides do the same work in turns, after one warm-up each; medians and spread, and no round is dropped.

A `Scenario` is a piece of work that fills one or more rows. Each call of `ours` or `java` is one round: it brings its
own store, measures only what the row is about, and says how much work it did. The work must be the same in all rounds
and on both sides, or the figures are worth nothing: the rows then say so and hold none.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import msgspec

Unit = Literal["messages/s", "queries/s", "GB/s", "s", "ms", "bytes"]


class BenchFailed(Exception):
    """A sentence that says why there are no figures."""


class Goal(msgspec.Struct, frozen=True):
    """What a row must reach: a ratio to Java, or a figure of its own."""

    kind: Literal["ratio at least", "at least", "at most"]
    value: float

    def is_met(self, ours: float, ratio: float | None) -> bool | None:
        """None where the goal is a ratio and there is none."""
        if self.kind == "ratio at least":
            return None if ratio is None else ratio >= self.value
        return ours >= self.value if self.kind == "at least" else ours <= self.value


class Row(msgspec.Struct, frozen=True):
    """One line of the table. A ratio above 1 is in our favour, also where less is better."""

    name: str
    title: str
    unit: Unit
    goal: Goal | None = None
    less_is_better: bool = False
    has_ratio: bool = True
    """False for figures that are near zero on both sides, where a ratio says nothing."""
    field: str = ""
    """What OpenMessaging Benchmark calls the figure, where it has a name for it."""
    body_bytes: int = 0
    """Of each message, where the table is to say how many bytes of bodies a second a figure is."""


class Run(msgspec.Struct, frozen=True):
    """What one side did in one round."""

    figures: dict[str, float]
    """By the name of the row."""
    work: dict[str, int]
    """Counts that must be the same in every round of both sides."""


class Spread(msgspec.Struct, frozen=True):
    """The rounds of one side, and their middle."""

    median: float
    least: float
    most: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        return cls(statistics.median(rounds), min(rounds), max(rounds), tuple(rounds))


class Ratio(msgspec.Struct, frozen=True):
    """The ratio of the medians; least and most are those of single rounds, each beside the peer's of the same round."""

    value: float
    least: float
    most: float


class Result(msgspec.Struct, frozen=True):
    """A row, filled."""

    row: Row
    status: Literal["measured", "not yet", "failed"]
    ours: Spread | None = None
    java: Spread | None = None
    ratio: Ratio | None = None
    met: bool | None = None
    note: str = ""


class Scenario(ABC):
    """One piece of work, for both sides."""

    group: ClassVar[str]
    """What `--only` calls it."""
    rows: tuple[Row, ...]

    def not_yet(self) -> str:
        """Why our side cannot do this work, empty if it can."""
        return ""

    @abstractmethod
    def ours(self) -> Run:
        """One round of Penstock."""

    def java(self, peer: Any) -> Run | None:
        """One round of Java, with what the suite started for it; None where Java has nothing like it."""
        return None


def measure(scenario: Scenario, peer: Any, rounds: int, tell: Callable[[str], None]) -> list[Result]:
    """Runs a scenario: a warm-up of each side, then `rounds` rounds, ours and Java's (unless None) in turns."""
    reason = scenario.not_yet()
    if reason:
        return [Result(row, "not yet", note=reason) for row in scenario.rows]
    try:
        ours, java = _rounds(scenario, peer, rounds, tell)
    except BenchFailed as failure:
        return [Result(row, "failed", note=str(failure)) for row in scenario.rows]
    return [summarise(row, _figures(row, ours), _figures(row, java)) for row in scenario.rows]


def _rounds(scenario: Scenario, peer: Any, rounds: int, tell: Callable[[str], None]) -> tuple[list[Run], list[Run]]:
    """All rounds of both sides, the warm-up first."""
    ours: list[Run] = []
    java: list[Run] = []
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}" if number else "warm-up")
        ours.append(scenario.ours())
        _check_work(ours[0], ours[-1])
        if peer is not None and (run := scenario.java(peer)) is not None:
            java.append(run)
            _check_work(ours[0], run)
    return ours, java


def summarise(row: Row, ours: Sequence[float], java: Sequence[float]) -> Result:
    """The result of a row from its rounds; `java` is empty where Java did not take part."""
    mine = Spread.of(ours)
    theirs = Spread.of(java) if java else None
    ratio = None
    if theirs is not None and row.has_ratio and min(*ours, *java) > 0:
        pairs = [_ratio(row, one, other) for one, other in zip(ours, java, strict=True)]
        ratio = Ratio(_ratio(row, mine.median, theirs.median), min(pairs), max(pairs))
    met = None
    if row.goal is not None:
        met = row.goal.is_met(mine.median, None if ratio is None else ratio.value)
    return Result(row, "measured", mine, theirs, ratio, met)


def _ratio(row: Row, ours: float, java: float) -> float:
    return java / ours if row.less_is_better else ours / java


def _figures(row: Row, runs: Sequence[Run]) -> list[float]:
    """Without the warm-up."""
    return [run.figures[row.name] for run in runs[1:]]


def _check_work(first: Run, other: Run) -> None:
    if other.work != first.work:
        raise BenchFailed(f"not the same work was done: {first.work} and {other.work}")
