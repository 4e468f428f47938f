"""Registers `format("rocketmq")` with Spark. Spark loads `DefaultSource` from every package named `pyspark_*`.

Importing this package must never fail: if one such package fails, Spark silently ignores all of them. The package
therefore imports Penstock only when a source is created. Errors appear then, as one sentence. Spark sends the source to
the workers, too, which need none of its options: a pickled source parses them again when it is used.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from penstock.pipeline.source import RocketMQSource


class DefaultSource(DataSource):
    """The data source that Spark finds. It delegates to `penstock.pipeline.source.RocketMQSource`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._created: RocketMQSource | None = None
        self._create()

    def _create(self) -> RocketMQSource:
        if self._created is None:
            from penstock.pipeline.source import RocketMQSource

            self._created = RocketMQSource(dict(self.options))
        return self._created

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_created": None}

    @classmethod
    def name(cls) -> str:
        with contextlib.suppress(Exception):  # in the process that looks for sources
            from penstock.pipeline.spark_worker_idle_and_end import end_without_next_task

            end_without_next_task()
        return "rocketmq"

    def schema(self) -> StructType:
        return self._create().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._create().reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._create().writer(schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._create().streamReader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._create().streamWriter(schema, overwrite)
