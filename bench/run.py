"""The runner: tables of rows, and rounds in which the sides of a row take turns.

A suite is a list of tasks. A `Task` names its sides, each a function that does the work once and returns a `Run`, and
the rows that its sides fill. A `Row` names the side it shows, the side it is compared with, the unit, and which figure
of a `Run` it takes. One warm-up round is not counted. The order of the sides is reversed from round to round; no round
is dropped. Every side must do the same work in every round, or the rows that show it hold no figures and say so.

CPU time is that of whole process trees: a process, all that it has started, and all of those that have ended.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from bench.workspace import BenchFailed, ended_politely, workspace

if TYPE_CHECKING:
    from bench.report import Report

Unit = Literal["messages/s", "queries/s", "GB/s", "s", "ms", "us", "bytes", "times"]
Tell = Callable[[str], None]
VALUE = "value"
CPU = "cpu"
"""The figure of a `Run` with CPU microseconds for each message, see `Run.of`."""
OURS, JAVA = "ours", "java"
SIZE_IDS = {100: "100b", 128: "128b", 1024: "1k"}
SIZE_NAMES = {100: "100 B", 128: "128 B", 1024: "1 KB"}
"""Sizes of bodies, in the names and in the titles of rows."""
_TICKS = os.sysconf("SC_CLK_TCK")


class NoPeer(Exception):
    """Says in one sentence why the other side cannot be measured."""


# -- the table -----------------------------------------------------------------------------------------------


class Goal(msgspec.Struct, frozen=True):
    """What a row must reach: a ratio to the other side, or a figure of its own."""

    kind: Literal["ratio at least", "at least", "at most"]
    value: float

    def is_met(self, ours: float, ratio: float | None) -> bool | None:
        """None if the goal is a ratio and there is none."""
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
    """False for figures near zero on both sides, where a ratio means nothing."""
    field: str = ""
    """OpenMessaging Benchmark's name of the figure, if it has one."""
    body_bytes: int = 0
    """Size of a message body, for rows that also show bytes of bodies a second."""
    side: str = OURS
    beside: str = JAVA
    """The side that the ratio refers to; ignored if the task has no such side."""
    figure: str = VALUE

    def cpu_row(self, goal: Goal | None = None) -> Row:
        """The row beside this one that shows CPU time for each message."""
        return msgspec.structs.replace(
            self,
            name=f"{self.name}-cpu",
            title=f"{self.title}: CPU time a message",
            unit="us",
            goal=goal,
            less_is_better=True,
            field="",
            body_bytes=0,
            figure=CPU,
        )


class Run(msgspec.Struct, frozen=True):
    """What one side did in one round."""

    figures: dict[str, float]
    work: dict[str, int]
    """Counts that must be equal in all rounds of all sides."""
    cpu: float | None = None
    """CPU seconds of the measured process or processes."""
    messages: int = 0
    """For how many messages, where CPU time is shown for each of them; 0 otherwise."""

    @classmethod
    def of(cls, value: float, work: dict[str, int], cpu: float | None = None, messages: int = 0) -> Run:
        """A run with one figure; with a number of `messages` also their CPU time, for `Row.cpu_row`."""
        each = {CPU: cpu / messages * 1e6} if messages and cpu is not None else {}
        return cls({VALUE: value, **each}, work, cpu, messages)


class Task(msgspec.Struct, frozen=True):
    """One piece of work: its sides in the order of the first round, and the rows that they fill."""

    group: str
    """The name that `--only` takes."""
    rows: tuple[Row, ...]
    sides: Mapping[str, Callable[[], Run]]
    missing: str = ""
    """Why it cannot be measured here; empty if it can."""
    absent: Mapping[str, str] = {}
    """Why single sides cannot be measured here, by their names; they are not among `sides`."""
    remarks: tuple[str, ...] = ()
    """What a reader must know beside the figures: whole sentences."""


# -- results -------------------------------------------------------------------------------------------------


class Spread(msgspec.Struct, frozen=True):
    """The rounds of one side."""

    median: float
    least: float
    most: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        return cls(statistics.median(rounds), min(rounds), max(rounds), tuple(rounds))


