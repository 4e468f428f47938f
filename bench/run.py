"""One suite, from the disk check to the report.

The peer runs for the whole suite, so that Java's compiler has seen the work before anything counts; while one side is
measured the other has no store open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench.harness import BenchFailed, Result, Scenario, measure
from bench.java import NoJava
from bench.machine import java_versions, look_at, versions
from bench.report import Report
from bench.workspace import ended_politely, workspace

Tell = Callable[[str], None]


class Suite(Protocol):
    """A set of rows that are measured together."""

    name: str
    summary: str
    """One line about it."""
    beside: str
    """What our side is compared with, as the table calls it."""

    def need(self, quick: bool) -> int:
        """Bytes of disk that it uses at most."""

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        """What it measures, in the order of the table; all they write goes into `folder`."""

    def class_path(self) -> list[Path] | None:
        """What its peer needs; None if Java has no part in it. Raises NoJava."""

    def peer(self, jars: list[Path], folder: Path, quick: bool) -> contextlib.AbstractContextManager[Any]:
        """Java, started and warmed up, as its scenarios expect it."""

    def close(self) -> None:
        """Ends what its scenarios have running."""


class Options(msgspec.Struct, frozen=True):
    """What to run, and how often."""

    quick: bool = False
    rounds: int = 5
    only: tuple[str, ...] = ()
    """Groups or rows; all if empty."""
    folder: Path | None = None
    with_java: bool = True
    command: str = "python -m bench"
    """The command line, for the report."""


def run(suite: Suite, options: Options, tell: Tell) -> Report:
    """Runs a suite. Raises BenchFailed with a sentence if it cannot."""
    with ended_politely(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(workspace(options.folder, suite.need(options.quick)))
        stack.callback(suite.close)
        chosen = choose(suite.scenarios(folder, options.quick), options.only)
        machine = look_at(folder)
        used = versions()
        peer, left_out = None, "not asked for (--no-java)"
        if options.with_java:
            try:
                jars = suite.class_path()
                tell(f"{suite.beside} warms up")
                peer, left_out = stack.enter_context(suite.peer(jars or [], folder, options.quick)), ""
                used |= {} if jars is None else java_versions(jars)
            except NoJava as reason:
                left_out = str(reason)
        if left_out:
            tell(f"{suite.beside} is left out: {left_out}")
        began = datetime.now(UTC)
        results = [each for scenario in chosen for each in _measure(scenario, peer, options.rounds, tell)]
        return Report(
            suite=suite.name,
            command=options.command,
            date=began.isoformat(timespec="seconds"),
            quick=options.quick,
            whole=not options.only,
            rounds=options.rounds,
            machine=machine,
            versions=used,
            java_left_out=left_out,
            results=results,
            beside=suite.beside,
        )


def choose(scenarios: Sequence[Scenario], only: Sequence[str]) -> list[Scenario]:
    """Those whose group or one of whose rows is named. Raises BenchFailed for a name that nothing has."""
    groups = list(dict.fromkeys(scenario.group for scenario in scenarios))
    rows = [row.name for scenario in scenarios for row in scenario.rows]
    for name in only:
        if name not in groups and name not in rows:
            raise BenchFailed(
                f"there is nothing called '{name}'; groups are {', '.join(groups)}; rows {', '.join(rows)}"
            )
    wanted = set(only or groups)
    return [each for each in scenarios if wanted & {each.group, *(row.name for row in each.rows)}]


def _measure(scenario: Scenario, peer: Any, rounds: int, tell: Tell) -> list[Result]:
    return measure(scenario, peer, rounds, lambda step: tell(f"{scenario.rows[0].title}: {step}"))
