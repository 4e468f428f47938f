"""`format("rocketmq")` for Spark: the data source and its batch reader. Needs pyspark.

Spark makes the source in one process, plans in another, and reads in a third; what is passed on is pickled. Options and
schemas are checked in each, as early as Spark lets Python speak, and what is wrong is said in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock.pipeline.errors import said
from penstock.pipeline.options import Options
from penstock.pipeline.places import Task
from penstock.pipeline.planning import check_there, plan_batch
from penstock.pipeline.rows import Shape
from penstock.pipeline.schema import check_schema, schema_of

if TYPE_CHECKING:
    import pyarrow as pa


class RocketMQSource(DataSource):
    """Messages of RocketMQ stores and clusters as rows."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        with said():
            self._options = Options.read(dict(options))

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        with said():
            self._options.check_reading()
            schema = schema_of(self._options)
            check_there(self._options)
            return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with said():
            self._options.check_reading()
            check_schema(schema, self._options)
            return BatchReader(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.pipeline.stream import StreamReader

        return StreamReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.sink import make_writer

        with said():
            return make_writer(self._options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.pipeline.sink import make_stream_writer

        with said():
            return make_stream_writer(self._options, schema, overwrite)


class Part(InputPartition):
    """One task for a worker."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.task = task


class BatchReader(DataSourceReader):
    """Reads once what is there when Spark plans the first action."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._shape = Shape.of(options, schema.names)

    def partitions(self) -> Sequence[InputPartition]:
        with said():
            return [Part(task) for task in plan_batch(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._shape, self._schema, partition)


def read_part(shape: Shape, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a worker does with one partition; Spark makes one without a task where there are none."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if not isinstance(partition, Part):
        return
    with said():
        yield from shape.batches(partition.task, to_arrow_schema(schema, timezone="UTC"))
