"""Heartbeats as three real clients send them."""

from __future__ import annotations

import json

import pytest

from penstock.errors import BadRequest
from penstock.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
)
from penstock.protocol.subscription import subscribe

ALI_ONS = """{"clientID":"192.0.2.2@4711","producerDataSet":[{"groupName":"PID_x"}],
 "consumerDataSet":[{"groupName":"CID_x","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",
  "consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","unitMode":false,
  "subscriptionDataSet":[{"topic":"T","subString":"A || B","tagsSet":["A","B"],"codeSet":[65,66],
    "subVersion":1794765215418,"classFilterMode":false,"expressionType":"TAG"}]}]}"""
CPP = """{"clientID":"99-127.0.0.1@DEFAULT","consumerDataSet":[{"groupName":"CID_x","consumeType":1,"messageModel":1,
 "consumeFromWhere":0,"subscriptionDataSet":[{"topic":"T","subString":"*","subVersion":"1794765285567"}]}]}
"""


def test_ali_ons() -> None:
    heartbeat = HeartbeatData.from_bytes(ALI_ONS.encode())
    assert heartbeat.client_id == "192.0.2.2@4711"
    assert heartbeat.producer_data_set == [ProducerData(group_name="PID_x")]
    (consumer,) = heartbeat.consumer_data_set
    assert (consumer.group_name, consumer.unit_mode) == ("CID_x", False)
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    (subscription,) = consumer.subscription_data_set
    assert (subscription.topic, subscription.sub_string, subscription.sub_version) == ("T", "A || B", 1794765215418)
    assert (subscription.tags_set, subscription.code_set) == (["A", "B"], [65, 66])


def test_the_cpp_client_with_ordinals_numbers_as_text_and_nothing_more_than_needed() -> None:
    heartbeat = HeartbeatData.from_bytes(CPP.encode())
    assert heartbeat.producer_data_set == []
    (consumer,) = heartbeat.consumer_data_set
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.expression_type) == (1794765285567, "TAG")
    assert subscription.wants_everything


@pytest.mark.parametrize(
    ("field", "ordinal", "name"),
    [
        ("consumeType", 0, "CONSUME_ACTIVELY"),
        ("consumeType", "2", "CONSUME_POP"),
        ("messageModel", 0, "BROADCASTING"),
        ("consumeFromWhere", 4, "CONSUME_FROM_FIRST_OFFSET"),
        ("consumeFromWhere", "5", "CONSUME_FROM_TIMESTAMP"),
    ],
)
def test_an_ordinal_is_a_name(field: str, ordinal: object, name: str) -> None:
    def heartbeat(value: object) -> HeartbeatData:
        consumer = {"groupName": "g", field: value}
        return HeartbeatData.from_bytes(json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode())

    assert heartbeat(ordinal) == heartbeat(name)
    assert json.loads(heartbeat(ordinal).to_bytes())["consumerDataSet"][0][field] == name


@pytest.mark.parametrize("empty", ["{}", '{"producerDataSet":null,"consumerDataSet":null}', '{"consumerDataSet":[]}'])
def test_sets_may_be_missing(empty: str) -> None:
    heartbeat = HeartbeatData.from_bytes(json.dumps({"clientID": "c", **json.loads(empty)}).encode())
    assert (heartbeat.producer_data_set, heartbeat.consumer_data_set) == ([], [])


def test_what_a_consumer_leaves_out_has_defaults() -> None:
    heartbeat = HeartbeatData.from_bytes(b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":null}]}')
    assert heartbeat.consumer_data_set == [ConsumerData(group_name="g")]


def test_the_second_version_of_the_heartbeat() -> None:
    heartbeat = HeartbeatData.from_bytes(b'{"clientID":"c","heartbeatFingerprint":-5,"withoutSub":true}')
    assert (heartbeat.heartbeat_fingerprint, heartbeat.without_sub) == (-5, True)


def test_what_we_send_is_what_java_sends() -> None:
    consumer = ConsumerData(group_name="CID_x", subscription_data_set=[subscribe("T", "A", 1794765215418)])
    sent = json.loads(HeartbeatData(client_id="c", consumer_data_set=[consumer]).to_bytes())
    assert sent == {
        "clientID": "c",
        "producerDataSet": [],
        "consumerDataSet": [
            {
                "groupName": "CID_x",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "topic": "T",
                        "subString": "A",
                        "tagsSet": ["A"],
                        "codeSet": [65],
                        "subVersion": 1794765215418,
                        "expressionType": "TAG",
                        "classFilterMode": False,
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize("ordinal", [6, -1, 1.5, True, "99", [], {}])
def test_an_ordinal_beyond_the_list_is_refused(ordinal: object) -> None:
    consumer = {"groupName": "g", "consumeFromWhere": ordinal}
    with pytest.raises(BadRequest, match="HeartbeatData"):
        HeartbeatData.from_bytes(json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode())
