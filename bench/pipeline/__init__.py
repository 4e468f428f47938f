"""The suite `pipeline`: jobs on Spark, pinned to one core and to two.

`usage` and `verify` read a whole store, on Spark on one core and on two, and without Spark in one process on one core:
the difference is what Spark costs. Figures are GB of log a second and core, so two cores are twice as fast where the
figure is the same. The start of a session has rows of its own.

`rebuild` builds queues and index from the log on two cores, beside one core, `penstock store rebuild`, and RocketMQ's
start. A store is filled once and rebuilt in place again and again; RocketMQ has a copy whose queues and index are
removed before each round. Sessions are started once and stay warm. Everything is in the page cache.

`dispatch` beside this file is a suite of its own.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.pinned import Given, Pinned
from bench.processes import JavaStore, class_path, java_store
from bench.recovery import fill_log
from bench.report import java_versions
from bench.run import JAVA, OURS, SIZE_IDS, SIZE_NAMES, Goal, Row, Run, Stopwatch, Task
from bench.spark import Sizes as ReadSizes
from bench.spark import fill, lacking
from bench.store import HUNDRED, KILO, PREFIX, TOPIC, pairs_of, settings_of
from bench.workspace import GIB, MIB, BenchFailed
from penstock.format.index_layout import IndexGeometry
from penstock.store import MessageStore, Settings
from penstock.store.rebuild import ThreadRunner, rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Session = Pinned | Given
CORES = {1: ("1core", "on one core"), 2: ("2cores", "on two cores, each")}
JOBS = {"usage": ("usage", 2), "verify": ("verify with CRC, queues and index", 1)}
"""By name: a job's title, and its goal in GB a second and core at 1 KB."""
_QUEUE_FILES = GIB

READ = ReadSizes(
    messages={KILO: 3_600_000, HUNDRED: 9_000_000},
    pulled={},
    log_file=GIB,
    index=IndexGeometry(1_000_000, 4_000_000),
)
READ_QUICK = ReadSizes(
    messages={KILO: 3_000, HUNDRED: 6_000},
    pulled={},
    log_file=4 * MIB,
    index=IndexGeometry(1_000, 4_000),
    topics=("orders", "payments"),
    queues=1,
)


class RebuildSizes(msgspec.Struct, frozen=True):
    """How large the stores are that are rebuilt."""

    small: int
    large: int
    log_file: int
    index: IndexGeometry

    @property
    def disk_need(self) -> int:
        """Two stores with what a rebuild keeps aside, and Java's copies of them."""
        derived = _QUEUE_FILES + 3 * self.index.file_size
        return 2 * (self.large + self.small) + 8 * self.log_file + 4 * derived

    def settings(self) -> dict[str, object]:
        """Settings by RocketMQ's names."""
        return settings_of(self.log_file, self.index, quarantineMaxBytes=1 << 40)


REBUILD = RebuildSizes(1_000_000_000, 5_000_000_000, GIB, IndexGeometry())
REBUILD_QUICK = RebuildSizes(3 * MIB, 6 * MIB, 2 * MIB, IndexGeometry(10_000, 40_000))


class PipelineSuite:
    """See the module. `spark`: a session for usage and verify, unpinned, instead of starting any."""

    name = "pipeline"
    summary = "Jobs on Spark: usage, verify and rebuild, pinned to one core and to two."
    sides = ("Penstock", "Other side")

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self.sessions: dict[int, Session] = {}
        self._rebuilt: Rebuilt | None = None

    def need(self, quick: bool) -> int:
        read, rebuilt = (READ_QUICK, REBUILD_QUICK) if quick else (READ, REBUILD)
        return read.disk(read.messages) + rebuilt.disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        read = Read(folder / "read", READ_QUICK if quick else READ, self.sessions)
        self._rebuilt = Rebuilt(folder / "rebuilt", REBUILD_QUICK if quick else REBUILD)
        for cores in CORES:
            given = self._spark is not None
            self.sessions[cores] = Given(self._spark) if given else Pinned(cores, folder / f"session-{cores}")
        return [*scan_tasks(read, folder), *rebuild_tasks(self._rebuilt)]

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        """Java rebuilds a small store first, so that its compiler has seen it."""
        assert self._rebuilt is not None
        jars = class_path()
        with java_store(jars) as java:
            small = Rebuilt(folder / "warm-up", REBUILD_QUICK)
            self._rebuilt.java = small.java = java
            small.by_java(HUNDRED, REBUILD_QUICK.small)
            yield java_versions(jars)

    def close(self) -> None:
        """Ends the sessions that are ours."""
        sessions = [*self.sessions.values(), *(self._rebuilt.pinned.values() if self._rebuilt else ())]
        for session in sessions:
            session.stop()


