"""Bodies of the protocol's examples, to the byte where Java's order of fields is known."""

from __future__ import annotations

import json

import pytest

from penstock.errors import BadRequest
from penstock.protocol.bodies.admin import ConsumerList, GroupList, KVTable, TopicList
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.clients import (
    CheckClientRequestBody,
    ClientConnection,
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeType,
    MessageModel,
    ProducerConnection,
    ProducerTableInfo,
)
from penstock.protocol.bodies.queues import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    QueryConsumeQueueResponseBody,
    QuerySubscriptionResponseBody,
)
from penstock.protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from penstock.protocol.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)

QUEUE = MessageQueue(broker_name="broker-a", queue_id=0, topic="T")
KEY = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'

STRICT: list[tuple[type[Body], str]] = [
    (
        TopicRouteData,
        (
            '{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
            '"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
            '"readQueueNums":4,"writeQueueNums":4,"topicSysFlag":0}]}'
        ),
    ),
    (
        ClusterInfo,
        (
            '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a",'
            '"cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
        ),
    ),
    (TopicList, '{"topicList":["T","TBW102"]}'),
    (TopicList, '{"topicList":["T"],"brokerAddr":"127.0.0.1:10911"}'),
    (GroupList, '{"groupList":["CID_x"]}'),
    (ConsumerList, '{"consumerIdList":["99-127.0.0.1@DEFAULT"]}'),
    (KVTable, '{"table":{"brokerVersionDesc":"V4_9_2"}}'),
    (LockBatchRequestBody, f'{{"consumerGroup":"CID_x","clientId":"99-127.0.0.1@DEFAULT","mqSet":[{KEY}]}}'),
    (LockBatchResponseBody, f'{{"lockOKMQSet":[{KEY}]}}'),
    (ProducerConnection, '{"connectionSet":[{"clientId":"c","clientAddr":"127.0.0.1:5","language":"GO","version":9}]}'),
    (
        ProducerTableInfo,
        '{"data":{"g":[{"clientId":"c","remoteIP":"1.1.1.1","language":"JAVA","version":3,"lastUpdateTimestamp":5}]}}',
    ),
    (
        BrokerStatsData,
        (
            '{"statsMinute":{"avgpt":0.5,"sum":3,"tps":0.05},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
            '"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0}}'
        ),
    ),
    (QueryCorrectionOffsetBody, '{"correctionOffsets":{"0":5,"3":9}}'),
    (
        QueryConsumeTimeSpanBody,
        (
            f'{{"consumeTimeSpanSet":[{{"messageQueue":{KEY},"minTimeStamp":1,"maxTimeStamp":9,"consumeTimeStamp":5,'
            '"delayTime":4}]}'
        ),
    ),
    (
        QueryConsumeQueueResponseBody,
        (
            '{"queueData":[{"physicOffset":190,"physicSize":124,"tagsCode":-5,"eval":true}],"maxQueueIndex":9,'
            '"minQueueIndex":2}'
        ),
    ),
    (ConsumeMessageDirectlyResult, '{"order":false,"autoCommit":true,"consumeResult":"CR_LATER","spentTimeMills":5}'),
]
LOOSE: list[tuple[type[Body], str]] = [
    (TopicStatsTable, f'{{"offsetTable":{{{KEY}:{{"lastUpdateTimestamp":0,"maxOffset":9,"minOffset":0}}}}}}'),
    (
        ConsumeStats,
        f'{{"consumeTps":0.0,"offsetTable":{{{KEY}:{{"brokerOffset":9,"consumerOffset":7,"lastTimestamp":0}}}}}}',
    ),
    (
        ConsumeStatsList,
        (
            f'{{"brokerAddr":"x:1","consumeStatsList":[{{"g":[{{"consumeTps":0.0,"offsetTable":{{{KEY}:'
            '{"brokerOffset":9,"consumerOffset":7,"lastTimestamp":0}}}]}],"totalDiff":2}'
        ),
    ),
    (ResetOffsetBody, f'{{"offsetTable":{{{KEY}:5}}}}'),
    (GetConsumerStatusBody, f'{{"consumerTable":{{"c":{{{KEY}:5}}}},"messageQueueTable":{{{KEY}:7}}}}'),
]


@pytest.mark.parametrize(("kind", "text"), STRICT + LOOSE, ids=lambda value: getattr(value, "__name__", ""))
def test_an_example_is_read_and_written_back_to_the_byte(kind: type[Body], text: str) -> None:
    assert kind.from_bytes(text.encode()).to_bytes().decode() == text


@pytest.mark.parametrize(("kind", "text"), STRICT, ids=lambda value: getattr(value, "__name__", ""))
def test_bodies_without_queues_as_keys_are_json_for_any_reader(kind: type[Body], text: str) -> None:
    json.loads(kind.from_bytes(text.encode()).to_bytes())


