"""Converts an Arrow record batch of messages to the columns that `plan_puts` takes. Needs pyarrow.

Large, view and dictionary types, integers of any width and timestamps of any unit are converted. Values that do not fit
are refused; timestamps are cut to milliseconds. A null in an optional column means that the field is absent. The
store's Arrow put calls this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadMessage
from penstock.format import kernels
from penstock.format.kernels import Bools, Ints, ListColumn, Longs, MapColumn, TextColumn
from penstock.format.put_rows import PutColumns

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


class PutBatch:
    """A record batch with converted columns. The constructor raises BadMessage if a column cannot be converted."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        for name in names:
            if name not in _CONVERSIONS:
                raise BadMessage(f"the column '{name}' is unknown; a put takes {', '.join(_CONVERSIONS)}")
            if names.count(name) > 1:
                raise BadMessage(f"the column '{name}' appears twice")
        for name in ("topic", "body"):
            if name not in names:
                raise BadMessage(f"the batch has no column '{name}'")
        self._columns = {name: _converted(name, batch.column(name)) for name in names}

    def columns(self) -> PutColumns:
        """Returns the columns as buffers for `plan_puts`."""
        given = self._columns
        topics, topic = _number_topics(given["topic"])
        others = {name: _BUFFERS[name](column) for name, column in given.items() if name != "topic"}
        return PutColumns(topics=topics, topic=topic, **others)

    def fields(self, number: int) -> dict[str, Any]:
        """Returns row `number` as Python values by column. Omits absent values."""
        values = {name: column[number].as_py() for name, column in self._columns.items()}
        if values.get("properties") is not None:
            values["properties"] = {name or "": value for name, value in values["properties"] if value is not None}
        if isinstance(values.get("keys"), list):
            values["keys"] = [key for key in values["keys"] if key is not None]
        return {name: value for name, value in values.items() if value is not None}


# -- types ---------------------------------------------------------------------------------------------------


def _converted(name: str, column: pa.Array) -> pa.Array:
    target = _CONVERSIONS[name](column.type)
    if target is None:
        raise BadMessage(f"the column '{name}' cannot have the type {column.type}")
    try:
        column.validate()
        if column.type == target and _is_plain(column):
            return column
        column.validate(full=True)
        if pa.types.is_timestamp(column.type):
            options = pc.CastOptions(pa.timestamp("ms", column.type.tz), allow_time_truncate=True)
            column = column.cast(options=options)
        return column.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise BadMessage(f"{_first_bad_row(column)}the column '{name}' cannot be read: {reason}") from None


def _is_plain(column: pa.Array) -> bool:
    """Returns whether a column needs no full validation: it has numbers, bytes or ASCII text only.

    The kernels check everything else about such a column.
    """
    if pa.types.is_string(column.type):
        texts = _texts(column)
        data: npt.NDArray[np.uint8] = np.frombuffer(texts.data, np.uint8)[texts.offsets[0] : texts.offsets[-1]]
        return not len(data) or int(data.max()) < 0x80
    if pa.types.is_map(column.type):
        return all(_is_plain(part) for part in _children(column)[1:])
    if pa.types.is_list(column.type):
        return _is_plain(_children(column)[1])
    return bool(pa.types.is_integer(column.type) or pa.types.is_binary(column.type))


def _first_bad_row(column: pa.Array) -> str:
    """Returns a text such as 'row 3: ' for the first invalid row, or "" if all rows are valid."""
    for number in range(len(column)):
        try:
            column.slice(number, 1).validate(full=True)
        except pa.ArrowInvalid:
            return f"row {number}: "
    return ""


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return kind in (pa.string(), pa.large_string(), pa.string_view(), pa.null())


def _as_topic(kind: pa.DataType) -> pa.DataType | None:
    if not _is_text(kind):
        return None
    return pa.dictionary(pa.int32(), pa.string()) if pa.types.is_dictionary(kind) else pa.string()


def _as_text(kind: pa.DataType) -> pa.DataType | None:
    return pa.string() if _is_text(kind) else None


