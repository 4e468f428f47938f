"""Turns pages of messages into Spark's record batches: filters rows, decompresses bodies, makes the requested columns.

The driver creates a `RowShape`; workers use it, for messages of stores and of clusters alike. Columns have RocketMQ's
names or Kafka's. Bodies that clients compressed are unpacked. A body that cannot be unpacked stays compressed, and its
row says why in the corrupt-record column. An unpacked body has a maximum size. A batch whose unpacked bodies exceed
`_MAX_PIECE_BYTES` is yielded as several batches (pieces). Pure functions. Needs pyarrow; `pyarrow.compute` is imported
where it is needed, because most workers do not need it before their first row.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import BadRequest, CorruptData
from penstock.format.arrow_rows import MESSAGE_SCHEMA, select_columns
from penstock.format.constants import KEYS, UNIQ_KEY
from penstock.format.sys_flag import COMPRESSED
from penstock.pipeline.offset_ranges import Flaw, ReadTask, RowPage

if TYPE_CHECKING:  # a worker needs no options
    from penstock.pipeline.options import Options

_log = logging.getLogger("penstock.pipeline")


# -- bodies ----------------------------------------------------------------------------------------------------------

_MAX_PIECE_BYTES: Final = 64 << 20
"""The bytes of unpacked bodies after which a piece ends. The body that crosses the limit is the piece's last."""
_BODY: Final = "body"


class InflatedRows(NamedTuple):
    """A piece: consecutive rows of a batch with their bodies unpacked."""

    first_row: int
    """The number of the piece's first row in the original batch."""
    batch: pa.RecordBatch
    failures: tuple[tuple[int, str], ...] = ()
    """The rows of this piece whose body could not be unpacked: row number in the piece, and the reason."""


def inflate_bodies(batch: pa.RecordBatch, sys_flags: pa.Array, limit: int | None = None) -> Iterator[InflatedRows]:
    """Yields the batch with its column `body` unpacked, in several pieces if the unpacked bodies are large.

    `sys_flags` has the sysFlag of each row; the batch itself may lack that column. `limit` is the maximum bytes of one
    unpacked body. Raises MissingPackage if a codec is not installed.
    """
    # Flags of our own columns have no nulls, so this is a view, not a copy.
    packed = np.flatnonzero(sys_flags.to_numpy(zero_copy_only=False) & COMPRESSED)
    if not len(packed) or _BODY not in batch.schema.names:
        yield InflatedRows(0, batch)
        return
    from penstock.protocol.compression import MAX_SIZE, inflate_body  # most workers meet no compressed body

    limit = MAX_SIZE if limit is None else limit
    column = batch.column(_BODY)
    first, room = 0, _MAX_PIECE_BYTES
    bodies: dict[int, bytes] = {}
    failures: list[tuple[int, str]] = []
    for row in packed.tolist():
        if room <= 0:
            yield _piece(batch, first, row, bodies, failures)
            first, room, bodies, failures = row, _MAX_PIECE_BYTES, {}, []
        try:
            bodies[row] = inflate_body(memoryview(column[row].as_buffer()), sys_flags[row].as_py(), limit)
        except BadRequest as error:
            failures.append((row - first, str(error)))
        else:
            room -= len(bodies[row])
    yield _piece(batch, first, batch.num_rows, bodies, failures)


def _piece(
    batch: pa.RecordBatch, first: int, stop: int, bodies: dict[int, bytes], failures: list[tuple[int, str]]
) -> InflatedRows:
    """Returns rows `first` to `stop` (exclusive) of the batch. `bodies` has new bodies by row number in the batch."""
    import pyarrow.compute as pc

    part = batch.slice(first, stop - first)
    at = part.schema.get_field_index(_BODY)
    is_new = np.zeros(part.num_rows, np.bool_)
    is_new[[row - first for row in bodies]] = True
    new = pa.array(list(bodies.values()), part.schema.field(at).type)
    column = pc.replace_with_mask(part.column(at), pa.array(is_new), new)
    return InflatedRows(first, part.set_column(at, part.schema.field(at), column), tuple(failures))


# -- columns ---------------------------------------------------------------------------------------------------------

BROKER: Final = "broker"
UNIQUE_KEY: Final = "unique_key"
"""The column that identifies a message however often it was stored: its UNIQ_KEY, or its id in the store."""
ROW_SCHEMA: Final = pa.schema(
    [MESSAGE_SCHEMA.field("topic"), (BROKER, pa.string()), *(each for each in MESSAGE_SCHEMA if each.name != "topic")]
)
"""RocketMQ's columns of a read, as Arrow has them: the columns of a message, and the broker or store."""
_LOG_APPEND_TIME: Final = 1
"""Kafka's LogAppendTime: the broker has set the time."""
_MakeColumn = Callable[[pa.RecordBatch], pa.Array]


