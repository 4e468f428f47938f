"""Configuration tables that brokers, tools and name servers exchange."""

from __future__ import annotations

import json
import zlib

import pytest

from penstock.errors import BadRequest
from penstock.format.config_tables import (
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
)
from penstock.protocol.bodies.admin import decode_config, encode_config
from penstock.protocol.bodies.routes import RegisterBrokerBody

TOPICS = (
    '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1794765215418},"topicConfigTable":{"T":{"order":false,'
    '"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}'
)
GROUP = (
    '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"CID_x",'
    '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}'
)
JAVA_COMPRESSED = bytes.fromhex(  # what 4.9.8 compresses, with two topics and a filter server
    "000000277b22636f756e746572223a302c2274696d657374616d70223a313739343738333435303135327d"
    "00000002 00000012 542034203420362053494e474c455f544147 00000012 4f2031203220372053494e474c455f544147"
    "00000007 5b22783a31225d"
)


def test_topics_are_read_and_written_with_what_5_x_adds() -> None:
    topics = decode_config(TopicConfigs, TOPICS.encode())
    assert topics.topics["T"] == TopicConfig(name="T", read_queue_nums=4, write_queue_nums=4)
    assert topics.version.counter == 3
    assert encode_config(topics).decode() == TOPICS


def test_a_group_has_rocketmqs_defaults() -> None:
    assert decode_config(SubscriptionGroup, b'{"groupName":"CID_x"}') == SubscriptionGroup(name="CID_x")
    assert encode_config(SubscriptionGroup(name="CID_x")).decode() == GROUP
    wrapper = encode_config(SubscriptionGroups(groups={"CID_x": SubscriptionGroup(name="CID_x")}))
    assert json.loads(wrapper)["subscriptionGroupTable"] == {"CID_x": json.loads(GROUP)}


def test_offsets_have_their_numbers_in_quotes_and_are_read_without() -> None:
    assert encode_config(ConsumerOffsets(offsets={("T", "g"): {0: 5}})) == b'{"offsetTable":{"T@g":{"0":5}}}'
    assert decode_config(ConsumerOffsets, b'{"offsetTable":{"T@g":{0:5}}}').offsets == {("T", "g"): {0: 5}}
    assert encode_config(DelayOffsets(offsets={3: 7})) == b'{"offsetTable":{"3":7}}'


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"groupName":5}', b'{"groupName":"g","retryQueueNums":2147483648}', b"{5:5}", b'{"groupName":"g"'],
)
def test_what_is_no_group_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="SubscriptionGroup"):
        decode_config(SubscriptionGroup, body)


def registration() -> RegisterBrokerBody:
    topics = {
        "T": TopicConfig(name="T", read_queue_nums=4, write_queue_nums=4),
        "O": TopicConfig(name="O", read_queue_nums=1, write_queue_nums=2, perm=7),
    }
    version = DataVersion(counter=0, timestamp=1794783450152)
    return RegisterBrokerBody(topics=TopicConfigs(topics=topics, version=version), filter_servers=["x:1"])


def test_a_registration_is_json() -> None:
    body = registration().to_bytes()
    assert list(json.loads(body)) == ["filterServerList", "topicConfigSerializeWrapper"]
    assert RegisterBrokerBody.from_bytes(body) == registration()


def test_a_compressed_registration_is_what_java_compresses() -> None:
    body = registration().to_bytes(compressed=True)
    assert zlib.decompress(body) == JAVA_COMPRESSED
    assert RegisterBrokerBody.from_bytes(body, compressed=True) == registration()


def test_a_registration_without_topics() -> None:
    assert RegisterBrokerBody.from_bytes(b"{}") == RegisterBrokerBody()
    empty = RegisterBrokerBody().to_bytes(compressed=True)
    assert RegisterBrokerBody.from_bytes(empty, compressed=True) == RegisterBrokerBody()


@pytest.mark.parametrize("cut", range(0, len(JAVA_COMPRESSED), 7))
def test_a_compressed_registration_that_is_cut_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest):
        RegisterBrokerBody.from_bytes(zlib.compress(JAVA_COMPRESSED[:cut]), compressed=True)


@pytest.mark.parametrize(
    "inner",
    [
        bytes.fromhex("ffffffff"),
        bytes.fromhex("00000002 7b7d 7fffffff"),
        bytes.fromhex("00000002 7b7d 00000001 00000003 542034 00000000"),
        bytes.fromhex("00000002 7b7d 00000001 00000007 5420782034206e 00000000"),
        bytes.fromhex("00000002 7b7d 00000000 00000001 7b"),
    ],
)
def test_lengths_and_lines_that_lie_are_refused(inner: bytes) -> None:
    with pytest.raises(BadRequest):
        RegisterBrokerBody.from_bytes(zlib.compress(inner), compressed=True)


@pytest.mark.parametrize("body", [b"[]", b'{"topicConfigSerializeWrapper":[]}', b'{"filterServerList":[5]}', b"x"])
def test_a_registration_of_another_shape_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="RegisterBrokerBody"):
        RegisterBrokerBody.from_bytes(body)


def test_a_compressed_registration_is_inflated_within_a_limit() -> None:
    with pytest.raises(BadRequest, match="inflates to more than"):
        RegisterBrokerBody.from_bytes(zlib.compress(bytes(65 << 20), 9), compressed=True)
