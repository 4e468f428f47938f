"""Columns of a result, made from columns of messages: RocketMQ's own, or Kafka's. Needs pyarrow; runs on workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.format.constants import KEYS

BROKER: Final = "broker"
_LOG_APPEND_TIME: Final = 1
"""Kafka's word for a time that the broker has set."""

Make = Callable[[pa.RecordBatch], pa.Array]


def _same(name: str) -> Make:
    return lambda batch: batch.column(name)


def _key(batch: pa.RecordBatch) -> pa.Array:
    """All keys of a message as one text, as its sender gave them."""
    return pc.map_lookup(batch.column("properties"), KEYS, "first").cast(pa.binary())


def _headers(batch: pa.RecordBatch) -> pa.Array:
    """Properties, in the order in which they were sent; null where there are none."""
    maps = batch.column("properties")
    # The child of a map is a list of pairs already; only the type of the values has to change.
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items.cast(pa.binary())], names=["key", "value"])
    offsets = pc.add(maps.offsets, pa.scalar(0, pa.int32()))  # a copy: those of a slice may not go with a mask
    empty = pc.equal(pc.subtract(offsets[1:], offsets[:-1]), 0)
    return pa.ListArray.from_arrays(offsets, pairs, mask=pc.or_kleene(empty, maps.is_null()))


def _timestamp_type(batch: pa.RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(_LOG_APPEND_TIME, pa.int32()), batch.num_rows)


_KAFKA: Final[dict[str, tuple[tuple[str, ...], Make]]] = {
    "key": (("properties",), _key),
    "value": (("body",), _same("body")),
    "topic": (("topic",), _same("topic")),
    "partition": (("queue_id",), _same("queue_id")),
    "offset": (("queue_offset",), _same("queue_offset")),
    "timestamp": (("store_timestamp",), _same("store_timestamp")),
    "timestampType": ((), _timestamp_type),
    "headers": (("properties",), _headers),
}


def needed_for(name: str, *, kafka: bool) -> tuple[str, ...]:
    """The columns of messages that a column of the result is made of."""
    if kafka:
        return _KAFKA[name][0] if name in _KAFKA else ()
    return (name,)


def make_column(name: str, batch: pa.RecordBatch, *, kafka: bool) -> pa.Array:
    """A column of the result."""
    return _KAFKA[name][1](batch) if kafka else batch.column(name)