def _same(name: str) -> _MakeColumn:
    return lambda batch: batch.column(name)


def _key(batch: pa.RecordBatch) -> pa.Array:
    """Returns Kafka's `key`: all keys of a message as one text, as the producer sent them."""
    import pyarrow.compute as pc

    return pc.map_lookup(batch.column("properties"), KEYS, "first").cast(pa.binary())


def _headers(batch: pa.RecordBatch) -> pa.Array:
    """Returns Kafka's `headers`: the properties in the order of the record, or null if there are none."""
    import pyarrow.compute as pc

    maps = batch.column("properties")
    # The child of a map is a list of pairs already; only the type of the values has to change.
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items.cast(pa.binary())], names=["key", "value"])
    offsets = pc.add(maps.offsets, pa.scalar(0, pa.int32()))  # a copy: a slice's offsets cannot be combined with a mask
    empty = pc.equal(pc.subtract(offsets[1:], offsets[:-1]), 0)
    return pa.ListArray.from_arrays(offsets, pairs, mask=pc.or_kleene(empty, maps.is_null()))


def _unique_key(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow.compute as pc

    return pc.coalesce(pc.map_lookup(batch.column("properties"), UNIQ_KEY, "first"), batch.column("msg_id"))


def _timestamp_type(batch: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(_LOG_APPEND_TIME, pa.int32()), batch.num_rows)


_COMPUTED: Final[dict[str, tuple[tuple[str, ...], _MakeColumn]]] = {
    UNIQUE_KEY: (("properties", "msg_id"), _unique_key),
}
_KAFKA: Final[dict[str, tuple[tuple[str, ...], _MakeColumn]]] = {
    "key": (("properties",), _key),
    "value": (("body",), _same("body")),
    "topic": (("topic",), _same("topic")),
    "partition": (("queue_id",), _same("queue_id")),
    "offset": (("queue_offset",), _same("queue_offset")),
    "timestamp": (("store_timestamp",), _same("store_timestamp")),
    "timestampType": ((), _timestamp_type),
    "headers": (("properties",), _headers),
}


def _computed(name: str, *, kafka: bool) -> tuple[tuple[str, ...], _MakeColumn] | None:
    """Returns the message columns from which a result column is computed, and how; None if it is none of those."""
    return _COMPUTED.get(name) or (_KAFKA.get(name) if kafka else None)


def needed_for(name: str, *, kafka: bool) -> tuple[str, ...]:
    """Returns the message columns from which a result column is made."""
    computed = _computed(name, kafka=kafka)
    if computed is not None:
        return computed[0]
    return () if kafka else (name,)


def make_column(name: str, batch: pa.RecordBatch, *, kafka: bool) -> pa.Array:
    """Returns the result column `name`, made from a batch of message columns."""
    computed = _computed(name, kafka=kafka)
    return batch.column(name) if computed is None else computed[1](batch)


# -- rows ------------------------------------------------------------------------------------------------------------

_COALESCE_ROWS: Final = 20_000
_COALESCE_BYTES: Final = 8 << 20
_SMALL_BATCH: Final = 1 << 20


class _Damage:
    """Counts what a task could not read."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def add(self, flaws: Iterable[str]) -> None:
        for flaw in flaws:
            self._first = self._first or flaw
            self._count += 1

    def log(self, mode: str) -> None:
        if self._count:
            form = "rocketmq: %d damaged messages or ranges of the log in this task (mode=%s); the first: %s"
            _log.warning(form, self._count, mode, self._first)


class RowShape(msgspec.Struct, frozen=True):
    """The filters, columns and error mode of a read. The driver creates it and pickles it to the workers."""

    names: tuple[str, ...]
    """The columns of the result."""
    kafka: bool
    corrupt: str
    """The name of the corrupt-record column."""
    mode: str
    decompress: bool
    by_log: bool
    unordered: bool
    """Whether a task may read the queues' messages from the log. A damaged message then has no row, wherever it is."""
    tags: tuple[str, ...] | None
    keys: tuple[str, ...]
    topics: tuple[str, ...] | None
    pattern: str | None
    """A regular expression that filters topics if the log is read."""

    @classmethod
    def of(cls, options: Options, names: Sequence[str], *, streaming: bool = False) -> RowShape:
        by_log = options.order == "log"
        return cls(
            names=tuple(names),
            kafka=options.schema == "kafka",
            corrupt=options.column_name_of_corrupt_record,
            mode=options.mode or ("FAILFAST" if streaming else "PERMISSIVE"),
            decompress=options.decompress,
            by_log=by_log,
            unordered=options.order == "any",
            tags=options.tag_names,
            keys=options.keys,
            topics=(options.topics or None) if by_log else None,
            pattern=options.subscribe_pattern.pattern if by_log and options.subscribe_pattern else None,
        )

    @property
    def native(self) -> tuple[str, ...]:
        """The message columns that the read needs, in schema order."""
        needed = {name for wanted in self.names for name in needed_for(wanted, kafka=self.kafka)}
        if self.decompress and "body" in needed:
            needed.add("sys_flag")
        if self.tags is not None:
            needed.add("tags")
        if self.keys:
            needed |= {"keys", "properties"}
        if self.topics is not None or self.pattern is not None:
            needed.add("topic")
        if self._shows_damage or (self.mode == "FAILFAST" and "body" in needed):
            needed.add(self._position_column)
        return tuple(name for name in MESSAGE_SCHEMA.names if name in needed) or (self._position_column,)

    @property
    def has_all(self) -> bool:
        """Whether all columns of all messages are read."""
        return (
            self.tags is None
            and not self.keys
            and set(self.names).issuperset(_KAFKA if self.kafka else ROW_SCHEMA.names)
        )

    @property
    def verifies_bodies(self) -> bool:
        """Whether the checksum of a body matters: it covers nothing else, and a row without a body has no flaw then."""
        return self.mode != "PERMISSIVE" or self.corrupt in self.names or "body" in self.native

    @property
    def _shows_damage(self) -> bool:
        """Whether an unreadable message is a row. It is not if rows are filtered by content, which is unknown then."""
        return self.mode == "PERMISSIVE" and not self._filters_rows and not self.unordered

    @property
    def _position_column(self) -> str:
        """The column by which rows for unreadable messages are sorted among the other rows."""
        return "physical_offset" if self.by_log else "queue_offset"

    def _position_of(self, flaw: Flaw) -> int:
        position = flaw.physical_offset if self.by_log else flaw.queue_offset
        return -1 if position is None else position

    def batches(self, task: ReadTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields a task's messages as batches of `schema`. Raises CorruptData at the first flaw if mode is FAILFAST.

        Logs the number of flaws at the end, in one line.
        """
        damage = _Damage()
        try:
            yield from _coalesced(
                batch for page in task.pages(self.native) for batch in self._shape_page(page, schema, damage)
            )
        finally:
            damage.log(self.mode)

    def _shape_page(self, page: RowPage, schema: pa.Schema, damage: _Damage) -> Iterator[pa.RecordBatch]:
        if page.flaws and self.mode == "FAILFAST":
            where = f"{page.broker}: {_location(page.flaws[0])}"
            raise CorruptData(f"{where}{page.flaws[0].what}; mode=FAILFAST ends the read")
        damage.add(f"{page.broker}: {_location(flaw)}{flaw.what}" for flaw in page.flaws)
        flaws = sorted(page.flaws, key=self._position_of) if self._shows_damage else []
        for batch, failures in self._decompressed(self._filter(page.batch), page.broker, damage):
            made = self._columns(
                batch, page.broker, _corrupt_column(batch.num_rows, failures) if failures else None, schema
            )
            if flaws and batch.num_rows:
                positions = batch.column(self._position_column).to_numpy()
                before_last = [flaw for flaw in flaws if self._position_of(flaw) < positions[-1]]
                flaws = flaws[len(before_last) :]
                joined = pa.concat_batches([made, self._flaw_rows(before_last, page.broker, schema)])
                order = np.argsort(
                    np.append(positions, [self._position_of(flaw) for flaw in before_last]), kind="stable"
                )
                made = joined.take(pa.array(order))
            yield made
        if flaws:
            yield self._flaw_rows(flaws, page.broker, schema)

    # -- filters ---------------------------------------------------------------------------------------------

    @property
    def _filters_rows(self) -> bool:
        """Whether the read filters rows by content."""
        return bool(self.keys or self.tags or self.topics or self.pattern)

    def _filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._filters_rows:
            return batch
        import pyarrow.compute as pc

        if self.topics is not None:
            batch = batch.filter(pc.is_in(batch.column("topic"), pa.array(self.topics, pa.string())))
        if self.pattern is not None:
            batch = batch.filter(_matching(batch.column("topic"), self.pattern))
        if self.tags is not None:
            batch = batch.filter(pc.is_in(batch.column("tags"), pa.array(self.tags, pa.string())))
        if self.keys:
            batch = batch.filter(rows_with_keys(batch, pa.array(self.keys, pa.string())))
        return batch

    # -- bodies ----------------------------------------------------------------------------------------------

    def _decompressed(
        self, batch: pa.RecordBatch, broker: str, damage: _Damage
    ) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
        """Yields rows with their bodies unpacked, and the reasons of failures by row number.

        Drops rows that fail if mode is DROPMALFORMED. Raises CorruptData for the first one if mode is FAILFAST.
        """
        if not self.decompress or "body" not in batch.schema.names:
            yield batch, {}
            return
        for piece in inflate_bodies(batch, batch.column("sys_flag")):
            failures = dict(piece.failures)
            damage.add(f"{broker}: the body cannot be unpacked: {why}" for why in failures.values())
            if failures and self.mode == "FAILFAST":
                row, why = next(iter(failures.items()))
                at = (
                    piece.batch.column(self._position_column)[row]
                    if self._position_column in piece.batch.schema.names
                    else "?"
                )
                raise CorruptData(f"{broker}: the body at {self._position_column} {at} cannot be unpacked: {why}")
            if failures and self.mode == "DROPMALFORMED":
                keep = [row for row in range(piece.batch.num_rows) if row not in failures]
                yield piece.batch.take(pa.array(keep, pa.int64())), {}
            else:
                yield piece.batch, failures

    # -- columns ---------------------------------------------------------------------------------------------

    def _flaw_rows(self, flaws: Sequence[Flaw], broker: str, out: pa.Schema) -> pa.RecordBatch:
        """Returns rows for unreadable messages. Only the known positions and the corrupt-record column are set."""
        schema = select_columns(self.native)
        known = {
            "topic": [flaw.topic for flaw in flaws],
            "queue_id": [flaw.queue_id for flaw in flaws],
            "queue_offset": [flaw.queue_offset for flaw in flaws],
            "physical_offset": [flaw.physical_offset for flaw in flaws],
        }
        empty = [None] * len(flaws)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(known.get(field.name, empty), field.type) for field in schema], schema=schema
        )
        return self._columns(batch, broker, pa.array([flaw.what for flaw in flaws], pa.string()), out)

    def _columns(
        self, batch: pa.RecordBatch, broker: str, corrupt: pa.Array | None, schema: pa.Schema
    ) -> pa.RecordBatch:
        columns = []
        for field in schema:
            if field.name == self.corrupt:
                column = pa.nulls(batch.num_rows, pa.string()) if corrupt is None else corrupt
            elif field.name == BROKER and not self.kafka:
                column = pa.repeat(pa.scalar(broker), batch.num_rows)
            else:
                column = make_column(field.name, batch, kafka=self.kafka)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _location(flaw: Flaw) -> str:
    return "" if flaw.topic is None else f"topic {flaw.topic} queue {flaw.queue_id}: "


def _corrupt_column(rows: int, failures: dict[int, str]) -> pa.Array:
    texts = [f"the body cannot be unpacked: {failures[row]}" if row in failures else None for row in range(rows)]
    return pa.array(texts, pa.string())


def _matching(topics: pa.Array, pattern: str) -> pa.Array:
    """Returns a mask of the topics that fully match a Python pattern. Matches each distinct topic only once."""
    distinct = topics.dictionary_encode()
    compiled = re.compile(pattern)
    matches = np.array([compiled.fullmatch(topic) is not None for topic in distinct.dictionary.to_pylist()], np.bool_)
    return pa.array(matches[distinct.indices.to_numpy()] if len(topics) else matches[:0])


def rows_with_keys(batch: pa.RecordBatch, keys: pa.Array) -> pa.Array:
    """Returns a mask of the rows that have one of `keys`, as a key or as the unique key (UNIQ_KEY)."""
    import pyarrow.compute as pc

    lists = batch.column("keys")
    hit = pc.is_in(lists.flatten(), keys)
    rows = np.zeros(batch.num_rows, np.bool_)
    rows[pc.list_parent_indices(lists).to_numpy()[hit.to_numpy(zero_copy_only=False)]] = True
    unique = pc.is_in(pc.map_lookup(batch.column("properties"), UNIQ_KEY, "first"), keys)
    return pa.array(rows | unique.to_numpy(zero_copy_only=False))


def _coalesced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches, with small batches joined. A batch costs Spark about the same whatever its size."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if not pending and batch.nbytes >= _SMALL_BATCH:
            yield batch
            continue
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _COALESCE_ROWS or size >= _COALESCE_BYTES:
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.concat_batches(pending)
