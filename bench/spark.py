"""The suite `spark`: the source on a store's files beside ready-made batches, beside Parquet, and beside a broker.

Each question is asked of all four places, in turns, in one warm session on two cores; a row compares our source with
one of the others. The time is from `load` to the answer. CPU time is that of this process, Java and the workers. The
questions that name no options are asked of `penstock.spark.table`, which finds out by itself what it has to read.

Stores hold messages over several topics with bodies that do not compress. They are written once and then only read. The
store behind the broker holds the first messages of the other one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.processes import PenstockBroker
from bench.report import java_versions
from bench.run import OURS, SIZE_IDS, SIZE_NAMES, Goal, NoPeer, Row, Run, Stopwatch, Task
from bench.store import pairs_of, settings_of
from bench.workspace import GIB, MIB, BenchFailed
from penstock.client.sync import Admin
from penstock.format.index_layout import IndexGeometry
from penstock.pipeline.options import Options
from penstock.pipeline.scan_plan import plan_batch
from penstock.store import MessageStore, Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark import MessageTable

TAGS = ("TagA", "TagB")
OTHERS = {"ready": "ready-made batches", "parquet": "Parquet", "broker": "a broker"}
_BATCH = 8192
_RECORD = 128
"""About what a record takes besides its body."""
_QUEUE_FILE = 6 * MIB


class Sizes(msgspec.Struct, frozen=True):
    """How much is read."""

    messages: dict[int, int]
    """By the size of a body."""
    pulled: dict[int, int]
    """How many of them are behind the broker."""
    log_file: int
    index: IndexGeometry
    topics: tuple[str, ...] = ("orders", "payments", "shipments", "returns")
    queues: int = 4
    """Of each topic."""

    def disk(self, messages: dict[int, int]) -> int:
        """Bytes of the stores with so many messages, each with its queues and a log file ahead."""
        files = sum(count * (body + _RECORD) // self.log_file + 2 for body, count in messages.items())
        queues = len(self.topics) * self.queues * _QUEUE_FILE
        return files * self.log_file + len(messages) * (2 * self.index.file_size + queues)

    @property
    def disk_need(self) -> int:
        """The stores, those behind brokers, and the same rows as Parquet: one copy to read and one being written."""
        rows = sum(count * (body + _RECORD) for body, count in self.messages.items())
        return self.disk(self.messages) + self.disk(self.pulled) + 2 * rows

    def settings(self) -> dict[str, object]:
        return settings_of(self.log_file, self.index)


FULL = Sizes(
    messages={128: 3_500_000, 1024: 900_000},
    pulled={128: 200_000, 1024: 200_000},
    log_file=GIB,
    index=IndexGeometry(1_000_000, 4_000_000),
)
QUICK = Sizes(
    messages={128: 4_000, 1024: 2_000},
    pulled={128: 400, 1024: 400},
    log_file=8 * MIB,
    index=IndexGeometry(1_000, 4_000),
    topics=("orders", "payments"),
    queues=1,
)


def lacking() -> str:
    """Why there is no Spark here; empty if there is."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return "" if shutil.which("java") else "java is not installed"


# -- stores --------------------------------------------------------------------------------------------------


def fill(path: Path, body: int, count: int, sizes: Sizes) -> None:
    """Writes a store. Raises BenchFailed if it refuses a message."""
    path.mkdir(parents=True, exist_ok=True)
    with MessageStore.open(path, Settings.load(pairs=pairs_of(sizes.settings()))) as store:
        for first in range(0, count, _BATCH):
            answer = store.put_arrow(messages(body, first, min(_BATCH, count - first), sizes))
            if not answer.ok:
                raise BenchFailed(f"a put was refused: {answer.reason}")
        store.catch_up()


