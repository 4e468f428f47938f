"""The columns of messages as Arrow record batches: what the store hands out, and what it takes. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

_MOMENT = pa.timestamp("us", tz="UTC")

MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("body", pa.binary()),
        ("tags", pa.string()),  # null where a message has none
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),  # all of them, KEYS and TAGS included
        ("msg_id", pa.string()),
        ("born_timestamp", _MOMENT),
        ("store_timestamp", _MOMENT),
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
"""What a message is as a row, in this order."""


def select_columns(columns: Sequence[str] | None) -> pa.Schema:
    """The schema with these columns only, in the order in which they are asked for; all of them for None."""
    if columns is None:
        return MESSAGE_SCHEMA
    if isinstance(columns, str):
        raise ValueError("the columns must be a list of names, not one text")
    unknown = [name for name in columns if name not in MESSAGE_SCHEMA.names]
    if unknown:
        raise ValueError(f"there is no column '{unknown[0]}'; there are {', '.join(MESSAGE_SCHEMA.names)}")
    if not columns or len(set(columns)) != len(columns):
        raise ValueError("the columns must be at least one, and each only once")
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
