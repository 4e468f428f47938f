"""The rows of the jobs that read a whole store and tell what is in it: `usage` and `verify`, as GB of log a second.

Each is run on Spark on one core and on two, and without Spark in one process on one core: what Spark costs is the
difference. A figure is that of one core, so two cores are twice as fast where it is the same. Starting a session is
measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from bench.harness import BenchFailed, Goal, Row, Run, Scenario
from bench.pipeline.pinned import Given, Pinned
from bench.pipeline.stores import JobStores
from bench.spark.sides import lacking
from bench.store.ground import HUNDRED, KILO, SIZE_IDS, SIZE_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CORES: Final = {1: "1core", 2: "2cores"}
_TITLES: Final = {1: "on one core", 2: "on two cores, each"}


Session = Pinned | Given


def scenarios(stores: JobStores, sessions: Mapping[int, Session], folder: Path) -> list[Scenario]:
    """All of them, in the order of the table; `sessions` by their number of cores."""
    scans = [kind(stores, sessions, body) for kind in (UsageScan, VerifyScan) for body in (KILO, HUNDRED)]
    return [SessionStart(folder), *scans]


class SessionStart(Scenario):
    """From nothing to the first answer: Python, Java, the session, the first workers."""

    group = "session"
    rows = tuple(
        Row(f"session-{_CORES[cores]}", f"start of a session, {title.split(',')[0]}", "s", less_is_better=True)
        for cores, title in _TITLES.items()
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def not_yet(self) -> str:
        return lacking()

    def ours(self) -> Run:
        figures = {}
        for cores, name in _CORES.items():
            process = Pinned(cores, self._folder / f"start-{cores}")
            started = time.perf_counter()
            try:
                process.ask("bench.pipeline.scans:first_answer")
                figures[f"session-{name}"] = time.perf_counter() - started
            finally:
                process.stop()
        return Run(figures, {"sessions": len(figures)})


class Scan(Scenario):
    """One job over one store, on Spark and without."""

    job: ClassVar[str]
    title: ClassVar[str]
    goal: ClassVar[float]
    """GB a second and core, at 1 KB."""

    def __init__(self, stores: JobStores, sessions: Mapping[int, Session], body: int) -> None:
        self._stores = stores
        self._sessions = sessions
        self._body = body
        self._name = f"{self.job}-{SIZE_IDS[body]}"
        goal = Goal("at least", self.goal) if body == KILO else None
        title = f"{self.title}, {SIZE_NAMES[body]}"
        self.rows = (
            *(Row(f"{self._name}-{_CORES[cores]}", f"{title}, {_TITLES[cores]}", "GB/s", goal) for cores in _CORES),
            Row(f"{self._name}-alone", f"{title}, without Spark on one core", "GB/s"),
        )

    def not_yet(self) -> str:
        return lacking()

    def ours(self) -> Run:
        given = {"path": str(self._stores.path(self._body)), "settings": self._stores.settings()}
        figures, work = {}, {"messages": self._stores.messages(self._body)}
        for cores, name in _CORES.items():
            figures[f"{self._name}-{name}"] = self._rate(f"{self.job}_on_spark", cores, given, work)
        figures[f"{self._name}-alone"] = self._rate(f"{self.job}_alone", 1, given, work)
        return Run(figures, work)

    def _rate(self, function: str, cores: int, given: dict[str, Any], work: dict[str, int]) -> float:
        """GB a second and core. Raises BenchFailed if not all messages were seen."""
        told = self._sessions[cores].ask(f"bench.pipeline.scans:{function}", **given)
        if told["messages"] != work["messages"]:
            raise BenchFailed(f"{function} saw {told['messages']} of {work['messages']} messages")
        work["bytes"] = told["bytes"]
        return float(work["bytes"] / 1e9 / told["seconds"] / cores)


class UsageScan(Scan):
    """Who fills the disk."""

    group = job = "usage"
    title = "usage"
    goal = 2


class VerifyScan(Scan):
    """Every record with its CRC, its unit in the queue and its keys in the index."""

    group = job = "verify"
    title = "verify with CRC, queues and index"
    goal = 1


# -- what the pinned processes do ------------------------------------------------------------------------------------


def first_answer(spark: SparkSession) -> dict[str, Any]:
    """A job in the Python workers, of a session that was not there before."""
    return {"rows": spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id bigint").count()}


def usage_on_spark(spark: SparkSession, path: str, settings: list[str]) -> dict[str, Any]:
    from penstock.pipeline.jobs.usage import usage

    found = usage(spark, _where(path, settings))
    return {"messages": found.messages, "bytes": found.size}


def usage_alone(spark: SparkSession, path: str, settings: list[str]) -> dict[str, Any]:
    from penstock.pipeline.jobs.usage import usage_here

    found = usage_here(_where(path, settings))
    return {"messages": found.messages, "bytes": found.size}


def verify_on_spark(spark: SparkSession, path: str, settings: list[str]) -> dict[str, Any]:
    from penstock.pipeline.jobs.verify import verify

    (found,) = verify(spark, _where(path, settings)).values()
    if found.report is None:
        raise BenchFailed(found.problem)
    return _seen(found.report)


def verify_alone(spark: SparkSession, path: str, settings: list[str]) -> dict[str, Any]:
    from penstock.store.audit import audit
    from penstock.store.folder import StoreFolder

    folder = StoreFolder.find(Path(path), None, settings)
    return _seen(audit(folder.layout, folder.settings, folder.files))


def _seen(report: Any) -> dict[str, Any]:
    if report.errors:
        raise BenchFailed(f"{len(report.errors)} errors, the first: {report.errors[0].what}")
    return {"messages": report.figures.messages, "bytes": report.figures.record_bytes}


def _where(path: str, settings: list[str]) -> Any:
    from penstock.pipeline.jobs.where import Where

    return Where(stores=(path,), settings=tuple(settings))