# -- usage and verify ----------------------------------------------------------------------------------------


def scan_tasks(read: Read, folder: Path) -> list[Task]:
    rows = tuple(
        Row(f"session-{name}", f"start of a session, {title.split(',')[0]}", "s", less_is_better=True, side=name)
        for name, title in CORES.values()
    )
    starts = {name: partial(session_start, cores, folder) for cores, (name, _) in CORES.items()}
    found = [Task("session", rows, starts, lacking())]
    for job, (text, target) in JOBS.items():
        for body in (KILO, HUNDRED):
            name, title = f"{job}-{SIZE_IDS[body]}", f"{text}, {SIZE_NAMES[body]}"
            goal = Goal("at least", target) if body == KILO else None
            ways = {how: (f"{job}_on_spark", cores, suffix, goal) for cores, (how, suffix) in CORES.items()}
            ways["alone"] = (f"{job}_alone", 1, "without Spark on one core", None)
            scans = {how: partial(read.scan, call, cores, body) for how, (call, cores, _, _) in ways.items()}
            rows = tuple(
                Row(f"{name}-{how}", f"{title}, {suffix}", "GB/s", goal, side=how)
                for how, (_, _, suffix, goal) in ways.items()
            )
            found.append(Task(job, rows, scans, lacking()))
    return found


def session_start(cores: int, folder: Path) -> Run:
    """From nothing to the first answer: Python, Java, the session, the first workers."""
    process = Pinned(cores, folder / f"start-{cores}")
    try:
        with Stopwatch() as took:
            process.ask(f"{__name__}:first_answer")
        return Run.of(took.seconds, {"sessions": 1}, process.cpu)
    finally:
        process.stop()


class Read:
    """A store for each size of body, written when it is first asked for, and the jobs that read it."""

    def __init__(self, folder: Path, sizes: ReadSizes, sessions: Mapping[int, Session]) -> None:
        self._folder = folder
        self._sizes = sizes
        self._sessions = sessions

    def scan(self, function: str, cores: int, body: int) -> Run:
        """GB a second and core. Raises BenchFailed if not all messages were seen."""
        path, expected = self._folder / f"bodies-{body}", self._sizes.messages[body]
        if not path.exists():
            fill(path, body, expected, self._sizes)
        settings = pairs_of(self._sizes.settings())  # an index file does not hold its geometry
        answer = self._sessions[cores].ask(f"{__name__}:{function}", path=str(path), settings=settings)
        if answer["messages"] != expected:
            raise BenchFailed(f"{function} saw {answer['messages']} of {expected} messages")
        rate = answer["bytes"] / 1e9 / answer["seconds"] / cores
        return Run.of(rate, {"messages": expected, "bytes": answer["bytes"]}, answer["cpu"])


# -- rebuild -------------------------------------------------------------------------------------------------


def rebuild_tasks(at: Rebuilt) -> list[Task]:
    """All of them, those of one size of bodies together."""
    found = []
    small, large = at.sizes.small, at.sizes.large
    java, same = "RocketMQ's start without queues and index", Goal("ratio at least", 0.9)
    for body in (KILO, HUNDRED):
        name, size = SIZE_IDS[body], SIZE_NAMES[body]
        two = partial(at.on_spark, 2, body)
        of = f"5 GB of {size} beside 1 GB, two cores"
        more = (
            Row(f"rebuild-5gb-{name}", f"rebuild, seconds for each GB: {of}", "s", same, True, figure="per GB"),
            Row(f"rebuild-5gb-{name}-memory", f"memory of Python: {of}", "bytes", same, True, figure="memory"),
        )
        sides = {OURS: partial(_of_any_size, two, large), JAVA: partial(_of_any_size, two, small)}
        grown = Task("rebuild-5gb", more, sides)
        for other, gigabytes, title, goal, run in (
            ("java", 1, java, 5, partial(at.by_java, body, small)),
            ("one-core", 1, "one", 1.7, partial(at.on_spark, 1, body, small)),
            ("one-process", 1, "`penstock store rebuild`", None, partial(at.in_one_process, body)),
            ("5gb-java", 5, java, 5, partial(at.by_java, body, large)),
        ):
            if other == "5gb-java":
                found.append(grown)
            text = f"rebuild, {gigabytes} GB of {size}, two cores beside {title}"
            target = None if goal is None else Goal("ratio at least", goal)
            row = Row(f"rebuild-{name}-{other}", text, "s", target, less_is_better=True)
            ours = partial(two, large if gigabytes == 5 else small)
            found.append(Task("rebuild", (row,), {OURS: ours, JAVA: run}))
    return found


