"""Queues and index from the log: on Spark with two cores, beside one core, one process, and RocketMQ's own rebuild.

A store is made once and rebuilt in place, again and again: what comes out is what was there. RocketMQ has a copy whose
queues and index are removed before each round; its start then builds them. Everything is in the page cache.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from support.peers import Peer

from bench.harness import BenchFailed, Goal, Row, Run, Scenario
from bench.pipeline.pinned import Pinned
from bench.recovery.killed import message_columns
from bench.store.ground import HUNDRED, KILO, PREFIX, SIZE_IDS, SIZE_NAMES, TOPIC
from penstock.format.index_layout import IndexGeometry
from penstock.store import MessageStore, Settings
from penstock.store.rebuilding import InThreads, rebuild_by_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB = 1 << 20
_BATCH = 10_000
_QUEUE_FILES = 1 << 30


class Sizes(msgspec.Struct, frozen=True):
    """How large the stores are."""

    small: int
    large: int
    log_file: int
    index: IndexGeometry

    @property
    def disk_need(self) -> int:
        """Two stores with what a rebuild keeps aside, and Java's copies of them."""
        derived = _QUEUE_FILES + 3 * self.index.file_size
        return 2 * (self.large + self.small) + 8 * self.log_file + 4 * derived

    def settings(self) -> dict[str, Any]:
        """By RocketMQ's names, for both sides."""
        return {
            "mappedFileSizeCommitLog": self.log_file,
            "maxHashSlotNum": self.index.slots,
            "maxIndexNum": self.index.items,
            "quarantineMaxBytes": 1 << 40,
        }


FULL = Sizes(1_000_000_000, 5_000_000_000, 1 << 30, IndexGeometry())
QUICK = Sizes(3 * _MIB, 6 * _MIB, 2 * _MIB, IndexGeometry(10_000, 40_000))