class Ratio(msgspec.Struct, frozen=True):
    """The ratio of the medians; least and most are ratios of single rounds."""

    value: float
    least: float
    most: float


class Result(msgspec.Struct, frozen=True):
    """A row with its figures; `java` is the side beside ours, whichever that is."""

    row: Row
    status: Literal["measured", "not yet", "failed"]
    ours: Spread | None = None
    java: Spread | None = None
    ratio: Ratio | None = None
    met: bool | None = None
    note: str = ""
    cpu: Spread | None = None
    """CPU seconds of our side; microseconds for each message if `cpu_each`."""
    java_cpu: Spread | None = None
    cpu_each: bool = False


def measure(task: Task, rounds: int, tell: Tell, *, with_peer: bool = True) -> list[Result]:
    """Runs a task: one warm-up, then `rounds` rounds. Without a peer only the sides run that a row shows as ours.

    A side that fails is left out from then on, and the rows that show it have no figures.
    """
    if task.missing:
        return [Result(row, "not yet", note=task.missing) for row in task.rows]
    shown = {row.side for row in task.rows}
    sides = [name for name in task.sides if with_peer or name in shown]
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    failed: dict[str, str] = {}
    first: Run | None = None
    for number in range(rounds + 1):
        tell(f"round {number} of {rounds}" if number else "warm-up")
        for name in reversed(sides) if number % 2 else sides:
            if name in failed:
                continue
            try:
                run = task.sides[name]()
                first = first or run
                if run.work != first.work:
                    raise BenchFailed(f"not the same work was done: {first.work} and {run.work}")
                runs[name].append(run)
            except BenchFailed as failure:
                failed[name] = str(failure)
    counted = {name: done[1:] for name, done in runs.items()}
    return [_result(row, counted, failed, task.absent) for row in task.rows]


def _result(
    row: Row, runs: Mapping[str, Sequence[Run]], failed: Mapping[str, str], absent: Mapping[str, str]
) -> Result:
    for side in (row.side, row.beside):
        if side in failed:
            return Result(row, "failed", note=failed[side])
        if side in absent:
            return Result(row, "not yet", note=absent[side])
    return summarise(row, runs[row.side], runs.get(row.beside, []))


def summarise(row: Row, ours: Sequence[Run], java: Sequence[Run] = ()) -> Result:
    """The result of a row from its counted rounds; `java` is empty if there was no other side."""
    mine, theirs = ([run.figures[row.figure] for run in runs] for runs in (ours, java))
    ratio = None
    if theirs and row.has_ratio and min(*mine, *theirs) > 0:
        pairs = [_ratio(row, one, other) for one, other in zip(mine, theirs, strict=True)]
        ratio = Ratio(_ratio(row, statistics.median(mine), statistics.median(theirs)), min(pairs), max(pairs))
    met = None if row.goal is None else row.goal.is_met(statistics.median(mine), None if ratio is None else ratio.value)
    other = Spread.of(theirs) if theirs else None
    each = all(run.messages for run in (*ours, *java))
    cpu, java_cpu = (_cpu(runs, each) for runs in (ours, java))
    return Result(row, "measured", Spread.of(mine), other, ratio, met, cpu=cpu, java_cpu=java_cpu, cpu_each=each)


def _ratio(row: Row, ours: float, java: float) -> float:
    return java / ours if row.less_is_better else ours / java


def _cpu(runs: Sequence[Run], each: bool) -> Spread | None:
    spent = [run.cpu / run.messages * 1e6 if each else run.cpu for run in runs if run.cpu is not None]
    return Spread.of(spent) if spent else None


# -- CPU time ------------------------------------------------------------------------------------------------


def cpu_seconds(*pids: int) -> float:
    """CPU time of these processes so far, all their threads, and of all that they have started, ended ones included.

    Processes that run are read in nanoseconds; those that have ended and were waited for in hundredths of a second.
    """
    return sum(_own_cpu_seconds(pid) + _cpu_seconds_below(pid) for pid in pids)


