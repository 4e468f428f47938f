"""Arrow record batches that the store does not take: which row, why, and that nothing of them is stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from support.arrow import batch_of, numbered
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.store import Message, PutStatus

pytestmark = pytest.mark.usefixtures("kernels_name")


@pytest.mark.parametrize(
    ("bad", "same_as"),
    [
        ({"topic": "no/topic"}, Message("no/topic", b"")),
        ({"topic": ""}, Message("", b"")),
        ({"topic": "é" * 64}, Message("é" * 64, b"")),
        ({"tags": "a\x02"}, Message("T", b"", tags="a\x02")),
        ({"keys": ["ok", "a\x02"]}, Message("T", b"", keys=("ok", "a\x02"))),
        ({"properties": [("a\x01", "b")]}, Message("T", b"", properties={"a\x01": "b"})),
        ({"properties": [("a", "\x02")]}, Message("T", b"", properties={"a": "\x02"})),
        ({"properties": [("", "b")]}, Message("T", b"", properties={"": "b"})),
        ({"properties": [("DELAY", "soon")]}, Message("T", b"", properties={"DELAY": "soon"})),
        ({"properties": [("a", "я" * 16_383)]}, Message("T", b"", properties={"a": "я" * 16_383})),
        ({"queue_id": -1}, Message("T", b"", queue_id=-1)),
        ({"queue_id": 2**31}, Message("T", b"", queue_id=2**31)),
        ({"flag": 2**31}, Message("T", b"", flag=2**31)),
        ({"born_timestamp": -1}, Message("T", b"", born_timestamp=-1)),
        ({"delay_level": 10**10}, Message("T", b"", delay_level=10**10)),
        ({"body": bytes(1001)}, Message("T", bytes(1001))),
    ],
)
def test_a_row_that_a_put_would_refuse_has_the_batch_refused_for_the_same_reason(
    bad: dict[str, Any], same_as: Message, home: StoreHome
) -> None:
    store = home.open(max_message_size=1000)
    answer = store.put(same_as)
    columns: dict[str, Any] = {**{name: [None] * 4 for name in bad}, "topic": ["T"] * 4, "body": [b""] * 4}
    for name, value in bad.items():
        columns[name][2] = value
    result = store.put_arrow(batch_of(**columns))
    assert (result.status, result.reason) == (answer.status, f"row 2: {answer.reason}")
    assert (result.count, len(result.physical_offsets), store.log.max_offset) == (0, 0, 0)
    assert store.put_arrow(numbered(1)).queue_offsets.tolist() == [0]


def test_the_last_row_is_checked_before_the_first_is_written(home: StoreHome) -> None:
    store = home.open()
    result = store.put_arrow(batch_of(topic=["T"] * 100, body=[b"x"] * 100, tags=["t"] * 99 + ["\x02"]))
    assert result.reason.startswith("row 99: ")
    assert store.log.max_offset == 0


@pytest.mark.parametrize("name", ["topic", "body"])
def test_a_null_topic_or_body_is_refused(name: str, home: StoreHome) -> None:
    store = home.open()
    columns: dict[str, Any] = {"topic": ["T", "T"], "body": [b"", b""]}
    columns[name][1] = None
    result = store.put_arrow(batch_of(**columns))
    assert (result.status, result.reason) == (PutStatus.MESSAGE_ILLEGAL, f"row 1: the {name} is null")


def test_a_null_in_a_dictionary_of_topics_is_refused(home: StoreHome) -> None:
    store = home.open()
    for topics in (
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["T", None])),
        pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["T"])),
    ):
        assert store.put_arrow(batch_of(topic=topics, body=[b"", b""])).reason == "row 1: the topic is null"


def test_a_dictionary_may_name_a_topic_twice_and_hold_unused_ones(home: StoreHome) -> None:
    store = home.open()
    topics = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(["T", "T", "not/legal"]))
    assert store.put_arrow(batch_of(topic=topics, body=[b"1", b"2", b"3"])).queue_offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"topic": ["T"]}, "the batch has no column 'body'"),
        ({"body": [b""]}, "the batch has no column 'topic'"),
        (
            {"topic": ["T"], "body": [b""], "bodi": [b""]},
            "the column 'bodi' is unknown; a put takes topic, body, ",
        ),
        ({"topic": [1], "body": [b""]}, "the column 'topic' cannot have the type int64"),
        ({"topic": ["T"], "body": [1.5]}, "the column 'body' cannot have the type double"),
        ({"topic": ["T"], "body": [b""], "keys": [[1]]}, "the column 'keys' cannot have the type list<"),
        (
            {"topic": ["T"], "body": [b""], "queue_id": ["1"]},
            "the column 'queue_id' cannot have the type string",
        ),
        (
            {"topic": ["T"], "body": [b""], "queue_id": pa.array([2**64 - 1], pa.uint64())},
            "the column 'queue_id' cannot be read: ",
        ),
    ],
)
def test_columns_that_are_no_messages_are_refused(columns: dict[str, Any], reason: str, home: StoreHome) -> None:
    result = home.open().put_arrow(batch_of(**columns))
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert result.reason.startswith(reason)
    assert len(result.reason.splitlines()) == 1


def test_text_that_is_not_utf8_is_refused_with_its_row(home: StoreHome) -> None:
    tags = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")]
    )
    result = home.open().put_arrow(batch_of(topic=["T"] * 3, body=[b""] * 3, tags=tags))
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert result.reason.startswith("row 1: the column 'tags' cannot be read: ")


def test_a_column_whose_offsets_are_wrong_is_refused(home: StoreHome) -> None:
    store = home.open()
    for offsets in (b"\0\0\0\0\x7f\0\0\0\2\0\0\0", b"\0\0\0\0\2\0\0\0\1\0\0\0"):
        for kind, name in ((pa.string(), "tags"), (pa.binary(), "body"), (pa.string(), "keys"), (pa.string(), "topic")):
            column = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"ab")])
            result = store.put_arrow(batch_of(**{"topic": ["T"] * 2, "body": [b""] * 2} | {name: column}))
            assert result.status is PutStatus.MESSAGE_ILLEGAL, name
    assert store.log.max_offset == 0


def test_something_else_than_a_record_batch_is_an_error(home: StoreHome) -> None:
    with pytest.raises(TypeError, match=r"pyarrow\.RecordBatch is needed, not dict"):
        home.open().put_arrow({"topic": ["T"], "body": [b""]})  # type: ignore[arg-type]


def test_a_read_only_store_takes_nothing_and_a_closed_one_says_so(home: StoreHome) -> None:
    store = home.open()
    store.close()
    result = store.put_arrow(numbered(1))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "closed" in result.reason
    with pytest.raises(StoreFailed):
        home.open(read_only=True).put_arrow(numbered(1))
