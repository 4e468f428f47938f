"""A report is what a run leaves: the JSON file, and the same as a table for a terminal or for a document.

It names the machine and the versions, because a reader needs them to judge the figures. A full run is kept in
`bench/results/SUITE.json` (`keep`), from which `bench.tables` makes the tables of the documents. A row's last full run
replaces the one before, so the rows of a file may come from several runs. A kept file names no folder and no host.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path

import msgspec
from rich.table import Table
from rich.text import Text

from bench import PROJECT
from bench.run import Goal, Result, Spread, Unit
from bench.workspace import BenchFailed
from penstock.format import kernels

MIN_ROUNDS = 3
"""Fewer rounds than this have no meaningful median."""
RESULTS = PROJECT / "bench" / "results"
_SHORT = {"ms": "ms", "us": "µs"}
_PACKAGES = ("penstock", "numpy", "msgspec", "pyarrow", "pyspark")
_OURS_AND_JAVA = {*_PACKAGES, "python", "kernels", "java", "rocketmq-store"}


class Machine(msgspec.Struct, frozen=True):
    """The machine, as it was when the run began."""

    cores: int
    cpu: str
    memory_bytes: int
    kernel: str
    file_system: str
    load_average: tuple[float, float, float]
    """Of the last 1, 5 and 15 minutes; well below 1 on a quiet machine."""


def look_at(folder: Path) -> Machine:
    """The machine, and the file system of `folder`."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=_cpu(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        file_system=file_system_of(folder),
        load_average=os.getloadavg(),
    )


