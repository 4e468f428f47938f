"""Which DataFrames may be written, and which rows: checked without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.arrow import MAP
from support.pipeline import columns_of
from support.stores import is_one_sentence

from penstock.errors import BadMessage, BadSettings, BadStore, PenstockError, StoreInUse
from penstock.pipeline.options import Options
from penstock.pipeline.sink_rows import RowOrigin, WrittenRows
from penstock.pipeline.sink_writers import make_stream_writer, make_writer, topics_read
from penstock.pipeline.store_sink import RowCheck, StagedRows, StoreTarget
from penstock.store import Message, MessageStore, Settings
from penstock.store.sink.commit import TopicQueues
from penstock.store.sink.journal import Identity, WriterKind

BODY = columns_of("body binary")


def options(path: Path | str = "", **given: str) -> Options:
    return Options.read({**({"path": str(path)} if path else {}), **given})


@pytest.mark.parametrize(
    ("columns", "topic", "sentence"),
    [
        ("body binary, extra int", "t", "the column 'extra' cannot be written; there are body, value, topic"),
        ("body int", "t", "the column 'body' is int, and must be binary or string: cast it"),
        ("value binary, keys array<int>", "t", "the column 'keys' is array<int>, and must be string or array<string>"),
        (
            "value binary, properties map<string,int>",
            "t",
            "is map<string,int>, and must be map<string,string>: cast it",
        ),
        ("body binary, queue_id string", "t", "the column 'queue_id' is string, and must be int: cast it"),
        (
            "topic string",
            "",
            "there is neither a column 'body' nor a column 'value'; select or rename one",
        ),
        ("body binary, value binary", "t", "the column 'value' means the same as 'body'"),
        ("value binary, key binary, keys string", "t", "the column 'keys' means the same as 'key'"),
        ("body binary, body binary", "t", "the column 'body' is there twice; only one of them can be written"),
        (
            "body binary, key binary",
            "t",
            "the column 'key' belongs to 'value', as in Kafka; with 'body' use 'keys'",
        ),
        ("body binary", "", "no topic is given; set the option topic, or add a column 'topic'"),
        ("body binary", "a b", "option topic: the topic 'a b' holds characters other than letters"),
        ("body binary", "SCHEDULE_TOPIC_XXXX", "is internal to the broker; write to another topic"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(columns: str, topic: str, sentence: str) -> None:
    with pytest.raises(BadSettings) as error:
        WrittenRows.of(columns_of(columns), topic)
    assert sentence in str(error.value)
    assert is_one_sentence(str(error.value))


@pytest.mark.parametrize(
    "columns",
    [
        "body binary, topic string",
        "value string, key string, topic varchar(20)",
        "body string, topic string, tags string, keys string, properties map<string,string>, queue_id bigint",
        "topic string, keys array<string>, value binary, queue_id tinyint, delay_level smallint",
    ],
)
def test_a_schema_that_can_be_written_is_taken(columns: str) -> None:
    schema = columns_of(columns)
    assert set(WrittenRows.of(schema, "").fields) == set(schema.names)


def messages(columns: str, all_to: str = "", default: str = "", **values: Any) -> list[dict[str, Any]]:
    rows = WrittenRows.of(columns_of(columns), all_to, default)
    found: list[dict[str, Any]] = rows.messages(pa.RecordBatch.from_pydict(values), RowOrigin(3, 100)).to_pylist()
    return found


def test_rows_become_messages() -> None:
    assert messages("value binary, key binary", "t", key=[b"k", None], value=[b"1", b"2"]) == [
        {"topic": "t", "body": b"1", "keys": "k"},
        {"topic": "t", "body": b"2", "keys": None},
    ]
    assert messages("body string, topic string", default="t", topic=[None, "u"], body=["1", "2"]) == [
        {"topic": "t", "body": "1"},
        {"topic": "u", "body": "2"},
    ]


def test_the_option_topic_takes_precedence_over_the_column_as_in_kafka() -> None:
    assert messages("body string, topic string", "t", "d", topic=[None, "u"], body=["1", "2"]) == [
        {"topic": "t", "body": "1"},
        {"topic": "t", "body": "2"},
    ]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_kafkas_headers_and_partition_become_properties_and_queue() -> None:
    headers = pa.array(
        [
            [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}, {"key": "a", "value": b"3"}],
            None,
            [{"key": "none", "value": None}],
        ],
        HEADERS,
    )
    columns = "value binary, partition int, headers array<struct<key:string,value:binary>>"
    for part in (slice(0, 3), slice(1, 3)):
        found = messages(columns, "t", value=[b"x"] * 3, partition=[4, None, 0], headers=headers)
        assert [row["queue_id"] for row in found] == [4, None, 0]
        assert [dict(row["properties"]) for row in found][part] == [{"a": "3", "b": "2"}, {}, {}][part]
    bad = pa.array([[], [{"key": "a", "value": b"\xff"}]], HEADERS)
    with pytest.raises(BadMessage, match="row 101 of partition 3: the value of a header is not UTF-8 text"):
        messages(columns, "t", value=[b"x"] * 2, partition=[0, 0], headers=bad)
    with pytest.raises(BadSettings, match="the column 'partition' means the same as 'queue_id'"):
        WrittenRows.of(columns_of("body binary, queue_id int, partition int"), "t")


def checkpoint_of(folder: Path, *offsets: str) -> str:
    (folder / "offsets").mkdir(parents=True)
    for number, line in enumerate(offsets):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}\n-')
    return str(folder)


def test_a_stream_may_not_write_to_a_topic_that_it_reads(tmp_path: Path) -> None:
    store = tmp_path / "store"
    line = f'{{"@from": "{store}", "orders": {{"store": {{"0": 5}}}}}}'
    checkpoint = checkpoint_of(tmp_path / "checkpoint", '{"@from": "/other"}', line)
    with pytest.raises(BadSettings, match="option topic: topic 'orders' is one that this query reads"):
        make_stream_writer(options(store, topic="orders"), BODY, overwrite=False, checkpoint=f"file://{checkpoint}")
    with pytest.raises(BadSettings, match="option topic: topic 'orders' is one that this query reads"):
        make_stream_writer(options(store.as_uri(), topic="orders"), BODY, overwrite=False, checkpoint=checkpoint)
    with pytest.raises(BadSettings, match="option defaultTopic: topic 'orders' is one that this query reads"):
        make_stream_writer(options(store, defaultTopic="orders"), BODY, overwrite=False, checkpoint=checkpoint)
    make_stream_writer(options(store, topic="totals"), BODY, overwrite=False, checkpoint=checkpoint)
    make_stream_writer(options(tmp_path / "copy", topic="orders"), BODY, overwrite=False, checkpoint=checkpoint)
    make_stream_writer(options(store, topic="orders"), BODY, overwrite=False, checkpoint=str(tmp_path / "new"))
    read = topics_read(Path(checkpoint), options(store))
    rows = WrittenRows.of(columns_of("body binary, topic string"), "", "", read)
    batch = pa.RecordBatch.from_pydict({"body": [b"", b""], "topic": ["totals", "orders"]})
    with pytest.raises(BadMessage, match="row 1 of partition 0: topic 'orders' is one that this query reads"):
        rows.messages(batch, RowOrigin(0, 0))
    cluster = '{"@from": "h1:9876;h2:9876", "orders": {"broker-a": {"0": 5}}}'
    read = topics_read(Path(checkpoint_of(tmp_path / "other", cluster)), options(namesrv="h2:9876"))
    assert read == {"orders"}


@pytest.mark.parametrize(
    ("columns", "values", "sentence"),
    [
        ("body string, topic string", {"topic": ["t", None], "body": ["", ""]}, "row 101 of partition 3: the topic is"),
        (
            "body string, topic string",
            {"topic": ["t"], "body": pa.array([None], pa.string())},
            "row 100 of partition 3",
        ),
        (
            "value binary, key binary",
            {"key": [b"k", b"\xff"], "value": [b"", b""]},
            "row 101 of partition 3: the key is",
        ),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: str, values: dict[str, Any], sentence: str) -> None:
    default = "" if "topic" in columns else "t"
    with pytest.raises(BadMessage) as error:
        messages(columns, default, **values)
    assert str(error.value).startswith(sentence)


# -- what a store takes ----------------------------------------------------------------------------------------------


def check(partition: int = 0, **known: int) -> RowCheck:
    return RowCheck(Settings.dev(), TopicQueues(known, 8), partition)


def batch(**columns: Any) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    return pa.RecordBatch.from_pydict({"topic": ["t"] * count, "body": [b"x"] * count, **columns})


def test_rows_without_a_queue_go_to_all_queues_of_their_topic_in_turn() -> None:
    checked = check(1, t=3)
    first = checked.checked(batch(body=[b""] * 4))
    second = checked.checked(batch(topic=["t", "new", "t"], body=[b""] * 3))
    assert first.column("queue_id").to_pylist() == [1, 2, 0, 1]
    assert second.column("queue_id").to_pylist() == [2, 6, 1]
    assert checked.used == {"t": 2, "new": 6}
    assert checked.count == 7


def test_a_queue_that_is_given_counts_and_null_is_not_given() -> None:
    checked = check(t=4)
    found = checked.checked(batch(queue_id=pa.array([3, None, 0], pa.int32())))
    assert found.column("queue_id").to_pylist() == [3, 1, 0]
    assert checked.used == {"t": 3}


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": ["t", "a b"]}, "row 1 of partition 5: the topic 'a b' holds characters"),
        (
            {"topic": ["t", "RMQ_SYS_TRANS_HALF_TOPIC"]},
            "row 1 of partition 5: topic 'RMQ_SYS_TRANS_HALF_TOPIC' is internal",
        ),
        ({"topic": ["t", "closed"]}, "row 1 of partition 5: topic 'closed' is not writable"),
        ({"queue_id": [3, 4]}, "row 1 of partition 5: topic 't' has 4 queues; queue 4 does not exist"),
        ({"queue_id": [-1]}, "row 0 of partition 5: topic 't' has 4 queues; queue -1 does not exist"),
        ({"topic": ["new"], "queue_id": [8]}, "topic 'new' has 8 queues (defaultTopicQueueNums)"),
        ({"delay_level": [18, 19]}, "row 1 of partition 5: there is no delay level 19; there are 1 to 18"),
        ({"delay_level": [None, -1]}, "row 1 of partition 5: there is no delay level -1"),
        ({"body": [b"", b"x" * (600 << 10)]}, "row 1 of partition 5: the body has 614400 bytes"),
        ({"properties": pa.array([[], [("a\x01b", "c")]], MAP)}, "row 1 of partition 5: the property name 'a\\x01b'"),
        ({"properties": pa.array([[("a", "c" * 40_000)]], MAP)}, "row 0 of partition 5: the properties take 40"),
    ],
)
def test_a_row_that_may_not_be_stored_is_named(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadMessage) as error:
        check(5, t=4, closed=0).checked(batch(**columns))
    assert sentence in str(error.value)
    assert is_one_sentence(str(error.value))


# -- where rows may be written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "/a/store,/b/store", "topic": "t"}, "path names 2 stores; name one, rows are written to one"),
        (
            {"path": "/no/such/*", "topic": "t"},
            "path '/no/such/*' is a pattern; name one store, rows are written to one",
        ),
        ({"path": "s3://bucket/store", "topic": "t"}, "path 's3://bucket/store' is not in a local file system"),
        ({"path": "file://host/store", "topic": "t"}, "path 'file://host/store' is not in a local file system"),
        ({"namesrv": "nowhere", "topic": "t"}, "nowhere"),
        ({"namesrv": "127.0.0.1:1", "topic": "t", "accessKey": "a"}, "accessKey is given without secretKey"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadSettings) as error:
        make_writer(options(**given), BODY, overwrite=False)
    assert sentence in str(error.value)
    assert is_one_sentence(str(error.value))


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_store_may_be_given_as_a_uri_as_for_reading(tmp_path: Path, scheme: str) -> None:
    assert StoreTarget.of(options(f"{scheme}{tmp_path}/store", topic="t")).root == tmp_path / "store"


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(BadStore, match="something other than a store"):
        make_writer(options(tmp_path, topic="t"), BODY, overwrite=False)
    with pytest.raises(BadStore, match="a store is a folder, and this is a file"):
        make_writer(options(tmp_path / "_SUCCESS", topic="t"), BODY, overwrite=False)


def test_overwriting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="instead of overwrite"):
        make_writer(options(tmp_path, topic="t"), BODY, overwrite=True)
    with pytest.raises(BadSettings, match=r"complete mode .* foreachBatch and a batch write with writeId"):
        make_stream_writer(options(tmp_path, topic="t"), BODY, overwrite=True)


def test_a_stream_has_no_write_id(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="writeId is for batch writes"):
        make_stream_writer(options(tmp_path, topic="t", writeId="w"), BODY, overwrite=False)


def test_a_store_in_use_is_refused_before_any_row_is_made(tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path / "store", Settings.dev()),
        pytest.raises(StoreInUse, match="with namesrv instead of path"),
    ):
        make_writer(options(tmp_path / "store", topic="t"), BODY, overwrite=False)


# -- staging and committing ------------------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> StoreTarget:
    MessageStore.open(tmp_path / "store", Settings.dev()).close()
    with MessageStore.open(tmp_path / "store", Settings.dev()) as store:
        assert store.put(Message("before", b"")).ok
    return StoreTarget.of(options(tmp_path / "store"))


ROWS = WrittenRows.of(columns_of("body string, keys array<string>"), "t")


def stage(target: StoreTarget, identity: Identity, partition: int, *bodies: str) -> StagedRows:
    batches = [pa.RecordBatch.from_pydict({"body": [body], "keys": [[body, "all"]]}) for body in bodies]
    return target.stage(identity, "run", ROWS, partition, batches)


def stored(target: StoreTarget) -> list[bytes]:
    with MessageStore.open(target.root, target.settings, read_only=True) as store:
        assert len(store.query("t", "all")) == sum(store.max_offset("t", queue) for queue in range(8))
        found = [record for queue in range(8) for record in store.get("t", queue, 0, 100).messages]
        return [record.body for record in sorted(found, key=lambda record: record.physical_offset)]


def test_what_tasks_stage_is_committed_in_the_order_of_the_partitions(target: StoreTarget) -> None:
    identity = Identity(WriterKind.QUERY, "q", 7)
    tasks = [stage(target, identity, 0, "a", "b"), stage(target, identity, 1), stage(target, identity, 2, "c")]
    stage(target, identity, 2, "a task that failed")
    outcome = target.commit(tasks)
    assert outcome is not None
    assert not outcome.already_stored
    assert stored(target) == [b"a", b"b", b"c"]
    assert list(target.layout.sink_staged.iterdir()) == []
    again = target.commit([stage(target, identity, 0, "other")])
    assert again is not None
    assert again.already_stored
    assert stored(target) == [b"a", b"b", b"c"]


def test_large_arrow_types_are_taken_as_well(target: StoreTarget) -> None:
    rows = WrittenRows.of(columns_of("value string, key binary, topic string, tags string"), "t")
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array(["a", "b"], pa.large_string()),
            "key": pa.array([b"all", b"all"], pa.large_binary()),
            "topic": pa.array(["t", None], pa.large_string()),
            "tags": pa.array([None, "paid"], pa.large_string()),
        }
    )
    target.commit([target.stage(Identity(WriterKind.ONCE, "1"), "run", rows, 0, [batch])])
    assert stored(target) == [b"a", b"b"]


def test_a_write_without_a_name_leaves_no_mark(target: StoreTarget) -> None:
    for name in ("1", "2"):
        target.commit([stage(target, Identity(WriterKind.ONCE, name), 0, "a")])
    assert stored(target) == [b"a", b"a"]
    assert list(target.layout.sink_marks.iterdir()) == []


def test_large_tasks_stage_several_parts(target: StoreTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.store_sink._PART_BYTES", 100)
    staged = stage(target, Identity(WriterKind.ONCE, "1"), 0, *"abcdefghij")
    assert 2 < len(staged.parts) < 10
    target.commit([staged])
    assert stored(target) == [bytes([each]) for each in b"abcdefghij"]


def test_a_row_that_is_refused_leaves_the_store_alone(target: StoreTarget) -> None:
    with pytest.raises(PenstockError, match="row 1 of partition 0: the properties take"):
        stage(target, Identity(WriterKind.ONCE, "1"), 0, "a", "x" * 40_000)
    with MessageStore.open(target.root, target.settings, read_only=True) as store:
        assert store.max_offset("t", 0) <= 0