def _of_any_size(rebuild: partial[Run], size: int) -> Run:
    """One rebuild; its work is not compared, because the other side's store has another size."""
    return msgspec.structs.replace(rebuild(size), work={})


class Rebuilt:
    """The stores that are rebuilt, each filled when it is first needed; those of one size of bodies at a time."""

    java: JavaStore

    def __init__(self, folder: Path, sizes: RebuildSizes) -> None:
        self._folder = folder
        self.sizes = sizes
        self._body = 0
        self._pairs = pairs_of(sizes.settings())
        self.pinned = {cores: Pinned(cores, folder / f"spark-{cores}") for cores in CORES}

    def _store(self, body: int, size: int) -> Path:
        """A cleanly closed store with a log of so many bytes."""
        if body != self._body:
            for path in self._folder.glob("store-*"):
                shutil.rmtree(path)
            self._body = body
        path = self._folder / f"store-{body}-{size}"
        if not path.exists():
            with MessageStore.open(path, Settings.load(pairs=self._pairs)) as store:
                fill_log(store, body, size)
        return path

    def on_spark(self, cores: int, body: int, size: int) -> Run:
        path = self._store(body, size)
        try:
            answer = self.pinned[cores].ask(f"{__name__}:rebuild_on_spark", path=str(path), pairs=self._pairs)
        finally:
            shutil.rmtree(path / "penstock" / "quarantine", ignore_errors=True)
        seconds = answer["seconds"]
        figures = {"value": seconds, "per GB": seconds * 1_000_000_000 / size, "memory": answer["memory"]}
        return Run(figures, {"messages": answer["messages"]}, answer["cpu"])

    def in_one_process(self, body: int) -> Run:
        """`penstock store rebuild`."""
        path = self._store(body, self.sizes.small)
        logging.getLogger("penstock.store").setLevel(logging.CRITICAL)
        with Stopwatch() as took:
            report = rebuild(path, Settings.load(pairs=self._pairs), ThreadRunner())
        shutil.rmtree(path / "penstock" / "quarantine", ignore_errors=True)
        return Run.of(took.seconds, {"messages": report.rebuilt[-1].units}, took.cpu)

    def by_java(self, body: int, size: int) -> Run:
        """RocketMQ's start over the same log without queues and index; it may use all cores."""
        store = self._store(body, size)
        path = store.with_name(f"{store.name}-java")
        if not path.exists():
            shutil.copytree(store, path, ignore=shutil.ignore_patterns("consumequeue", "index", "penstock"))
        for name in ("consumequeue", "index"):
            shutil.rmtree(path / name, ignore_errors=True)
        (path / "abort").unlink(missing_ok=True)
        settings = {name: value for name, value in self.sizes.settings().items() if name != "quarantineMaxBytes"}
        how: dict[str, Any] = {"path": str(path), "settings": settings}
        answer, cpu = self.java.bench("rebuild", topic=TOPIC, prefix=PREFIX, **how)
        return Run.of(answer["seconds"], {"messages": answer["messages"]}, cpu)


# -- what the pinned processes do ----------------------------------------------------------------------------


def first_answer(spark: SparkSession) -> dict[str, Any]:
    """A job in the Python workers of a new session."""
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
    return _verified(found.report)


def verify_alone(spark: SparkSession, path: str, settings: list[str]) -> dict[str, Any]:
    from penstock.store.audit import audit
    from penstock.store.readonly.store_folder import StoreFolder

    folder = StoreFolder.find(Path(path), None, settings)
    return _verified(audit(folder.layout, folder.settings, folder.files))


def _verified(report: Any) -> dict[str, Any]:
    if report.errors:
        raise BenchFailed(f"{len(report.errors)} errors, the first: {report.errors[0].what}")
    return {"messages": report.figures.messages, "bytes": report.figures.record_bytes}


def rebuild_on_spark(spark: SparkSession, path: str, pairs: list[str]) -> dict[str, Any]:
    from penstock.pipeline.jobs.rebuild import rebuild

    (report,) = rebuild(spark, _where(path, pairs))
    return {"messages": report.rebuilt[-1].units, "ranges": report.ranges}


def _where(path: str, settings: list[str]) -> Any:
    from penstock.pipeline.jobs.job_input import JobInput

    return JobInput(stores=(path,), settings=tuple(settings))
