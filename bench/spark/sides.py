"""The same rows from four places: our source on a store's files, ready-made batches, Parquet, and a broker.

`Sides` has what is made for one size of body, when it is first asked for: the store, the Parquet files that Spark made
of it, a ready-made batch for each set of columns, and a broker on a store of its own. One Spark session serves all.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.harness import BenchFailed
from bench.spark.served import Served
from bench.spark.stores import Sizes, fill, settings_of
from penstock.pipeline.options import Options
from penstock.pipeline.planning import plan_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def lacking() -> str:
    """Why there is no Spark here, empty if there is."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    return "" if shutil.which("java") else "java is not installed"


class Wanted(msgspec.Struct, frozen=True):
    """What is read: these columns, all of them if none are named, in an order of our source."""

    columns: tuple[str, ...] = ()
    order: str = "queue"

    def options(self, topics: Sequence[str]) -> dict[str, str]:
        """For our source; a log is read whole."""
        named = {"columns": ",".join(self.columns)} if self.columns else {}
        return {**named, "order": "log"} if self.order == "log" else {**named, "subscribe": ",".join(topics)}


class Session:
    """A Spark session that is started when it is first needed, and stopped by `stop` unless somebody gave it."""

    def __init__(self, folder: Path, given: SparkSession | None = None) -> None:
        self._folder = folder
        self._given = given
        self._started: SparkSession | None = None

    @cached_property
    def spark(self) -> SparkSession:
        from pyspark import cloudpickle

        from bench.spark import ready
        from penstock.pipeline.session import start_session

        spark = self._given
        if spark is None:
            places = {"spark.local.dir": self._folder / "local", "spark.sql.warehouse.dir": self._folder / "warehouse"}
            conf = {"spark.sql.shuffle.partitions": "2", **{name: str(place) for name, place in places.items()}}
            spark = self._started = start_session("penstock bench", "local[2]", conf)
        cloudpickle.register_pickle_by_value(ready)  # type: ignore[no-untyped-call]
        spark.dataSource.register(ready.ReadySource)
        return spark

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()
            self._started = None


class Sides:
    """All places for one size of body, below a folder of their own."""

    def __init__(self, folder: Path, body: int, sizes: Sizes, session: Session) -> None:
        self._folder = folder / f"bodies-{body}"
        self._body = body
        self._sizes = sizes
        self._session = session
        self._served: Served | None = None
        self._ready: dict[Wanted, dict[str, str]] = {}

    @property
    def rows(self) -> int:
        return self._sizes.messages[self._body]

    @property
    def pulled_rows(self) -> int:
        return self._sizes.pulled[self._body]

    def ours(self, wanted: Wanted) -> DataFrame:
        return self._source(wanted, path=str(self.store))

    def ready(self, wanted: Wanted) -> DataFrame:
        """In batches as large as ours, and as many tasks."""
        from bench.spark.ready import ReadySource

        options = self.ready_options(wanted)
        reader = self._session.spark.read.format(ReadySource.name()).schema(self._schema(wanted))
        return reader.options(**options).load()

    def parquet(self, wanted: Wanted) -> DataFrame:
        frame = self._session.spark.read.parquet(str(self.parquet_files))
        return frame.select(*wanted.columns) if wanted.columns else frame

    def broker(self, wanted: Wanted) -> DataFrame:
        """By queue in any case: a broker has no other order."""
        return self._source(Wanted(wanted.columns), namesrv=self.served.namesrv)

    def output(self) -> Path:
        """Where rows are written to, and written over."""
        return self._folder / "output"

    def _source(self, wanted: Wanted, **where: str) -> DataFrame:
        return self._session.spark.read.format("rocketmq").options(**wanted.options(self._sizes.topics), **where).load()

    # -- what is made once -----------------------------------------------------------------------------------

    @cached_property
    def store(self) -> Path:
        path = self._folder / "store"
        fill(path, self._body, self.rows, self._sizes)
        return path

    @cached_property
    def parquet_files(self) -> Path:
        path = self._folder / "parquet"
        self.ours(Wanted()).write.parquet(str(path))
        return path

    @property
    def served(self) -> Served:
        if self._served is None:
            path = self._folder / "served"
            fill(path, self._body, self.pulled_rows, self._sizes)
            self._served = Served(path, settings_of(self._sizes))
            self._served.make_topics(self._sizes.topics, self._sizes.queues)
        return self._served

    def _schema(self, wanted: Wanted) -> StructType:
        from penstock.pipeline.schema import schema_of

        return schema_of(self._options(wanted))

    def _options(self, wanted: Wanted) -> Options:
        return Options.read({**wanted.options(self._sizes.topics), "path": str(self.store)})

    def ready_options(self, wanted: Wanted) -> dict[str, str]:
        if wanted not in self._ready:
            from pyspark.sql.pandas.types import to_arrow_schema

            from bench.spark.ready import save_batch
            from penstock.pipeline.rows import Shape

            options, schema = self._options(wanted), self._schema(wanted)
            tasks = plan_batch(options)
            batches = Shape.of(options, schema.names).batches(tasks[0], to_arrow_schema(schema, timezone="UTC"))
            batch = next(batches, None)
            if batch is None:
                raise BenchFailed("the store has no messages")
            file = self._folder / f"ready-{len(self._ready)}.arrow"
            save_batch(batch, file)
            self._ready[wanted] = {"file": str(file), "rows": str(self.rows), "tasks": str(len(tasks))}
        return self._ready[wanted]

    def close(self) -> None:
        """Ends the broker, and removes everything."""
        if self._served is not None:
            self._served.stop()
            self._served = None
        shutil.rmtree(self._folder, ignore_errors=True)
