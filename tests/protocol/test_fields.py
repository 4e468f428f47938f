from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.format.constants import Int32, Int64
from penstock.protocol.fields import Fields, read, read_json, write
from penstock.protocol.headers import REPLIES, REQUESTS
from penstock.protocol.headers.groups import UnregisterClient
from penstock.protocol.headers.offsets import UpdateConsumerOffset
from penstock.protocol.headers.pull import QueryMessage
from penstock.protocol.headers.send import SendMessage, SendMessageReply, SendMessageV2

LONG = {
    "producerGroup": "PID_x",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "3",
    "sysFlag": "0",
    "bornTimestamp": "1794765215418",
    "flag": "7",
    "properties": "TAGS\x01A",
    "reconsumeTimes": "2",
    "unitMode": "false",
    "maxReconsumeTimes": "16",
    "batch": "true",
    "brokerName": "broker-a",
}
SHORT = dict(zip("abcdefghijklmn", LONG.values(), strict=True))
HEADERS = sorted({*REQUESTS.values(), *REPLIES.values()}, key=lambda kind: kind.__name__)


def test_a_send_reads_the_same_in_long_names_and_in_letters() -> None:
    long, short = read(SendMessage, LONG), read(SendMessageV2, SHORT)
    assert msgspec.structs.asdict(long) == msgspec.structs.asdict(short)
    assert (short.producer_group, short.topic, short.queue_id, short.flag) == ("PID_x", "T", 3, 7)
    assert (short.batch, short.unit_mode, short.max_reconsume_times) == (True, False, 16)
    assert isinstance(short, SendMessage)
    assert (write(long), write(short)) == (LONG, SHORT)


def test_optional_arguments_may_be_missing() -> None:
    send = read(SendMessageV2, {name: SHORT[name] for name in "abcdefgh"})
    assert (send.properties, send.reconsume_times, send.unit_mode, send.batch) == ("", 0, False, False)
    assert (send.max_reconsume_times, send.broker_name) == (None, None)


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "True"])
def test_true_has_many_spellings(text: str) -> None:
    assert read(SendMessage, {**LONG, "batch": text}).batch is True


@pytest.mark.parametrize("text", ["0", "false", "FALSE", ""])
def test_false_has_many_spellings_and_an_empty_one_is_the_default(text: str) -> None:
    assert read(SendMessage, {**LONG, "batch": text}).batch is False


@pytest.mark.parametrize(("text", "number"), [("-1", -1), ("+7", 7), ("007", 7), (" 5 ", 5), ("-00", 0), ("3.0", 3)])
def test_numbers_are_read_as_generously_as_java_does_and_more(text: str, number: int) -> None:
    assert read(SendMessage, {**LONG, "queueId": text}).queue_id == number


def test_a_negative_commit_offset_is_no_error() -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "-1"}
    assert read(UpdateConsumerOffset, fields).commit_offset == -1


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("queueId", "x", "a whole number of 32 bits"),
        ("queueId", "2147483648", "a whole number of 32 bits"),
        ("queueId", "-2147483649", "a whole number of 32 bits"),
        ("queueId", "1.5", "a whole number of 32 bits"),
        ("queueId", "1e3x", "a whole number of 32 bits"),
        ("queueId", "٣", "a whole number of 32 bits"),
        ("queueId", "NaN", "a whole number of 32 bits"),
        ("queueId", "9" * 5000, "a whole number of 32 bits"),
        ("bornTimestamp", "9223372036854775808", "a whole number of 64 bits"),
        ("maxReconsumeTimes", "many", "a whole number of 32 bits"),
        ("batch", "maybe", "true or false"),
    ],
)
def test_a_wrong_argument_is_named_with_its_code_and_what_was_expected(name: str, text: str, expected: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(SendMessage, {**LONG, name: text}, code=10)
    sentence = str(caught.value)
    assert sentence.startswith(f"SEND_MESSAGE (10) has a wrong field '{name}'; expected {expected}, found ")
    assert len(sentence) < 200


def test_a_missing_argument_is_named_with_its_code() -> None:
    with pytest.raises(BadRequest, match=r"^UNREGISTER_CLIENT \(35\) needs the field 'clientID', which is missing$"):
        read(UnregisterClient, {})


def test_a_letter_is_explained() -> None:
    without_queue = {name: text for name, text in SHORT.items() if name != "e"}
    with pytest.raises(BadRequest, match=r"^SEND_BATCH_MESSAGE \(320\) needs the field 'e' \(queue_id\)"):
        read(SendMessageV2, without_queue, code=320)


def test_a_required_number_may_not_be_empty() -> None:
    with pytest.raises(BadRequest, match="needs the field 'queueId'"):
        read(SendMessage, {**LONG, "queueId": " "})


def test_a_code_that_is_unknown_is_given_as_number() -> None:
    with pytest.raises(BadRequest, match=r"^code 4711 needs"):
        read(UnregisterClient, {}, code=4711)


def test_arguments_of_5_x_and_signatures_are_ignored() -> None:
    more = {"ns": "n", "nsd": "true", "bname": "b", "oway": "false", "lo": "x", "AccessKey": "", "Signature": "s"}
    assert read(SendMessage, {**LONG, **more}) == read(SendMessage, LONG)


def test_json_of_any_type_is_read_in_one_step() -> None:
    mixed = b'{"topic":"T","key":"k","maxNum":32,"beginTimestamp":"0","endTimestamp":17,"_UNIQUE_KEY_QUERY":true}'
    query = read_json(QueryMessage, msgspec.Raw(mixed))
    assert query == QueryMessage(topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=17, unique_key=True)


def test_json_with_nulls_and_numbers_as_text_is_read_too() -> None:
    mixed = b'{"topic":5,"key":"k","maxNum":"+032","beginTimestamp":0,"endTimestamp":1,"_UNIQUE_KEY_QUERY":null}'
    query = read_json(QueryMessage, msgspec.Raw(mixed))
    assert (query.topic, query.max_num, query.unique_key) == ("5", 32, False)


def test_a_wrong_argument_in_json_is_named_too() -> None:
    with pytest.raises(BadRequest, match=r"QUERY_MESSAGE \(12\) has a wrong field 'maxNum'"):
        read_json(QueryMessage, msgspec.Raw(b'{"topic":"T","key":"k","maxNum":[1]}'), 12)


def test_what_is_none_is_not_written() -> None:
    reply = SendMessageReply(msg_id="00", queue_id=3, queue_offset=-1, trace_on=True)
    assert write(reply) == {"msgId": "00", "queueId": "3", "queueOffset": "-1", "TRACE_ON": "true"}


def strategy_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field."""
    plain = {
        Int32: st.integers(-(2**31), 2**31 - 1),
        Int64: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    }
    return plain[kind] if kind in plain else st.none() | next(plain[k] for k in plain if kind == k | None)


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)  # of each of the headers
@given(st.data())
def test_every_header_survives_being_written_and_read(kind: type[Fields], data: st.DataObject) -> None:
    values = {
        field.name: data.draw(strategy_of(field.type), label=field.name) for field in msgspec.structs.fields(kind)
    }
    header = kind(**values)
    ext = write(header)
    assert all(type(text) is str for text in ext.values())
    assert read(kind, ext) == header
    assert read_json(kind, msgspec.Raw(msgspec.json.encode(ext))) == header


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(sorted(LONG) + list("abcdefghij")), st.text(max_size=12)))
def test_any_text_is_read_or_refused(kind: type[Fields], ext: dict[str, str]) -> None:
    with suppress(BadRequest):
        read(kind, ext)
