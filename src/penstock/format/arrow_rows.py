"""Converts records of a log to Arrow record batches, column by column, without a Python object per row. Needs pyarrow.

`MESSAGE_SCHEMA` has the columns of a message. `rows_to_batch` makes all or some of these columns from the ROWs of a
walk over a log. The columns are copies, so the log can be unmapped. Bytes that are not UTF-8 become U+FFFD. A timestamp
out of Arrow's range becomes null. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.format import kernels
from penstock.format.constants import KEYS, TAGS
from penstock.format.kernels import Bools, Buffer, Ints, Longs, Rows
from penstock.format.record_layout import BORN_HOST_AT
from penstock.format.sys_flag import BORN_HOST_V6, STORE_HOST_V6

_TIMESTAMP = pa.timestamp("us", tz="UTC")
MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("body", pa.binary()),
        ("tags", pa.string()),  # null if the message has none
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),  # all of them, KEYS and TAGS included
        ("msg_id", pa.string()),
        ("born_timestamp", _TIMESTAMP),
        ("store_timestamp", _TIMESTAMP),
        ("born_host", pa.string()),
        ("store_host", pa.string()),
        ("flag", pa.int32()),
        ("sys_flag", pa.int32()),
        ("reconsume_times", pa.int32()),
        ("prepared_transaction_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("store_size", pa.int32()),
        ("body_crc", pa.int32()),
    ]
)
"""The columns of a message, in this order."""


def select_columns(columns: Sequence[str] | None) -> pa.Schema:
    """Returns the schema of the named columns, in the given order, or of all columns for None. Raises ValueError."""
    if columns is None:
        return MESSAGE_SCHEMA
    if isinstance(columns, str):
        raise ValueError("columns must be a list of names, not a single text")
    unknown = [name for name in columns if name not in MESSAGE_SCHEMA.names]
    if unknown:
        raise ValueError(f"there is no column '{unknown[0]}'; there are {', '.join(MESSAGE_SCHEMA.names)}")
    if not columns or len(set(columns)) != len(columns):
        raise ValueError("columns must name at least one column, and each only once")
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])


_MAX_MS = (2**63 - 1) // 1000
_HOST_ROOM = (26, 58)  # the longest text of an IPv4 and of an IPv6 host
Spans = tuple[Longs, Ints]
"""The positions of texts in the data, and their lengths in bytes."""


def rows_to_batch(data: Buffer, starts: Longs, rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the rows as a batch with the columns of `schema`, which must be a part of MESSAGE_SCHEMA.

    `starts` are the positions of the rows' records in `data`. The records must total less than 2 GiB.
    """
    source = _Source(data, starts, rows, schema.names)
    return pa.RecordBatch.from_arrays([_COLUMNS[name](source) for name in schema.names], schema=schema)


class _Source:
    """The rows' fields that the columns need, and the positions of the rows' texts in the data."""

    def __init__(self, data: Buffer, starts: Longs, rows: Rows, columns: list[str]) -> None:
        self.data = data
        self._starts = starts
        names = tuple({field: None for name in columns for field in _FIELDS[name]})
        self._fields = dict(zip(names, kernels.row_fields(rows, names), strict=True))
        self._wanted = [name for name in (TAGS, KEYS) if name.lower() in columns]

    def field(self, name: str) -> npt.NDArray[Any]:
        return self._fields[name]

    def part(self, name: str) -> Spans:
        """Returns the positions and lengths of the part `name`: body, topic or properties."""
        return self._starts + self._fields[f"{name}_at"], self._fields[f"{name}_length"]

    @cached_property
    def born_hosts(self) -> Spans:
        return self._starts + BORN_HOST_AT, self._host_lengths(BORN_HOST_V6)

    @cached_property
    def store_hosts(self) -> Spans:
        places, lengths = self.born_hosts
        return places + lengths + 8, self._host_lengths(STORE_HOST_V6)

    def _host_lengths(self, wide: int) -> Ints:
        return np.where(self._fields["sys_flag"] & wide, np.int32(20), np.int32(8))

    @cached_property
    def values(self) -> dict[str, Spans]:
        """The positions of the values of TAGS and KEYS, by name, as far as columns need them. Found in one pass."""
        names = tuple(name.encode() for name in self._wanted)
        spans = kernels.find_values(self.data, *self.part("properties"), names)
        return dict(zip(self._wanted, spans, strict=True))


