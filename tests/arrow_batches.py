"""What tests of Arrow batches share: batches of messages, and what the rows of a batch must be.

The rows are made of single records, without any of the kernels that make columns.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.store import GetStatus, Message, MessageStore, Record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAP = pa.map_(pa.string(), pa.string())


def batch_of(**columns: Any) -> pa.RecordBatch:
    """Lists by column name; of the columns that Arrow cannot guess, only the map is made here."""
    if "properties" in columns and not isinstance(columns["properties"], pa.Array):
        columns["properties"] = pa.array(columns["properties"], MAP)
    return pa.RecordBatch.from_pydict(columns)


def numbered(count: int, size: int = 10, topic: str = "T") -> pa.RecordBatch:
    return batch_of(topic=[topic] * count, body=[b"%0*d" % (size, number) for number in range(count)])


def expected_row(record: Record) -> dict[str, Any]:
    """The row of a record, with all columns. Times outside what Python's datetime can express are not for this."""
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "body": record.body,
        "tags": record.tags or None,
        "keys": list(record.keys),
        "properties": list(record.properties.items()),
        "msg_id": record.msg_id,
        "born_timestamp": _EPOCH + timedelta(milliseconds=record.born_timestamp),
        "store_timestamp": _EPOCH + timedelta(milliseconds=record.store_timestamp),
        "born_host": record.born_host,
        "store_host": record.store_host,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "physical_offset": record.physical_offset,
        "store_size": record.size,
        "body_crc": record.body_crc,
    }


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch that is valid in every respect."""
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def numbers(batch: pa.RecordBatch) -> list[int]:
    return [int(body) for body in batch.column("body").to_pylist()]


def read_queue(store: MessageStore, topic: str, queue_id: int = 0, **bounds: int) -> list[dict[str, Any]]:
    """All rows of a queue, page by page."""
    rows: list[dict[str, Any]] = []
    offset = 0
    while True:
        page = store.get_arrow(topic, queue_id, offset, **bounds)
        rows += rows_of(page.batch)
        if page.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE):
            return rows
        assert page.next_begin_offset > offset
        offset = page.next_begin_offset


def read_log(store: MessageStore, start: int = 0, **bounds: int) -> list[dict[str, Any]]:
    """All rows of the log, page by page."""
    rows: list[dict[str, Any]] = []
    while True:
        page = store.log_arrow(start, **bounds)
        if not page.batch.num_rows:
            return rows
        rows += rows_of(page.batch)
        assert page.next_offset > start
        start = page.next_offset


def put_numbered(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0, size: int = 0) -> None:
    for number in range(count):
        assert store.put(Message(topic, b"%0*d" % (size, number), queue_id=queue_id)).ok
