"""`format("rocketmq")`: the Spark data source, its schemas and its batch reader. Needs pyspark.

Columns have RocketMQ's names or, with schema=kafka, Kafka's. Spark does not prune the columns of a Python source, so
users choose columns with the options `columns` and `includeBody`, or with `.schema(...)`.

Spark creates the source in one process, plans in a second and reads in a third; it pickles the state in between. Each
process checks options and schemas as early as Spark allows. Every error is one sentence.

A worker imports this module before its first row. What only the driver needs is therefore imported in the functions,
and the pickled state of a reader has no options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import BadSettings
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.offset_ranges import ReadTask
from penstock.pipeline.source_rows import BROKER, UNIQUE_KEY, RowShape
from penstock.pipeline.spark_versions import arrow_schema, for_this_spark
from penstock.pipeline.spark_worker_idle_and_end import end_without_next_task, freeze_modules, until_unread

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipeline.options import Options


# -- schemas ---------------------------------------------------------------------------------------------------------

_NATIVE: Final[dict[str, DataType]] = {
    "topic": StringType(),
    BROKER: StringType(),
    "queue_id": IntegerType(),
    "queue_offset": LongType(),
    "body": BinaryType(),
    "tags": StringType(),
    "keys": ArrayType(StringType()),
    "properties": MapType(StringType(), StringType()),
    "msg_id": StringType(),
    "born_timestamp": TimestampType(),
    "store_timestamp": TimestampType(),
    "born_host": StringType(),
    "store_host": StringType(),
    "flag": IntegerType(),
    "sys_flag": IntegerType(),
    "reconsume_times": IntegerType(),
    "prepared_transaction_offset": LongType(),
    "physical_offset": LongType(),
    "store_size": IntegerType(),
    "body_crc": IntegerType(),
}
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_KAFKA: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}
_BODIES: Final = {"rocketmq": "body", "kafka": "value"}


def known_columns(options: Options) -> dict[str, DataType]:
    """Returns all columns that a read can have: those of the option `schema`, and those that must be asked for.

    The latter are the unique key and the corrupt-record column. Raises BadSettings if the corrupt-record column has the
    name of another column.
    """
    columns = {**(_KAFKA if options.schema == "kafka" else _NATIVE), UNIQUE_KEY: StringType()}
    corrupt = options.column_name_of_corrupt_record
    if corrupt in columns:
        raise BadSettings(f"columnNameOfCorruptRecord='{corrupt}' is the name of another column; choose a new one")
    return {**columns, corrupt: StringType()}


def schema_of(options: Options) -> StructType:
    """Returns the columns of a read without `.schema(...)`. Raises BadSettings for an unknown name in `columns`."""
    known = known_columns(options)
    on_request = (UNIQUE_KEY, options.column_name_of_corrupt_record)
    names = list(options.columns) or [name for name in known if name not in on_request]
    if not options.include_body and not options.columns:
        names.remove(_BODIES[options.schema])
    for name in names:
        if name not in known:
            raise BadSettings(f"columns: there is no column '{name}'; there are {', '.join(known)}")
    return spark_schema(names, options)


def spark_schema(names: Sequence[str], options: Options) -> StructType:
    """Returns the Spark schema of the known columns `names`, in the given order."""
    known = known_columns(options)
    return StructType([StructField(name, known[name]) for name in names])


def check_schema(schema: StructType, options: Options) -> None:
    """Checks a user's `.schema(...)`. Raises BadSettings unless all columns are known, nullable and of their types."""
    known = known_columns(options)
    if not schema.fields:
        raise BadSettings("the schema has no columns; at least one is needed")
    for field in schema.fields:
        wanted = known.get(field.name)
        if wanted is None:
            raise BadSettings(f"the schema has a column '{field.name}'; there are {', '.join(known)}")
        if field.dataType.simpleString() != wanted.simpleString():
            raise BadSettings(
                f"the schema has {field.dataType.simpleString()} for column '{field.name}', which must be "
                f"{wanted.simpleString()}"
            )
        if not field.nullable:
            raise BadSettings(f"the schema says that column '{field.name}' is never null; leave NOT NULL out")


# -- the source ------------------------------------------------------------------------------------------------------


class RocketMQSource(DataSource):
    """The Spark data source: it reads messages of RocketMQ stores and clusters as rows, and writes rows as messages."""

    def __init__(self, options: dict[str, str]) -> None:
        from penstock.pipeline.options import Options

        super().__init__(options)
        with as_user_errors():
            self._options = Options.read(dict(options))

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        from penstock.pipeline.scan_plan import check_input

        end_without_next_task()
        with as_user_errors():
            self._options.check_reading()
            schema = schema_of(self._options)
            check_input(self._options)
            freeze_modules()
            return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with as_user_errors():
            self._options.check_reading()
            check_schema(schema, self._options)
            return BatchReader(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from penstock.pipeline.stream_source import StreamReader

        return for_this_spark(StreamReader(self._options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.sink_writers import make_writer

        with as_user_errors():
            return make_writer(self._options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.pipeline.sink_writers import make_stream_writer

        with as_user_errors():
            checkpoint = str(self.options.get("checkpointlocation", ""))
            return make_stream_writer(self._options, schema, overwrite, checkpoint)


class ReadPartition(InputPartition):
    """A ReadTask as Spark passes it to a worker."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)
        self.task = task


class BatchReader(DataSourceReader):
    """The reader of a batch. It reads the messages that exist when Spark plans the first action."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._shape = RowShape.of(options, schema.names)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": None}  # only the driver plans

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.pipeline.scan_plan import (
            plan_batch,  # not at the top: workers import this module, and do not plan
        )

        end_without_next_task()
        with as_user_errors():
            tasks = plan_batch(self._options, self._shape)
            freeze_modules()
            return [ReadPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_part(self._shape, self._schema, partition)


def read_part(shape: RowShape, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Reads one partition on a worker. Yields nothing for the partition that Spark adds if a plan has no tasks."""
    if not isinstance(partition, ReadPartition):
        return
    with as_user_errors():
        yield from until_unread(shape.batches(partition.task, arrow_schema(schema)))