# -- columns -------------------------------------------------------------------------------------------------
def _numbers(field: str, source: _Source) -> pa.Array:
    values = source.field(field)
    kind = pa.int64() if values.dtype == np.int64 else pa.int32()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _timestamps(field: str, source: _Source) -> pa.Array:
    milliseconds: Longs = source.field(field)
    valid = None
    if len(milliseconds) and not -_MAX_MS <= milliseconds.min() <= milliseconds.max() <= _MAX_MS:
        valid = _bitmap((milliseconds >= -_MAX_MS) & (milliseconds <= _MAX_MS))
    micros = pa.py_buffer(milliseconds * np.int64(1000))
    return pa.Array.from_buffers(MESSAGE_SCHEMA.field(field).type, len(milliseconds), [valid, micros])


def _bodies(source: _Source) -> pa.Array:
    return _gather(pa.binary(), source.data, source.part("body"))


def _topics(source: _Source) -> pa.Array:
    return _utf8(_gather(pa.string(), source.data, source.part("topic")))


def _tags(source: _Source) -> pa.Array:
    return _utf8(_gather(pa.string(), source.data, source.values[TAGS]))


def _keys(source: _Source) -> pa.Array:
    offsets, places, lengths = kernels.split_keys(source.data, *source.values[KEYS])
    items = _utf8(_gather(pa.string(), source.data, (places, lengths)))
    kind = MESSAGE_SCHEMA.field("keys").type
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], children=[items])


def _properties(source: _Source) -> pa.Array:
    offsets, name_places, name_lengths, places, lengths = kernels.split_properties(
        source.data, *source.part("properties")
    )
    names = _gather(pa.string(), source.data, (name_places, name_lengths))
    values = _gather(pa.string(), source.data, (places, lengths))
    kind = MESSAGE_SCHEMA.field("properties").type
    if not _is_utf8(names):
        return _utf8_maps(kind, offsets, names, values)
    pairs = pa.StructArray.from_arrays([names, _utf8(values)], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], children=[pairs])


def _message_ids(source: _Source) -> pa.Array:
    places, lengths = source.store_hosts
    offsets = _offsets(2 * lengths + 16)
    out = _allocate(offsets[-1])
    kernels.message_ids(source.data, places, lengths, source.field("physical_offset"), out)
    return _texts(pa.string(), offsets, out)


def _born_hosts(source: _Source) -> pa.Array:
    return _hosts(source.data, source.born_hosts)


def _store_hosts(source: _Source) -> pa.Array:
    return _hosts(source.data, source.store_hosts)


def _hosts(data: Buffer, hosts: Spans) -> pa.Array:
    out = _allocate(np.where(hosts[1] == 20, _HOST_ROOM[1], _HOST_ROOM[0]).sum())
    return _texts(pa.string(), kernels.host_texts(data, *hosts, out), out)