@pytest.mark.parametrize(("kind", "text"), STRICT + LOOSE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_newline_at_the_end_and_fields_nobody_knows_are_no_matter(kind: type[Body], text: str) -> None:
    assert kind.from_bytes((text[:-1] + ',"new":{"in":[5]}}\n').encode()) == kind.from_bytes(text.encode())


@pytest.mark.parametrize(("kind", "text"), STRICT + LOOSE, ids=lambda value: getattr(value, "__name__", ""))
def test_any_cut_of_a_body_is_refused(kind: type[Body], text: str) -> None:
    for length in range(len(text)):
        with pytest.raises(BadRequest):
            kind.from_bytes(text[:length].encode())


def test_a_route_has_its_parts() -> None:
    route = TopicRouteData(
        broker_datas=[
            BrokerData(broker_addrs={0: "127.0.0.1:10911"}, broker_name="broker-a", cluster="DefaultCluster")
        ],
        queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=4, write_queue_nums=4)],
    )
    assert route.to_bytes().decode() == STRICT[0][1]
    ordered = TopicRouteData(order_topic_conf="broker-a:4")
    assert b'"orderTopicConf":"broker-a:4"' in ordered.to_bytes()


def test_java_writes_broker_ids_without_quotes_and_they_are_read() -> None:
    java = b'{"brokerDatas":[{"brokerAddrs":{0:"x:1",1:"y:2"},"brokerName":"b","cluster":"c"}],"queueDatas":[]}'
    (broker,) = TopicRouteData.from_bytes(java).broker_datas
    assert broker.broker_addrs == {0: "x:1", 1: "y:2"}


def test_tables_by_queue_are_dicts() -> None:
    stats = TopicStatsTable.from_bytes(LOOSE[0][1].encode())
    assert stats.offset_table == {QUEUE: TopicOffset(max_offset=9)}
    consumed = ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=9, consumer_offset=7)})
    assert consumed.to_bytes().decode() == LOOSE[1][1]
    assert consumed.total_diff() == 2
    assert ResetOffsetBody().to_bytes() == b'{"offsetTable":{}}'


def test_a_reset_for_a_cpp_client_is_a_list() -> None:
    body = ResetOffsetBody(offset_table={QUEUE: 5}).for_cpp()
    assert body.to_bytes() == b'{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"T"}]}'


def test_numbers_may_be_text_and_sets_null() -> None:
    lock = LockBatchRequestBody.from_bytes(
        b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":"3","topic":"T"},null]}'
    )
    assert lock.mq_set == [MessageQueue(broker_name="b", queue_id=3, topic="T")]
    assert LockBatchRequestBody.from_bytes(b'{"clientId":"c","consumerGroup":"g","mqSet":null}').mq_set == []


def test_a_consumer_connection_as_java_writes_it() -> None:
    found = ConsumerConnection.from_bytes(
        b'{"connectionSet":[{"clientAddr":"127.0.0.1:5","clientId":"c","language":"JAVA","version":397}],'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"BROADCASTING",'
        b'"subscriptionTable":{"T":{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
        b'"subVersion":1,"tagsSet":[],"topic":"T"}}}'
    )
    assert found.connection_set == [
        ClientConnection(client_id="c", client_addr="127.0.0.1:5", language="JAVA", version=397)
    ]
    assert (found.message_model, found.consume_type) == (MessageModel.BROADCASTING, ConsumeType.CONSUME_PASSIVELY)
    assert found.subscription_table["T"].wants_everything
    assert ConsumerConnection.from_bytes(found.to_bytes()) == found


def test_what_a_consumer_says_about_itself() -> None:
    java = (
        f'{{"mqTable":{{{KEY}:{{"cachedMsgCount":2,"cachedMsgSizeInMiB":1,"commitOffset":4,"droped":true,'
        '"locked":true}},"properties":{"A":"b"},"statusTable":{"T":{"consumeFailedMsgs":3,"consumeOKTPS":1.5}},'
        '"subscriptionSet":[{"subString":"a||b","topic":"T"}]}'
    )
    info = ConsumerRunningInfo.from_bytes(java.encode())
    queue = info.mq_table[QUEUE]
    assert (queue.cached_msg_count, queue.cached_msg_size_in_mib, queue.commit_offset) == (2, 1, 4)
    assert (queue.dropped, queue.locked, info.status_table["T"].consume_ok_tps) == (True, True, 1.5)
    assert info.subscription_set[0].tags_set == ["a", "b"]
    assert ConsumerRunningInfo.from_bytes(info.to_bytes()) == info


def test_how_a_message_was_consumed() -> None:
    result = ConsumeMessageDirectlyResult.from_bytes(b'{"consumeResult":"CR_THROW_EXCEPTION","remark":"boom"}')
    assert (result.consume_result, result.remark, result.auto_commit) == (CMResult.CR_THROW_EXCEPTION, "boom", True)


def test_bodies_that_hold_one_subscription() -> None:
    asked = CheckClientRequestBody.from_bytes(
        b'{"clientId":"c","group":"CID_x",'
        b'"subscriptionData":{"topic":"T","subString":"a > 1","expressionType":"SQL92"}}'
    )
    assert (asked.group, asked.subscription_data.expression_type) == ("CID_x", "SQL92")
    reply = QuerySubscriptionResponseBody(subscription_data=asked.subscription_data, group="CID_x", topic="T")
    assert QuerySubscriptionResponseBody.from_bytes(reply.to_bytes()) == reply