def messages(body: int, first: int, count: int, sizes: Sizes) -> pa.RecordBatch:
    """The messages from a number on: topics, queues and tags in turns, one key each, random bodies."""
    numbers = np.arange(first, first + count, dtype=np.int32)
    texts = pa.array(numbers).cast(pa.string())
    data = np.random.default_rng(first).bytes(body * count)
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(body)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(sizes.topics).take(pa.array(numbers % len(sizes.topics))),
            "body": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]),
            "keys": pc.binary_join_element_wise("order_", texts, ""),
            "tags": pa.array(TAGS).take(pa.array(numbers // 16 % len(TAGS))),
            "queue_id": pa.array(numbers // len(sizes.topics) % sizes.queues),
        }
    )


# -- questions -----------------------------------------------------------------------------------------------


class Wanted(msgspec.Struct, frozen=True):
    """What is read: these columns, or all of them if none are named, in an order of our source.

    With the order `any` our source is a table that finds out the columns by itself.
    """

    columns: tuple[str, ...] = ()
    order: str = "queue"

    def options(self, topics: Sequence[str]) -> dict[str, str]:
        """For our source; a log is read whole."""
        named = {"columns": ",".join(self.columns)} if self.columns else {}
        if self.order == "log":
            return {**named, "order": "log"}
        return {**named, "order": self.order, "subscribe": ",".join(topics)}


def count(frame: DataFrame | MessageTable, output: Path) -> int:
    return frame.count()


def by_topic(frame: DataFrame | MessageTable, output: Path) -> int:
    """Messages and bytes of each topic."""
    found = frame.groupBy("topic").agg({"*": "count", "store_size": "sum"}).collect()
    return sum(row["count(1)"] for row in found)


def by_tag(frame: DataFrame | MessageTable, output: Path) -> int:
    return sum(row["count"] for row in frame.groupBy("tags").count().collect())


def to_nothing(frame: Any, output: Path) -> int:
    """Reads every column of every row, and throws them away."""
    frame.write.format("noop").mode("overwrite").save()
    return 0


def to_parquet(frame: Any, output: Path) -> int:
    """Writes every column of every row; the rows are counted later."""
    frame.write.mode("overwrite").parquet(str(output))
    return 0


_SIZES_BY_TOPIC = ("topic", "store_size")
Answer = Callable[["DataFrame | MessageTable", Path], int]
QUESTIONS: tuple[tuple[str, str, Wanted, Answer], ...] = (
    ("count-table", "count of a table", Wanted(("queue_id",), order="any"), count),
    ("by-tag-table", "count by tag of a table", Wanted(("tags",), order="any"), by_tag),
    ("by-topic-table", "aggregate by topic of a table", Wanted(_SIZES_BY_TOPIC, order="any"), by_topic),
    ("scan", "all columns of a table to nothing", Wanted(order="any"), to_nothing),
    ("count", "count, columns=topic", Wanted(("topic",)), count),
    ("count-log", "count, columns=topic, order=log", Wanted(("topic",), order="log"), count),
    ("count-all", "count, all columns", Wanted(), count),
    ("by-topic", "aggregate by topic, columns=topic,store_size", Wanted(_SIZES_BY_TOPIC), by_topic),
    (
        "by-topic-log",
        "aggregate by topic, columns=topic,store_size, order=log",
        Wanted(_SIZES_BY_TOPIC, order="log"),
        by_topic,
    ),
    ("to-parquet", "all columns to Parquet", Wanted(), to_parquet),
)


class SparkSuite:
    """See the module. `spark`: a session to use instead of starting one."""

    name = "spark"
    summary = "Spark reads a store: beside ready-made batches, Parquet and a broker."
    sides = ("Penstock", "Other side")

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark
        self._places: list[Places] = []
        self._session: Session | None = None

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = QUICK if quick else FULL
        self._session = Session(folder / "spark", self._spark)
        self._places = [Places(folder, body, sizes, self._session) for body in sizes.messages]
        return [task(places, *question) for places in self._places for question in QUESTIONS]

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        """The other places are created by the questions that need them."""
        if reason := lacking():
            raise NoPeer(reason)
        yield java_versions([])

    def close(self) -> None:
        """Ends the brokers, then the session if it is ours."""
        for places in self._places:
            places.close()
        if self._session is not None:
            self._session.stop()


_CPU_GOALS: dict[Answer, Goal] = {
    count: Goal("ratio at least", 1 / 2),
    by_tag: Goal("ratio at least", 1 / 2),
    by_topic: Goal("ratio at least", 1 / 2),
    to_nothing: Goal("ratio at least", 1 / 1.1),
}
"""How much of our CPU time Parquet may save, in the questions to a table."""


def task(places: Places, group: str, title: str, wanted: Wanted, answer: Answer) -> Task:
    """One question to our source and to the three others."""
    body = places.body
    goals = {"ready": Goal("ratio at least", 0.8)}
    if answer not in (to_parquet, to_nothing):
        goals["broker"] = Goal("ratio at least", 10)
    rows = [
        Row(
            f"{group}-{SIZE_IDS[body]}-{other}",
            f"{title}, {SIZE_NAMES[body]}; beside {text}",
            "messages/s",
            goals.get(other),
            body_bytes=body,
            beside=other,
        )
        for other, text in OTHERS.items()
    ]
    if wanted.order == "any":
        rows += [row.cpu_row(_CPU_GOALS[answer]) for row in rows if row.beside == "parquet"]
        rows += [row.cpu_row(Goal("ratio at least", 0.8)) for row in rows[:3] if row.beside == "ready"]
    return Task(
        group, tuple(rows), {side: partial(ask, places, side, wanted, answer) for side in (OURS, *OTHERS)}, lacking()
    )


def ask(places: Places, side: str, wanted: Wanted, answer: Answer) -> Run:
    """Rows a second, from `load` to the answer. Raises BenchFailed if the number of rows is wrong."""
    frame = places.prepared(side, wanted)
    with Stopwatch(os.getpid()) as took:
        seen = answer(frame(wanted), places.output)
    if answer is to_parquet:
        seen = sum(pq.read_metadata(file).num_rows for file in places.output.glob("*.parquet"))
    expected = places.pulled_rows if side == "broker" else places.rows
    if answer is not to_nothing and seen != expected:
        raise BenchFailed(f"{side} gave {seen} rows and has {expected}")
    return Run.of(expected / took.seconds, {"rows": places.rows}, took.cpu, expected)


# -- the four places -----------------------------------------------------------------------------------------


class Session:
    """A Spark session that is started when it is first needed; `stop` ends it unless it was given."""

    def __init__(self, folder: Path, given: SparkSession | None = None) -> None:
        self._folder = folder
        self._given = given
        self._started: SparkSession | None = None

    @cached_property
    def spark(self) -> SparkSession:
        from pyspark import cloudpickle

        from bench import ready_source
        from penstock.pipeline.session import start_session

        spark = self._given
        if spark is None:
            places = {"spark.local.dir": self._folder / "local", "spark.sql.warehouse.dir": self._folder / "warehouse"}
            conf = {"spark.sql.shuffle.partitions": "2", **{name: str(place) for name, place in places.items()}}
            spark = self._started = start_session("penstock bench", "local[2]", conf)
        cloudpickle.register_pickle_by_value(ready_source)  # type: ignore[no-untyped-call]
        spark.dataSource.register(ready_source.ReadySource)
        return spark

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()
            self._started = None


class Places:
    """The same rows in four places, for one size of body; each is created when it is first asked for."""

    def __init__(self, folder: Path, body: int, sizes: Sizes, session: Session) -> None:
        self._folder = folder / f"bodies-{body}"
        self.body = body
        self._sizes = sizes
        self._session = session
        self._served: PenstockBroker | None = None
        self._ready: dict[Wanted, dict[str, str]] = {}
        self.rows = sizes.messages[body]
        self.pulled_rows = sizes.pulled.get(body, 0)
        self.output = self._folder / "output"

    def prepared(self, side: str, wanted: Wanted) -> Callable[[Wanted], DataFrame | MessageTable]:
        """What loads the rows from a place, which is there now, so that only the reading is measured."""
        if side == OURS:
            where = {"path": str(self.store)}
            if wanted.order == "any":
                return lambda wanted: self._table(wanted, **where)
            return lambda wanted: self._source(wanted, **where)
        if side == "ready":
            self.ready(wanted)
            return self.ready
        if side == "parquet":
            files = self.parquet_files
            return lambda wanted: self._parquet(files, wanted)
        where = {"namesrv": self.served.namesrv}
        return lambda wanted: self._source(Wanted(wanted.columns), **where)  # a broker has no other order

    def _source(self, wanted: Wanted, **where: str) -> DataFrame:
        return self._session.spark.read.format("rocketmq").options(**wanted.options(self._sizes.topics), **where).load()

    def _table(self, wanted: Wanted, **where: str) -> DataFrame | MessageTable:
        from penstock.spark import table

        messages = table(self._session.spark, topics=self._sizes.topics, **where)
        return messages if wanted.columns else messages.frame()

    def _parquet(self, files: Path, wanted: Wanted) -> DataFrame:
        frame = self._session.spark.read.parquet(str(files))
        return frame.select(*wanted.columns) if wanted.columns else frame

    def ready(self, wanted: Wanted) -> DataFrame:
        """In batches as large as ours, and as many tasks."""
        reader = self._session.spark.read.format("bench-ready").schema(self._schema(wanted))
        return reader.options(**self.ready_options(wanted)).load()

    @cached_property
    def store(self) -> Path:
        path = self._folder / "store"
        fill(path, self.body, self.rows, self._sizes)
        return path

    @cached_property
    def parquet_files(self) -> Path:
        path = self._folder / "parquet"
        self._source(Wanted(), path=str(self.store)).write.parquet(str(path))
        return path

    @cached_property
    def served(self) -> PenstockBroker:
        """A broker with its name server, on a store that is filled already."""
        broker = self._served = PenstockBroker(self._folder / "served", self._sizes.settings())
        broker.make_new()
        fill(broker.store, self.body, self.pulled_rows, self._sizes)
        broker.resume(broker.is_listening)
        with Admin(broker.namesrv) as admin:  # no broker has written this store, so none knows its topics
            for topic in self._sizes.topics:
                admin.topics.create(topic, queues=self._sizes.queues)
        return broker

    def _schema(self, wanted: Wanted) -> StructType:
        from penstock.pipeline.source import schema_of

        return schema_of(self._options(wanted))

    def _options(self, wanted: Wanted) -> Options:
        return Options.read({**wanted.options(self._sizes.topics), "path": str(self.store)})

    def ready_options(self, wanted: Wanted) -> dict[str, str]:
        if wanted not in self._ready:
            from pyspark.sql.pandas.types import to_arrow_schema

            from bench.ready_source import save_batch
            from penstock.pipeline.source_rows import RowShape

            options, schema = self._options(wanted), self._schema(wanted)
            shape = RowShape.of(options, schema.names)
            tasks = plan_batch(options, shape)
            batches = shape.batches(tasks[0], to_arrow_schema(schema, timezone="UTC"))
            batch = next(batches, None)
            if batch is None:
                raise BenchFailed("the store has no messages")
            file = self._folder / f"ready-{len(self._ready)}.arrow"
            save_batch(batch, file)
            self._ready[wanted] = {"file": str(file), "rows": str(self.rows), "tasks": str(len(tasks))}
        return self._ready[wanted]

    def close(self) -> None:
        """Ends the broker and removes everything."""
        if self._served is not None:
            self._served.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