_COLUMNS: Final[dict[str, Callable[[_Source], pa.Array]]] = {
    "topic": _topics,
    "queue_id": partial(_numbers, "queue_id"),
    "queue_offset": partial(_numbers, "queue_offset"),
    "body": _bodies,
    "tags": _tags,
    "keys": _keys,
    "properties": _properties,
    "msg_id": _message_ids,
    "born_timestamp": partial(_timestamps, "born_timestamp"),
    "store_timestamp": partial(_timestamps, "store_timestamp"),
    "born_host": _born_hosts,
    "store_host": _store_hosts,
    "flag": partial(_numbers, "flag"),
    "sys_flag": partial(_numbers, "sys_flag"),
    "reconsume_times": partial(_numbers, "reconsume_times"),
    "prepared_transaction_offset": partial(_numbers, "prepared_transaction_offset"),
    "physical_offset": partial(_numbers, "physical_offset"),
    "store_size": partial(_numbers, "size"),
    "body_crc": partial(_numbers, "body_crc"),
}
_PROPERTIES = ("properties_at", "properties_length")
_FIELDS: Final[dict[str, tuple[str, ...]]] = {name: (name,) for name in MESSAGE_SCHEMA.names} | {
    "topic": ("topic_at", "topic_length"),
    "body": ("body_at", "body_length"),
    "tags": _PROPERTIES,
    "keys": _PROPERTIES,
    "properties": _PROPERTIES,
    "msg_id": ("sys_flag", "physical_offset"),
    "born_host": ("sys_flag",),
    "store_host": ("sys_flag",),
    "store_size": ("size",),
}
"""The fields of a ROW from which each column is computed."""


# -- buffers -------------------------------------------------------------------------------------------------
def _gather(kind: pa.DataType, data: Buffer, places: Spans) -> pa.Array:
    """Returns a column of texts copied from the data. A text with a negative length becomes null."""
    lengths = places[1]
    offsets = _offsets(np.maximum(lengths, 0))
    out = _allocate(offsets[-1])
    kernels.gather(data, *places, out)
    return _texts(kind, offsets, out, _bitmap(lengths >= 0))


def _offsets(lengths: Ints) -> Ints:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _allocate(size: int) -> pa.Buffer:
    """Returns memory from Arrow's pool. The pool reuses it for later batches."""
    return pa.allocate_buffer(int(size))


def _texts(kind: pa.DataType, offsets: Ints, data: pa.Buffer, valid: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [valid, pa.py_buffer(offsets), data])


def _bitmap(valid: Bools) -> pa.Buffer | None:
    """Returns a validity bitmap, or None if all rows are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


# -- text that is not UTF-8 ----------------------------------------------------------------------------------
def _is_utf8(texts: pa.Array) -> bool:
    data: npt.NDArray[np.uint8] = np.frombuffer(texts.buffers()[2], np.uint8)
    if not len(data) or data.max() < 0x80:
        return True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _utf8(texts: pa.Array) -> pa.Array:
    """Returns the texts with U+FFFD in place of bytes that are not UTF-8."""
    return texts if _is_utf8(texts) else pa.array(_decoded(texts), texts.type)


def binary_to_text(values: pa.Array) -> pa.Array:
    """Returns binary values as text, without a copy of them. A value that is not UTF-8 becomes null."""
    count, first = len(values), values.offset
    if not count:
        return pa.array([], pa.string())
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, 4 * first)
    lengths = np.diff(ends)
    if values.null_count:
        lengths[values.is_null().to_numpy(zero_copy_only=False)] = -1
    valid = kernels.are_utf8(b"" if data is None else data, ends[:-1].astype(np.int64), lengths)
    bitmap = _bitmap(np.concatenate([np.ones(first, np.bool_), valid]))
    return pa.Array.from_buffers(pa.string(), count, [bitmap, offsets, data], offset=first)


def _decoded(texts: pa.Array) -> list[str | None]:
    raw = texts.cast(pa.binary()).to_pylist()
    return [None if text is None else text.decode("utf-8", "replace") for text in raw]


def _utf8_maps(kind: pa.MapType, offsets: Ints, names: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the maps with U+FFFD in place of bytes that are not UTF-8. Has each name once.

    If the replacement makes two names equal, the last value counts.
    """
    pairs = list(zip(_decoded(names), _decoded(values), strict=True))
    ends = offsets.tolist()
    maps = [list(dict(pairs[start:end]).items()) for start, end in pairwise(ends)]
    return pa.array(maps, kind)
