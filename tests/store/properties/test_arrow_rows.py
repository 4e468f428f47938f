"""Random messages in and out as Arrow record batches, compared with single puts and single records, on both twins."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store.properties.test_put_is_got import HOSTS, KEYS, MEMORY, START_MS, TAGS, TOPICS
from support.arrow import MAP, expected_row, read_log, read_queue
from support.effort import BY_TWIN, running_on

from penstock.store import Message, MessageStore, Record, Settings

FILE_SIZE = 8192
TEXT = st.sampled_from(["", "1", "x", "a\x01b", "中文", "false", "Aa"])
NAMES = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "имя", "REAL_QID", "x"])
ROWS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from([*TOPICS, "SCHEDULE_TOPIC_XXXX"]),
        "body": st.binary(max_size=300),
        "keys": st.none() | st.lists(st.sampled_from(["", *KEYS]), max_size=3),
        "tags": st.none() | st.sampled_from(TAGS),
        "properties": st.none() | st.lists(st.tuples(NAMES, TEXT), max_size=4),
        "queue_id": st.none() | st.sampled_from([0, 1, 2**31 - 1]),
        "delay_level": st.none() | st.sampled_from([0, 0, 0, 1, 18, 99, -1]),
        "flag": st.none() | st.sampled_from([0, -1, 2**31 - 1]),
        "born_timestamp": st.none() | st.sampled_from([0, 1, START_MS]),
    }
)
TYPES = {
    "topic": pa.string(),
    "body": pa.binary(),
    "keys": pa.list_(pa.string()),
    "tags": pa.string(),
    "properties": MAP,
    "queue_id": pa.int32(),
    "delay_level": pa.int32(),
    "flag": pa.int32(),
    "born_timestamp": pa.int64(),
}
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.binary(max_size=400),
    keys=st.lists(st.sampled_from(KEYS), max_size=3).map(tuple),
    tags=st.sampled_from(TAGS),
    properties=st.dictionaries(st.sampled_from(["UNIQ_KEY", "x", "имя"]), TEXT, max_size=3),
    queue_id=st.sampled_from([0, 1]),
    delay_level=st.sampled_from([0, 0, 0, 3]),
    flag=st.sampled_from([0, -1]),
    sys_flag=st.sampled_from([0, 0, 0, 0x1, 0x4, 0x8, 0xC]),
    born_timestamp=st.sampled_from([0, 1, START_MS]),
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(["", *HOSTS]),
    reconsume_times=st.sampled_from([0, 3]),
    prepared_transaction_offset=st.sampled_from([0, 77, -1]),
)

slow = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Home:
    """Stores in memory that are gone after the block."""

    def __enter__(self) -> Home:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.opened: list[MessageStore] = []
        return self

    def open(self, name: str, file_size: int, **more: Any) -> MessageStore:
        chosen = Settings.dev(mapped_file_size_commit_log=file_size, mapped_file_size_consume_queue=160)
        store = MessageStore.open(self.folder / name, chosen, clock=lambda: START_MS, **more)
        self.opened.append(store)
        return store

    def __exit__(self, *error: object) -> None:
        for store in self.opened:
            store.close()
        shutil.rmtree(self.folder)


def as_message(row: dict[str, Any]) -> Message:
    fields = {name: value for name, value in row.items() if value is not None}
    return Message(**fields | {"properties": dict(fields.get("properties", []))})


@pytest.mark.parametrize("twin", BY_TWIN)
@given(rows=st.lists(ROWS, min_size=1, max_size=8))
@slow
def test_a_batch_is_stored_as_single_puts_are_to_the_byte(twin: str, rows: list[dict[str, Any]]) -> None:
    with running_on(twin), Home() as home:
        by_arrow, run_serially = home.open("arrow", 1 << 20), home.open("single", 1 << 20)
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
        result = by_arrow.put_arrow(pa.RecordBatch.from_pydict(columns))
        answers = [run_serially.put(as_message(row)) for row in rows]
        assert result.ok, result.reason
        assert result.queue_offsets.tolist() == [answer.queue_offset for answer in answers]
        assert result.physical_offsets.tolist() == [answer.physical_offset for answer in answers]
        end = run_serially.log.max_offset
        assert by_arrow.log.max_offset == end
        assert by_arrow.log.read(0, end) == run_serially.log.read(0, end)
        for topic in run_serially.topics():
            assert by_arrow.max_offset(topic, 0) == run_serially.max_offset(topic, 0)


def log_of(store: MessageStore) -> list[Record]:
    records, at = [], 0
    while at < store.log.max_offset:
        record = store.look_up(at)
        at = store.log.roll_next(at) if record is None else at + record.size
        records += [] if record is None else [record]
    return records


@pytest.mark.parametrize("twin", BY_TWIN)
@given(
    messages=st.lists(MESSAGES, max_size=40),
    max_bytes=st.sampled_from([1, 500, 3000, 1 << 20]),
    max_messages=st.sampled_from([1, 3, 1000]),
    read_only=st.booleans(),
)
@slow
def test_what_was_put_comes_out_as_rows_of_the_log_and_of_its_queues(
    twin: str, messages: list[Message], max_bytes: int, max_messages: int, read_only: bool
) -> None:
    with running_on(twin), Home() as home:
        store = home.open("store", FILE_SIZE)
        for message in messages:
            assert store.put(message).ok
        if read_only:
            store.catch_up()
            store = home.open("store", FILE_SIZE, read_only=True)
        records = log_of(store)
        assert len(records) == len(messages)
        assert read_log(store, max_bytes=max_bytes) == [expected_row(record) for record in records]
        queued = [record for record in records if record.sys_flag & 0xC in (0, 8)]
        for topic, queue_id in {(record.topic, record.queue_id) for record in queued}:
            expected = [expected_row(r) for r in queued if (r.topic, r.queue_id) == (topic, queue_id)]
            assert read_queue(store, topic, queue_id, max_messages=max_messages, max_bytes=max_bytes) == expected
