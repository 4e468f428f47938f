"""The columns that a written DataFrame may have, and the conversion of its rows to messages.

The column `body`, or Kafka's `value`, is required. The columns `topic`, `tags`, `keys` (or `key`, if there is a
`value`), `properties`, `delay_level` and `queue_id` are optional. The driver checks the schema before it reads any row;
workers check the rows. Pure functions. Needs pyspark and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VarcharType,
)

from penstock.broker.topics import NOT_FOR_SENDING
from penstock.errors import BadMessage, BadSettings
from penstock.format.topics import check_topic

BODY: Final = "body"
TOPIC: Final = "topic"
KEYS: Final = "keys"


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType | VarcharType | CharType)


def _is_bytes_or_text(kind: DataType) -> bool:
    return isinstance(kind, BinaryType) or _is_text(kind)


def _is_number(kind: DataType) -> bool:
    return isinstance(kind, ByteType | ShortType | IntegerType | LongType)


def _is_keys(kind: DataType) -> bool:
    return _is_text(kind) or (isinstance(kind, ArrayType) and _is_text(kind.elementType))


def _is_properties(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column that a written DataFrame may have: the message field that it sets, and its allowed types."""

    field: str
    fits: Callable[[DataType], bool]
    types: str


_COLUMNS: Final = {
    "body": _Column(BODY, _is_bytes_or_text, "binary or string"),
    "value": _Column(BODY, _is_bytes_or_text, "binary or string"),
    "topic": _Column(TOPIC, _is_text, "string"),
    "tags": _Column("tags", _is_text, "string"),
    "keys": _Column(KEYS, _is_keys, "string or array<string>"),
    "key": _Column(KEYS, _is_bytes_or_text, "binary or string"),
    "properties": _Column("properties", _is_properties, "map<string,string>"),
    "delay_level": _Column("delay_level", _is_number, "int"),
    "queue_id": _Column("queue_id", _is_number, "int"),
}


def check_may_send(topic: str) -> None:
    """Raises BadMessage for an invalid topic name, or for a topic that only a broker writes to."""
    check_topic(topic)
    if topic in NOT_FOR_SENDING:
        raise BadMessage(f"topic '{topic}' is internal to the broker; write to another topic")


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Maps the columns of a DataFrame to message fields. Spark pickles it."""

    fields: dict[str, str]
    """Message fields by column name."""
    topic: str
    """The topic of rows whose own topic is missing or null. If empty, every row must have a topic."""

    @classmethod
    def of(cls, schema: StructType, topic: str) -> WrittenRows:
        """Returns the mapping for a schema. Raises BadSettings if the schema cannot be written."""
        fields: dict[str, str] = {}
        for field in schema.fields:
            column = _COLUMNS.get(field.name)
            if column is None:
                raise BadSettings(
                    f"the column '{field.name}' cannot be written; there are {', '.join(_COLUMNS)}: select or rename"
                )
            if not column.fits(field.dataType):
                raise BadSettings(
                    f"the column '{field.name}' is {field.dataType.simpleString()}, and must be {column.types}: cast it"
                )
            if column.field in fields.values():
                other = next((name for name in fields if fields[name] == column.field and name != field.name), "")
                also = f"means the same as '{other}'" if other else "is there twice"
                raise BadSettings(f"the column '{field.name}' {also}; only one of them can be written")
            fields[field.name] = column.field
        if BODY not in fields.values():
            raise BadSettings("there is neither a column 'body' nor a column 'value'; select or rename one")
        if "key" in fields and "value" not in fields:
            raise BadSettings("the column 'key' belongs to 'value', as in Kafka; with 'body' use 'keys'")
        if TOPIC not in fields.values() and not topic:
            raise BadSettings("no topic is given; set the option topic, or add a column 'topic'")
        if topic:
            try:
                check_may_send(topic)
            except BadMessage as error:
                raise BadSettings(f"option topic: {error}") from None
        return cls(fields, topic)

    def messages(self, batch: pa.RecordBatch, origin: RowOrigin) -> pa.RecordBatch:
        """Returns the rows as a batch for `MessageStore.put_arrow`. Raises BadMessage for a row without topic or body.

        `origin` locates the batch in error messages.
        """
        columns = {self.fields[name]: batch.column(name) for name in batch.schema.names}
        if TOPIC not in columns:
            columns[TOPIC] = pa.repeat(pa.scalar(self.topic), batch.num_rows)
        elif columns[TOPIC].null_count and self.topic:
            columns[TOPIC] = pc.fill_null(columns[TOPIC], self.topic)
        origin.refuse_nulls(columns[TOPIC], "the topic is null, and there is no option topic")
        origin.refuse_nulls(columns[BODY], "the body is null")
        if KEYS in columns and columns[KEYS].type in (pa.binary(), pa.large_binary()):
            columns[KEYS] = _as_text(columns[KEYS], origin)
        return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """The partition and the first row's number of a batch, for error messages."""

    partition: int
    first_row: int

    def refused(self, number: int, why: str) -> BadMessage:
        """Returns the error for row `number` of the batch. A `number` of -1 means the whole batch."""
        if number < 0:
            return BadMessage(f"rows from {self.first_row} on of partition {self.partition}: {why}")
        return BadMessage(f"row {self.first_row + number} of partition {self.partition}: {why}")

    def refuse_nulls(self, column: pa.Array, why: str) -> None:
        """Raises BadMessage for the first null of `column`, with the reason `why`."""
        if column.null_count:
            raise self.refused(pc.index(column.is_null(), True).as_py(), why)


def _as_text(column: pa.Array, origin: RowOrigin) -> pa.Array:
    """Returns Kafka's keys, which are bytes, as text. Raises BadMessage for a key that is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for number, key in enumerate(column.to_pylist()):
            try:
                (key or b"").decode()
            except UnicodeDecodeError:
                raise origin.refused(number, "the key is not UTF-8 text, as a message's keys must be") from None
        raise
