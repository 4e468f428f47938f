"""Arrow batches of messages, the rows that they must have, and batches that a sink commits to a store.

Expected rows are made from single records, without any of the kernels that make columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.store import GetStatus, Message, MessageStore, Record, Settings
from penstock.store.audit import audit
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.sink.commit import CommitResult, SinkBatch, commit, read_part, stage, staging_folder
from penstock.store.sink.journal import Identity, WriterKind
from support.disks import UnsyncedFiles

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


SETTINGS = Settings.dev(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=20 * 20,
    max_hash_slot_num=50,
    max_index_num=150,
    max_message_size=2048,
).with_changes(max_hash_slot_num=50, max_index_num=150)
QUERY = "7d6f4b0e-0000-4000-8000-000000000001"
BEFORE = 12
"""How many messages there are before the first batch."""
QUEUES = 4
PIECE = 10
"""How many rows are put at a time."""


def query_batch(number: int) -> Identity:
    return Identity(WriterKind.QUERY, QUERY, number)


def make_store(path: Path, files: Files | None = None) -> None:
    """A store with a few messages of other topics, closed."""
    with MessageStore.open(path, SETTINGS, files=files) as store:
        for number in range(BEFORE):
            topic = "orders" if number % 2 else "before"
            assert store.put(Message(topic, b"before %d" % number, keys=(f"b{number}",), queue_id=number % 3)).ok


def rows(batch_id: int, start: int, stop: int, born: int) -> pa.RecordBatch:
    """Rows that go to two topics and all queues; one in seven is delayed."""
    numbers = range(start, stop)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["orders" if number % 3 else "results" for number in numbers],
            "body": [body_of(batch_id, number) for number in numbers],
            "keys": [[f"key{batch_id}-{number}"] for number in numbers],
            "tags": ["paid" if number % 2 else None for number in numbers],
            "properties": pa.array([[("number", str(number))] for number in numbers], MAP),
            "queue_id": pa.array([number % QUEUES for number in numbers], pa.int32()),
            "delay_level": pa.array([3 if number % 7 == 6 else None for number in numbers], pa.int32()),
            "born_timestamp": pa.array([born] * len(numbers), pa.int64()),
        }
    )


def body_of(batch_id: int, number: int) -> bytes:
    return b"batch %d row %d " % (batch_id, number) + b"." * (number * 37 % 300)


def commit_rows(
    path: Path,
    identity: Identity,
    count: int,
    files: Files | None = None,
    between: Callable[[int], object] = lambda number: None,
    **changes: Any,
) -> CommitResult:
    """Stages and commits `count` rows; `between` is called before each put, and after the last."""
    files, layout = files or Files(), Layout.of(path, SETTINGS)
    folder = staging_folder(identity, str(identity.batch_id))
    parts = [
        stage(files, layout, folder, "0-0", b"%d %d" % (at, min(at + PIECE, count))) for at in range(0, count, PIECE)
    ]

    def read(born: int) -> Iterator[pa.RecordBatch]:
        for number, part in enumerate(parts):
            between(number)
            start, stop = map(int, read_part(files, layout, folder, part).split())
            yield rows(identity.batch_id, start, stop, born)
        between(len(parts))

    queues = {"orders": QUEUES - 1, "results": QUEUES - 1} if count else {}
    batch = SinkBatch(identity, rows=count, queues=queues, new_topic_queues=QUEUES)
    return commit(path, changes.pop("settings", SETTINGS), changes.pop("batch", batch), read, files=files)


def stored(store: MessageStore) -> list[Record]:
    """Every message of every queue."""
    store.catch_up()
    found: list[Record] = []
    for queue in store.queues:
        for offset in range(queue.min_offset, queue.max_offset):
            page = store.get(queue.topic, queue.queue_id, offset, 1)
            assert len(page.messages) == 1, (queue.topic, queue.queue_id, offset, page.status)
            found += page.messages
    return found


def bodies(path: Path, *, read_only: bool = False) -> list[bytes]:
    """The bodies of all batches, in the order of their rows; the messages from before must be there."""
    with MessageStore.open(path, SETTINGS, read_only=read_only, files=None if read_only else UnsyncedFiles()) as store:
        found = stored(store)
        keys = [key for record in found for key in record.keys]
        hits = {key: len(store.query(record.topic, key)) for record in found for key in record.keys}
        assert all(count == 1 for count in hits.values()), {key: n for key, n in hits.items() if n != 1}
        assert len(set(keys)) == len(keys)
    assert sum(record.body.startswith(b"before") for record in found) == BEFORE
    found.sort(key=lambda record: record.physical_offset)
    return [record.body for record in found if not record.body.startswith(b"before")]


def whole(batch_id: int, count: int) -> list[bytes]:
    return [body_of(batch_id, number) for number in range(count)]


def assert_sound(path: Path) -> None:
    """What `penstock store verify` says of it."""
    errors = [f"{each.kind} {each.path}: {each.what}" for each in audit(path, SETTINGS).errors]
    assert not errors, errors