def _own_cpu_seconds(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # Linux: the CPU-time clock of another process


def _cpu_seconds_below(root: int) -> float:
    """Of the processes below one, and of the ended children of all of them."""
    total = 0.0
    for pid, said in process_tree(root):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            total += said.ended_children_s + (_own_cpu_seconds(pid) if pid != root else 0.0)
    return total


class Process(msgspec.Struct, frozen=True):
    """What /proc says of a process."""

    parent: int
    name: str
    ended_children_s: float
    """CPU time of its children that have ended and of theirs, in hundredths of a second."""


def process_tree(root: int) -> list[tuple[int, Process]]:
    """A process and all processes below it."""
    below: dict[int, list[int]] = {}
    known: dict[int, Process] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has ended
            continue
        fields, pid = tail.split(), int(folder.name)
        ended = (int(fields[13]) + int(fields[14])) / _TICKS
        known[pid] = Process(int(fields[1]), head.partition("(")[2], ended)
        below.setdefault(known[pid].parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in known:
            found.append((pid, known[pid]))
        waiting += below.get(pid, [])
    return found


class Stopwatch:
    """Wall-clock and CPU seconds of a `with` block: of this process, or of the processes with these ids and below."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self.seconds = self.cpu = 0.0

    def __enter__(self) -> Stopwatch:
        self.cpu = self._cpu()
        self.seconds = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self.seconds
        self.cpu = self._cpu() - self.cpu

    def _cpu(self) -> float:
        return cpu_seconds(*self._pids) if self._pids else time.process_time()


# -- a suite -------------------------------------------------------------------------------------------------


class Suite(Protocol):
    """Rows that are measured together."""

    name: str
    summary: str
    sides: tuple[str, str]
    """The two sides as the table calls them."""

    def need(self, quick: bool) -> int:
        """Bytes of disk that it uses at most."""

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        """All tasks, in the order of the table. Starts nothing; everything they write goes to `folder`."""

    def peer(self, folder: Path, quick: bool) -> contextlib.AbstractContextManager[dict[str, str]]:
        """The other side, started and warm; gives its versions. Raises NoPeer."""

    def close(self) -> None:
        """Ends what its tasks have started."""


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
    from bench.report import Report, look_at, versions

    with ended_politely(), contextlib.ExitStack() as stack:
        folder = stack.enter_context(workspace(options.folder, suite.need(options.quick)))
        stack.callback(suite.close)
        chosen = choose(suite.tasks(folder, options.quick), options.only)
        machine, used, left_out = look_at(folder), versions(), "not asked for (--no-java)"
        if options.with_java:
            try:
                tell(f"{suite.sides[1]} warms up")
                used |= stack.enter_context(suite.peer(folder, options.quick))
                left_out = ""
            except NoPeer as reason:
                left_out = str(reason)
        if left_out:
            tell(f"{suite.sides[1]} is left out: {left_out}")
        began = datetime.now(UTC).isoformat(timespec="seconds")
        results: list[Result] = []
        for task in chosen:
            said = _prefixed(tell, task.rows[0].title)
            results += measure(task, options.rounds, said, with_peer=not left_out)
        return Report(
            suite=suite.name,
            command=options.command,
            date=began,
            quick=options.quick,
            whole=not options.only,
            rounds=options.rounds,
            machine=machine,
            versions=used,
            java_left_out=left_out,
            results=results,
            sides=suite.sides,
            remarks=list(dict.fromkeys(remark for task in chosen for remark in task.remarks)),
        )


def _prefixed(tell: Tell, title: str) -> Tell:
    return lambda step: tell(f"{title}: {step}")


def choose(tasks: Sequence[Task], only: Sequence[str]) -> list[Task]:
    """The tasks whose group or one of whose rows is named. Raises BenchFailed for an unknown name."""
    groups = list(dict.fromkeys(task.group for task in tasks))
    rows = [row.name for task in tasks for row in task.rows]
    for name in only:
        if name not in groups and name not in rows:
            raise BenchFailed(
                f"there is nothing called '{name}'; groups are {', '.join(groups)}; rows {', '.join(rows)}"
            )
    wanted = set(only or groups)
    return [task for task in tasks if wanted & {task.group, *(row.name for row in task.rows)}]


@contextlib.contextmanager
def no_peer() -> Iterator[dict[str, str]]:
    """For suites whose other side needs no process of its own."""
    yield {}
