"""The columns that a written DataFrame may have, and the conversion of its rows to messages.

The column `body`, or Kafka's `value`, is required. The columns `topic`, `tags`, `keys` (or `key`, if there is a
`value`), `properties` (or Kafka's `headers`), `delay_level` and `queue_id` (or Kafka's `partition`) are optional. As in
Spark's Kafka sink, the option `topic` takes precedence over the column; `defaultTopic` is for rows without a topic. A
stream must not write to a topic that it reads: it would never end. The driver checks the schema before it reads rows;
workers check the rows. Pure functions. Needs pyspark and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
PROPERTIES: Final = "properties"
QUEUE_ID: Final = "queue_id"


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


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return fields.keys() == {"key", "value"} and _is_text(fields["key"]) and _is_bytes_or_text(fields["value"])


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
    "properties": _Column(PROPERTIES, _is_properties, "map<string,string>"),
    "headers": _Column(PROPERTIES, _is_headers, "array<struct<key:string,value:binary>>"),
    "delay_level": _Column("delay_level", _is_number, "int"),
    "queue_id": _Column(QUEUE_ID, _is_number, "int"),
    "partition": _Column(QUEUE_ID, _is_number, "int"),
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
    """The topic of all rows, whatever their own topic is. If empty, the rows' own topics count."""
    default_topic: str = ""
    """The topic of rows whose own topic is missing or null. If empty, every row must have a topic."""
    read_topics: frozenset[str] = frozenset()
    """The topics that the same query reads from the same place. A row with one of them is refused."""

    @classmethod
    def of(
        cls, schema: StructType, topic: str, default_topic: str = "", read_topics: frozenset[str] = frozenset()
    ) -> WrittenRows:
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
        if TOPIC not in fields.values() and not topic and not default_topic:
            raise BadSettings("no topic is given; set the option topic, or add a column 'topic'")
        for option, name in (("topic", topic), ("defaultTopic", default_topic)):
            if name in read_topics:
                raise BadSettings(f"option {option}: {_feeds_itself(name)}")
            try:
                check_may_send(name or "none")
            except BadMessage as error:
                raise BadSettings(f"option {option}: {error}") from None
        return cls(fields, topic, default_topic, read_topics)

    def messages(self, batch: pa.RecordBatch, origin: RowOrigin) -> pa.RecordBatch:
        """Returns the rows as a batch for `MessageStore.put_arrow`. Raises BadMessage for a row without topic or body.

        `origin` locates the batch in error messages.
        """
        columns = {self.fields[name]: batch.column(name) for name in batch.schema.names}
        if self.topic or TOPIC not in columns:
            columns[TOPIC] = pa.repeat(pa.scalar(self.topic or self.default_topic), batch.num_rows)
        elif columns[TOPIC].null_count and self.default_topic:
            columns[TOPIC] = pc.fill_null(columns[TOPIC], self.default_topic)
        origin.refuse_nulls(columns[TOPIC], "the topic is null, and there is neither an option topic nor defaultTopic")
        if self.read_topics:
            origin.refuse_topics(columns[TOPIC], self.read_topics)
        origin.refuse_nulls(columns[BODY], "the body is null")
        if KEYS in columns and columns[KEYS].type in (pa.binary(), pa.large_binary()):
            columns[KEYS] = _as_text(columns[KEYS], origin, "key", "keys")
        if PROPERTIES in columns and pa.types.is_list(columns[PROPERTIES].type):
            columns[PROPERTIES] = _as_properties(columns[PROPERTIES], origin)
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

    def refuse_topics(self, topics: pa.Array, read: frozenset[str]) -> None:
        """Raises BadMessage for the first topic that is one of `read`."""
        found = pc.is_in(topics, pa.array(sorted(read), topics.type))
        if pc.any(found).as_py():
            number = pc.index(found, True).as_py()
            raise self.refused(number, _feeds_itself(topics[number].as_py()))


def _feeds_itself(topic: str) -> str:
    return (
        f"topic '{topic}' is one that this query reads, and what it writes would be read again without an end; write "
        "to another topic"
    )


def _as_text(column: pa.Array, origin: RowOrigin, what: str, field: str, rows: Sequence[int] | None = None) -> pa.Array:
    """Returns Kafka's bytes as text. Raises BadMessage for bytes that are not UTF-8.

    `what` and `field` name one of the bytes and the message's field in the error. `rows` has the row of each, if a row
    has several.
    """
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for number, each in enumerate(column.to_pylist()):
            try:
                (each or b"").decode()
            except UnicodeDecodeError:
                row = number if rows is None else rows[number]
                raise origin.refused(row, f"the {what} is not UTF-8 text, as a message's {field} must be") from None
        raise


def _as_properties(headers: pa.Array, origin: RowOrigin) -> pa.Array:
    """Returns Kafka's headers as properties. The last of several headers with the same key counts.

    Leaves out headers without a value.
    """
    rows = pc.list_parent_indices(headers).to_pylist()
    pairs = headers.flatten()
    keys, values = (pc.struct_field(pairs, name) for name in ("key", "value"))
    if not pa.types.is_string(values.type):
        values = _as_text(values, origin, "value of a header", "properties", rows)
    found: list[dict[str, str]] = [{} for _ in range(len(headers))]
    for row, key, value in zip(rows, keys.to_pylist(), values.to_pylist(), strict=True):
        if key is not None and value is not None:
            found[row][key] = value
    return pa.array([list(each.items()) for each in found], pa.map_(pa.string(), pa.string()))
