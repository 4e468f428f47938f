"""Which columns a read has, as Spark's schema: RocketMQ's names, Kafka's names, or the user's own choice.

Spark prunes no columns of a Python source, so what is not wanted must be said by options: `columns`, `includeBody`, or
`.schema(...)`. Needs pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
from penstock.pipeline.columns import BROKER
from penstock.pipeline.options import Options

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
    """All columns that may be asked for: those of the schema, and the one that says what is wrong with a row.

    Raises BadSettings if that one has the name of another.
    """
    columns, corrupt = _KAFKA if options.schema == "kafka" else _NATIVE, options.column_name_of_corrupt_record
    if corrupt in columns:
        raise BadSettings(f"columnNameOfCorruptRecord='{corrupt}' is the name of another column; choose a new one")
    return {**columns, corrupt: StringType()}


def schema_of(options: Options) -> StructType:
    """The columns of a read without `.schema(...)`. Raises BadSettings."""
    known = known_columns(options)
    names = list(options.columns) or [name for name in known if name != options.column_name_of_corrupt_record]
    if not options.include_body and not options.columns:
        names.remove(_BODIES[options.schema])
    for name in names:
        if name not in known:
            raise BadSettings(f"columns: there is no column '{name}'; there are {', '.join(known)}")
    return spark_schema(names, options)


def spark_schema(names: Sequence[str], options: Options) -> StructType:
    """Some of the known columns, in this order."""
    known = known_columns(options)
    return StructType([StructField(name, known[name]) for name in names])


def check_schema(schema: StructType, options: Options) -> None:
    """Checks what the user gave with `.schema(...)`: any columns in any order. Raises BadSettings."""
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