def _as_body(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_dictionary(kind):
        return _as_body(kind.value_type)
    binary = kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(kind)
    return pa.binary() if binary or _is_text(kind) else None


def _as_keys(kind: pa.DataType) -> pa.DataType | None:
    if any(is_list(kind) for is_list in _LISTS):
        return pa.list_(pa.string()) if _is_text(kind.value_type) else None
    return _as_text(kind)


def _as_properties(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), pa.string()) if _is_text(kind.key_type) and _is_text(kind.item_type) else None
    return pa.map_(pa.string(), pa.string()) if pa.types.is_null(kind) else None


def _as_number(kind: pa.DataType) -> pa.DataType | None:
    return pa.int64() if pa.types.is_integer(kind) or pa.types.is_null(kind) else None


def _as_timestamp(kind: pa.DataType) -> pa.DataType | None:
    return pa.int64() if pa.types.is_timestamp(kind) else _as_number(kind)


_CONVERSIONS: Final[dict[str, Callable[[pa.DataType], pa.DataType | None]]] = {
    "topic": _as_topic,
    "body": _as_body,
    "keys": _as_keys,
    "tags": _as_text,
    "properties": _as_properties,
    "queue_id": _as_number,
    "delay_level": _as_number,
    "flag": _as_number,
    "born_timestamp": _as_timestamp,
}


# -- buffers -------------------------------------------------------------------------------------------------


def _number_topics(topics: pa.Array) -> tuple[list[str], Ints]:
    """Returns the distinct topics, and each row's index into them, or -1 if the row's topic is null."""
    if not pa.types.is_dictionary(topics.type):
        numbers, firsts = kernels.number_texts(_texts(topics))
        return [topics[row].as_py() for row in firsts.tolist()], numbers
    names, dictionary = _number_topics(topics.dictionary)
    indices = topics.indices
    numbers = np.asarray(pc.fill_null(indices, len(dictionary)) if indices.null_count else indices)
    return names, np.append(dictionary, np.int32(-1))[numbers]


def _texts(column: pa.Array) -> TextColumn:
    _, offsets, data = column.buffers()
    return TextColumn(
        _slice_offsets(offsets, column.offset, len(column) + 1), b"" if data is None else data, _valid(column)
    )


def _keys(column: pa.Array) -> ListColumn:
    if pa.types.is_list(column.type):
        return _lists(column)
    texts = _texts(column)  # a text is a list of one key, an empty text means no keys
    given = texts.offsets[1:] > texts.offsets[:-1]
    valid = given if texts.valid is None else given & texts.valid
    return ListColumn(np.arange(len(column) + 1, dtype=np.int32), texts, valid)


def _lists(column: pa.Array) -> ListColumn:
    offsets, items = _children(column)
    return ListColumn(offsets, _texts(items), _valid(column))


def _maps(column: pa.Array) -> MapColumn:
    offsets, names, values = _children(column)
    return MapColumn(offsets, _texts(names), _texts(values), _valid(column))


def _children(column: pa.Array) -> tuple[Any, ...]:
    """Returns the offsets of lists or maps, and the items of this column. The column may be a slice of a larger one."""
    offsets = _slice_offsets(column.buffers()[1], column.offset, len(column) + 1)
    first, count = int(offsets[0]), int(offsets[-1]) - int(offsets[0])
    parts = (column.keys, column.items) if pa.types.is_map(column.type) else (column.values,)
    return offsets - first if first else offsets, *(part.slice(first, count) for part in parts)


def _longs(column: pa.Array) -> Longs:
    return np.ascontiguousarray(pc.fill_null(column, 0) if column.null_count else column)


def _slice_offsets(offsets: pa.Buffer | None, start: int, count: int) -> Ints:
    """Returns the offsets of a slice of an array. Returns zeros if the array is empty and has no buffer."""
    if offsets is None or offsets.size == 0:
        return np.zeros(count, np.int32)
    return np.frombuffer(offsets, np.int32)[start : start + count]


def _valid(column: pa.Array) -> Bools | None:
    return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None


_BUFFERS: Final[dict[str, Callable[[pa.Array], Any]]] = {
    "body": _texts,
    "keys": _keys,
    "tags": _texts,
    "properties": _maps,
    "queue_id": _longs,
    "delay_level": _longs,
    "flag": _longs,
    "born_timestamp": _longs,
}