class Stores:
    """The stores, each made when it is first needed; those of one size of bodies at a time."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self.sizes = sizes
        self._body = 0
        self.pinned = {cores: Pinned(cores, folder / f"spark-{cores}") for cores in (1, 2)}

    @property
    def pairs(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.sizes.settings().items()]

    def store(self, body: int, size: int) -> Path:
        """A store of so many bytes, closed cleanly."""
        if body != self._body:
            for path in self._folder.glob("store-*"):
                shutil.rmtree(path)
            self._body = body
        path = self._folder / f"store-{body}-{size}"
        if not path.exists():
            with MessageStore.open(path, Settings.load(pairs=self.pairs)) as store:
                done = 0
                while store.log.max_offset < size:
                    answer = store.put_arrow(pa.RecordBatch.from_pydict(message_columns(body, done, _BATCH)))
                    if not answer.ok:
                        raise BenchFailed(f"a put was refused: {answer.reason}")
                    done += _BATCH
        return path

    def java_copy(self, body: int, size: int) -> Path:
        """What Java finds: the same log, and neither queues nor an index."""
        store = self.store(body, size)
        path = store.with_name(f"{store.name}-java")
        if not path.exists():
            shutil.copytree(store, path, ignore=shutil.ignore_patterns("consumequeue", "index", "penstock"))
        for name in ("consumequeue", "index"):
            shutil.rmtree(path / name, ignore_errors=True)
        (path / "abort").unlink(missing_ok=True)
        return path

    def on_spark(self, cores: int, body: int, size: int) -> dict[str, Any]:
        path = self.store(body, size)
        try:
            return self.pinned[cores].ask("bench.pipeline.rebuild", path=str(path), pairs=self.pairs)
        finally:
            shutil.rmtree(path / "penstock" / "quarantine", ignore_errors=True)

    def in_one_process(self, body: int) -> dict[str, Any]:
        path = self.store(body, self.sizes.small)
        logging.getLogger("penstock.store").setLevel(logging.CRITICAL)
        started = time.perf_counter()
        report = rebuild_by_ranges(path, Settings.load(pairs=self.pairs), InThreads())
        took = time.perf_counter() - started
        shutil.rmtree(path / "penstock" / "quarantine", ignore_errors=True)
        return {"seconds": took, "messages": report.rebuilt[-1].units}

    def close(self) -> None:
        for each in self.pinned.values():
            each.stop()


def in_session(spark: SparkSession, path: str, pairs: list[str]) -> dict[str, Any]:
    """One rebuild, in the process of a pinned session."""
    from penstock.pipeline.jobs.rebuild import rebuild as on_spark
    from penstock.pipeline.jobs.where import Where

    (report,) = on_spark(spark, Where(stores=(path,), settings=tuple(pairs)))
    return {"messages": report.rebuilt[-1].units, "ranges": report.ranges}


class _Rebuild(Scenario):
    """Two cores beside something else."""

    group = "rebuild"
    other: str
    title: str
    goal: float | None = None
    large = False

    def __init__(self, stores: Stores, body: int) -> None:
        self.stores = stores
        self.body = body
        goal = None if self.goal is None else Goal("ratio at least", self.goal)
        title = f"rebuild, {5 if self.large else 1} GB of {SIZE_NAMES[body]}, two cores beside {self.title}"
        self.rows = (Row(f"rebuild-{SIZE_IDS[body]}-{self.other}", title, "s", goal, less_is_better=True),)

    @property
    def size(self) -> int:
        return self.stores.sizes.large if self.large else self.stores.sizes.small

    def ours(self) -> Run:
        return self.run(self.stores.on_spark(2, self.body, self.size))

    def run(self, told: dict[str, Any]) -> Run:
        return Run({self.rows[0].name: told["seconds"]}, {"messages": told["messages"]})


class BesideJava(_Rebuild):
    """Java has all cores."""

    other, title, goal = "java", "RocketMQ's start without queues and index", 5

    def java(self, peer: Peer) -> Run:
        path = self.stores.java_copy(self.body, self.size)
        settings = {name: value for name, value in self.stores.sizes.settings().items() if name[0] == "m"}
        return self.run(
            peer.ask("bench", what="rebuild", topic=TOPIC, prefix=PREFIX, path=str(path), settings=settings)
        )


class LargeBesideJava(BesideJava):
    """The same with five times as much."""

    other, large = "5gb-java", True


class BesideOneCore(_Rebuild):
    """The same on one core."""

    other, title, goal = "one-core", "one", 1.7

    def java(self, peer: object) -> Run:
        return self.run(self.stores.on_spark(1, self.body, self.size))


class BesideOneProcess(_Rebuild):
    """`penstock store rebuild`."""

    other, title = "one-process", "`penstock store rebuild`"

    def java(self, peer: object) -> Run:
        return self.run(self.stores.in_one_process(self.body))


class Large(Scenario):
    """Five times as much: as long for each GB, and in the same memory."""

    group = "rebuild-5gb"

    def __init__(self, stores: Stores, body: int) -> None:
        self._stores = stores
        self._body = body
        of, name = f"5 GB of {SIZE_NAMES[body]} beside 1 GB, two cores", SIZE_IDS[body]
        same = Goal("ratio at least", 0.9)
        self.rows = (
            Row(f"rebuild-5gb-{name}", f"rebuild, seconds for each GB: {of}", "s", same, less_is_better=True),
            Row(f"rebuild-5gb-{name}-memory", f"memory of Python: {of}", "bytes", same, less_is_better=True),
        )

    def ours(self) -> Run:
        return self._run(self._stores.sizes.large)

    def java(self, peer: object) -> Run:
        return self._run(self._stores.sizes.small)

    def _run(self, size: int) -> Run:
        told = self._stores.on_spark(2, self._body, size)
        per_gb = told["seconds"] * 1_000_000_000 / size
        return Run({self.rows[0].name: per_gb, self.rows[1].name: told["memory"]}, {})


def scenarios(stores: Stores) -> list[Scenario]:
    """All of them, those of one size of bodies together."""
    kinds = (BesideJava, BesideOneCore, BesideOneProcess, Large, LargeBesideJava)
    return [kind(stores, body) for body in (KILO, HUNDRED) for kind in kinds]
