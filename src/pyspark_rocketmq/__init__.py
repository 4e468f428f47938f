"""Registers `format("rocketmq")` with Spark. Spark loads `DefaultSource` from every package named `pyspark_*`.

Importing this package must never fail: if one such package fails, Spark silently ignores all of them. The package
therefore imports Penstock only when a source is created. Errors appear then, as one sentence.
"""

from __future__ import annotations

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


class DefaultSource(DataSource):
    """The data source that Spark finds. It delegates to `penstock.pipeline.source.RocketMQSource`."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        from penstock.pipeline.source import RocketMQSource

        self._source = RocketMQSource(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source.writer(schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._source.streamReader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return self._source.streamWriter(schema, overwrite)