def versions() -> dict[str, str]:
    """Versions of our side."""
    found = {"python": platform.python_version(), "kernels": kernels.active}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def java_versions(class_path: list[Path]) -> dict[str, str]:
    """Versions of the peer: Java, and Apache RocketMQ's store if it is on the class path."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    java = re.search(r'version "([^"]+)"', said)
    stores = [match[1] for jar in class_path if (match := re.fullmatch(r"rocketmq-store-(.+)\.jar", jar.name))]
    found = {"java": java[1] if java else "unknown"}
    return found | {"rocketmq-store": stores[0] if stores else "unknown"} if class_path else found


def file_system_of(folder: Path) -> str:
    """The type of the file system that holds a folder."""
    place = folder.resolve()
    best, kind = Path("/"), "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split(" ")
        path = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mount))
        if place.is_relative_to(path) and len(path.parts) >= len(best.parts):
            best, kind = path, found
    return kind


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


# -- the report ----------------------------------------------------------------------------------------------


class Report(msgspec.Struct, frozen=True):
    """One run of one suite."""

    suite: str
    command: str
    date: str
    quick: bool
    whole: bool
    """Whether all rows were asked for."""
    rounds: int
    machine: Machine
    versions: dict[str, str]
    java_left_out: str
    """Why the other side has no figures; empty if it has."""
    results: list[Result]
    sides: tuple[str, str] = ("Penstock", "Java")
    """The two sides as the table calls them."""
    remarks: list[str] = []
    """What the tasks say of their figures."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads of the table's columns."""
        return "Row", *self.sides, "Ratio", "Spread", "CPU", "Goal", "Met"

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    @classmethod
    def load(cls, path: Path) -> Report:
        """Raises BenchFailed if the file is not a report."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise BenchFailed(f"{path} is not a report of a run: {error}") from error

    def notes(self) -> list[str]:
        """What a reader must know beside the table."""
        found = list(self.remarks)
        if self.quick:
            found.append("Quick sizes: this shows that it runs, not how fast it is.")
        if self.rounds < MIN_ROUNDS:
            found.append(f"Fewer than {MIN_ROUNDS} rounds: the medians mean little.")
        if self.java_left_out:
            found.append(f"{self.sides[1]} was left out: {self.java_left_out}.")
        if self.machine.load_average[0] >= 0.5:
            found.append(
                f"The machine was busy: its load average was {self.machine.load_average[0]:.1f} when the run began."
            )
        if self.machine.file_system == "tmpfs":
            found.append("The folder is in memory (tmpfs): a sync costs nothing there.")
        if self.versions.get("kernels") == "plain":
            found.append("The compiled kernels are missing: this is the plain twin.")
        waiting = dict.fromkeys(each.note for each in self.results if each.status == "not yet")
        found += [f"Not measured yet: {reason}." for reason in waiting]
        return found + [f"Failed: {each.row.title}: {each.note}." for each in self.results if each.status == "failed"]

    @property
    def failed(self) -> bool:
        """Whether a row that could be measured has no figures."""
        return any(result.status == "failed" for result in self.results)

    def facts(self) -> str:
        """Machine, versions and command, in one sentence."""
        machine, versions = self.machine, self.versions
        peer = ""
        if "java" in versions:
            original = versions.get("rocketmq-store")
            name = f"Apache RocketMQ {original}" if original else f"Spark {versions['pyspark']}"
            peer = f"{name} on Java {versions['java']}, "
        peer += "".join(f"{name} {version}, " for name, version in versions.items() if name not in _OURS_AND_JAVA)
        day = datetime.fromisoformat(self.date).strftime("%Y-%m-%d")
        return (
            f"{day}, `{self.command}`: {machine.cores} cores of {machine.cpu}, {machine.memory_bytes / 2**30:.0f} GiB, "
            f"{machine.kernel}, {machine.file_system}, Penstock {versions['penstock']} on Python {versions['python']}, "
            f"{peer}rounds: {self.rounds}, load average {machine.load_average[0]:.1f} at the start."
        )


# -- tables --------------------------------------------------------------------------------------------------


def as_table(report: Report) -> Table:
    """For a terminal."""
    table = Table(title=f"bench {report.suite}", title_justify="left", box=None, pad_edge=False)
    for head in report.heads:
        table.add_column(head, justify="left" if head in ("Row", "Met") else "right", no_wrap=head != "Row")
    for result in report.results:
        style = "red" if result.met is False or result.status == "failed" else ""
        table.add_row(*(Text(cell) for cell in cells(result)), style=style)
    return table


def as_markdown(report: Report) -> str:
    """For a document."""
    lines = ["| " + " | ".join(report.heads) + " |", "|---|" + "---:|" * 6 + "---|"]
    lines += ["| " + " | ".join(cells(result)) + " |" for result in report.results]
    return "\n".join([*lines, "", report.facts(), *report.notes()])


def cells(result: Result) -> tuple[str, ...]:
    """The texts of one line, in the order of the report's heads.

    CPU times are medians of both sides: seconds of a round, or microseconds for each message.
    """
    row = result.row
    goal = "" if row.goal is None else goal_text(row.goal, row.unit)
    if result.ours is None:
        return row.title, result.status, "", "", "", "", goal, ""
    java = "" if result.java is None else figure(result.java.median, row.unit)
    ratio, spread = "", _span(result.ours, row.unit)
    if result.ratio is not None:
        ratio = f"{result.ratio.value:.2f}"
        spread = f"{result.ratio.least:.2f} - {result.ratio.most:.2f}"
    met = "" if result.met is None else "yes" if result.met else "no"
    ours = figure(result.ours.median, row.unit)
    if row.body_bytes:
        ours += f" ({result.ours.median * row.body_bytes / 1e6:.0f} MB/s)"
    unit: Unit = "us" if result.cpu_each else "s"
    cpu = " / ".join(figure(each.median, unit) for each in (result.cpu, result.java_cpu) if each is not None)
    return row.title, ours, java, ratio, spread, cpu, goal, met


def goal_text(goal: Goal, unit: Unit) -> str:
    if goal.kind == "ratio at least":
        return f">= {goal.value:g}x"
    return f"{'>=' if goal.kind == 'at least' else '<='} {figure(goal.value, unit)}"


def figure(value: float, unit: Unit) -> str:
    """A figure with three significant digits and its unit."""
    if unit == "GB/s":
        return f"{value:.2f} GB/s"
    if unit == "s":
        return f"{value:.3f} s"
    if unit == "times":
        return f"{value:.3g}"
    if unit in ("ms", "us"):
        return f"{value:,.0f} {_SHORT[unit]}" if value >= 1000 else f"{value:.3g} {_SHORT[unit]}"
    suffix = " B" if unit == "bytes" else " /s"
    for limit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}{suffix.strip()}"
    return f"{value:.0f}{suffix}"


def _span(spread: Spread, unit: Unit) -> str:
    return f"{figure(spread.least, unit)} - {figure(spread.most, unit)}"


# -- kept runs ----------------------------------------------------------------------------------------------


class Kept(msgspec.Struct, frozen=True):
    """The last full run of each row of a suite: reports whose rows no later one has, newest last."""

    suite: str
    runs: list[Report]

    @classmethod
    def load(cls, suite: str, folder: Path = RESULTS) -> Kept:
        """Empty if nothing was kept. Raises BenchFailed if the file is not what `keep` writes."""
        path = folder / f"{suite}.json"
        if not path.exists():
            return cls(suite, [])
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise BenchFailed(f"{path.name} holds no kept runs: {error}") from error

    def results(self) -> dict[str, Result]:
        """By the names of their rows."""
        return {result.row.name: result for run in self.runs for result in run.results}


def why_not_kept(report: Report) -> str:
    """Why a run is not a full one; empty if it is."""
    if report.quick:
        return "its sizes are those of --quick"
    if report.rounds < MIN_ROUNDS:
        return f"it has fewer than {MIN_ROUNDS} rounds"
    if report.java_left_out:
        return f"{report.sides[1]} was left out"
    return "" if any(each.status == "measured" for each in report.results) else "no row has figures"


def keep(report: Report, folder: Path = RESULTS) -> Path:
    """Keeps the measured rows of a full run. Raises BenchFailed if it is none, or names a folder or the host."""
    if reason := why_not_kept(report):
        raise BenchFailed(f"the run is not kept: {reason}")
    new = msgspec.structs.replace(report, results=[each for each in report.results if each.status == "measured"])
    names = {each.row.name for each in new.results}
    older = [
        msgspec.structs.replace(run, results=[each for each in run.results if each.row.name not in names])
        for run in Kept.load(report.suite, folder).runs
    ]
    kept = Kept(report.suite, [*(run for run in older if run.results), new])
    data = msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"
    if found := private_words(data.decode()):
        raise BenchFailed(f"the run is not kept: it names {', '.join(found)}")
    path = folder / f"{report.suite}.json"
    path.write_bytes(data)
    return path


def private_words(text: str) -> list[str]:
    """What a kept file must not name and this one does: this machine's folders and its name, if that tells anything."""
    words = {str(PROJECT), str(Path.home()), tempfile.gettempdir(), platform.node()} - {"localhost", "penstock"}
    return sorted(
        word for word in words if len(word) > 3 and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text)
    )


def public_command(words: Sequence[str]) -> str:
    """A command line of `bench` for a report: names of files and folders are left out."""
    shown = ["PATH" if "/" in word and "=" not in word else re.sub(r"=.*/.*", "=PATH", word) for word in words]
    return shlex.join(["python", "-m", "bench", *shown])
