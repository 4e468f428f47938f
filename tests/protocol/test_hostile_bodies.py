"""Malformed bodies raise BadRequest with one sentence, and nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.format.config_tables import DataVersion, SubscriptionGroup, TopicConfigs
from penstock.protocol.bodies.admin import decode_config
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.clients import ConsumerConnection, ConsumerRunningInfo, HeartbeatData
from penstock.protocol.bodies.queues import LockBatchRequestBody
from penstock.protocol.bodies.routes import RegisterBrokerBody, TopicRouteData
from penstock.protocol.bodies.stats import ConsumeStats, ConsumeStatsList, GetConsumerStatusBody, ResetOffsetBody

KINDS: list[type[Body]] = [
    HeartbeatData,
    LockBatchRequestBody,
    TopicRouteData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

DEEP = 100_000
HOSTILE = [
    b"",
    b" ",
    b"null",
    b"5",
    b'"text"',
    b"[]",
    b"[" * DEEP,
    b"[" * 900 + b"]" * 900,
    b'{"offsetTable":' * DEEP,
    b'{"consumerDataSet":' + b"[" * 900 + b"]" * 900 + b"}",
    b"{" * DEEP,
    b'{"clientID":5}',
    b'{"clientID":"c","consumerDataSet":5}',
    b'{"clientID":"c","consumerDataSet":[5]}',
    b'{"clientID":"c","consumerDataSet":[{}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":9}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"EAT"}]}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":' + b"9" * 5000 + b"}]}",
    b'{"clientID":"c","consumerDataSet":{"groupName":"g"}}',
    b'{"clientID":"c","producerDataSet":"g"}',
    b'{"clientID":"\xff"}',
    b'{"clientID":NaN}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"brokerName":"b","queueId":2147483648,"topic":"T"}]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"brokerName":"b","queueId":1e400,"topic":"T"}]}',
    b'{"consumerGroup":"g","clientId":"c","mqSet":[{"queueId":0}]}',
    b'{"offsetTable":{{"queueId":0}:5},"messageQueueTable":5,"clientID":5,"mqTable":5,"consumeStatsList":5,"brokerDatas":5}',
    b'{"offsetTable":{"T":5},"messageQueueTable":5,"clientID":5,"mqTable":5,"consumeStatsList":5,"brokerDatas":5}',
    b'{"consumeTps":Infinity}',
]


def refusal_of(kind: type[Body], data: bytes) -> str:
    try:
        kind.from_bytes(data)
    except BadRequest as refused:
        return str(refused)
    return ""


@each_kind
@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: data[:40].decode("latin-1"))
def test_a_hostile_body_is_refused_in_one_sentence_or_reads_as_empty(kind: type[Body], data: bytes) -> None:
    sentence = refusal_of(kind, data)  # some bodies have no field that must be there
    assert sentence == "" or (kind.__name__ in sentence and len(sentence) < 400)


def test_each_heartbeat_among_them_is_refused() -> None:
    for data in HOSTILE[:25]:
        with pytest.raises(BadRequest):
            HeartbeatData.from_bytes(data)


def test_the_sentence_says_what_was_wrong() -> None:
    with pytest.raises(BadRequest, match="the body is missing; a HeartbeatData is required"):
        HeartbeatData.from_bytes(b"")
    with pytest.raises(BadRequest, match=r"the body is not a valid HeartbeatData: .*missing required field `clientID`"):
        HeartbeatData.from_bytes(b"{}")


def test_half_a_character_becomes_a_question_mark_and_can_be_passed_on() -> None:
    body = b'{"consumerGroup":"g\\ud83d","clientId":"c","mqSet":[{"brokerName":"b","queueId":0,"topic":"\\udc00T"}]}'
    lock = LockBatchRequestBody.from_bytes(body)
    assert (lock.consumer_group, lock.mq_set[0].topic) == ("g?", "?T")
    assert LockBatchRequestBody.from_bytes(lock.to_bytes()) == lock
    reset = ResetOffsetBody.from_bytes(b'{"offsetTable":{{"brokerName":"\\ud83d","queueId":0,"topic":"T"}:5}}')
    assert b'"brokerName":"?"' in reset.to_bytes()


def test_of_duplicate_keys_the_last_counts() -> None:
    assert HeartbeatData.from_bytes(b'{"clientID":"a","clientID":"b"}').client_id == "b"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    [
        *("clientID", "producerDataSet", "consumerDataSet", "groupName", "consumeType", "subscriptionDataSet", "topic"),
        *("subString", "codeSet", "offsetTable", "brokerDatas", "brokerAddrs", "queueDatas", "mqSet", "consumerTable"),
    ]
)


@each_kind
@given(
    st.binary(max_size=60)
    | st.text(alphabet='{}[]:,"0 1-\\ntue', max_size=60).map(str.encode)
    | st.dictionaries(names, json_values, max_size=5).map(lambda value: repr(value).replace("'", '"').encode())
)
def test_any_bytes_are_read_or_refused(kind: type[Body], data: bytes) -> None:
    with suppress(BadRequest):
        kind.from_bytes(data)


@pytest.mark.parametrize("kind", [TopicConfigs, SubscriptionGroup, DataVersion], ids=lambda kind: kind.__name__)
@given(st.binary(max_size=40) | st.dictionaries(names, json_values).map(lambda value: repr(value).encode()))
def test_any_bytes_are_a_table_or_refused(kind: type[TopicConfigs], data: bytes) -> None:
    with suppress(BadRequest):
        decode_config(kind, data)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_a_registration_or_refused(data: bytes, compressed: bool) -> None:
    with suppress(BadRequest):
        RegisterBrokerBody.from_bytes(data, compressed)
