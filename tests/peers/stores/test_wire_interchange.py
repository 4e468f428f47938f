"""Apache RocketMQ 4.9.8's own code reads what Penstock's protocol writes, and the other way round."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.peers import Peer, PeerError

from penstock.format import fastjson as fastjson_module
from penstock.format.config_tables import DataVersion, SubscriptionGroup, SubscriptionGroups, TopicConfig, TopicConfigs
from penstock.format.constants import Int32, Int64
from penstock.protocol import Command, FrameReader, Language, encode, read, write
from penstock.protocol.bodies.admin import GroupList, KVTable, TopicList, decode_config, encode_config
from penstock.protocol.bodies.base import Body
from penstock.protocol.bodies.clients import (
    CheckClientRequestBody,
    ClientConnection,
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeStatus,
    HeartbeatData,
    ProcessQueueInfo,
    ProducerConnection,
    ProducerData,
)
from penstock.protocol.bodies.queues import (
    ConsumeQueueData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    QueryConsumeQueueResponseBody,
)
from penstock.protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, RegisterBrokerBody, TopicRouteData
from penstock.protocol.bodies.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerStatusBody,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    ResetOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from penstock.protocol.compression import inflate
from penstock.protocol.fields import Fields
from penstock.protocol.headers import admin, groups, namesrv, offsets, pull, send
from penstock.protocol.subscription import subscribe

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def wire(java_class_path: list[Path]) -> Iterator[Peer]:
    with Peer(java_class_path, heap="256m") as peer:
        yield peer


def told(wire: Peer, what: str, data: bytes = b"", **more: Any) -> Any:
    answer = wire.ask("wire", what=what, data=base64.b64encode(data).decode(), **more)
    return base64.b64decode(answer["data"]) if set(answer) == {"data"} else answer


COMMANDS = [
    Command(105, {"topic": "T"}, opaque=1, language=Language.JAVA),
    Command(310, {"a": "组", "i": "TAGS\x01A\x02KEYS\x01k 😀"}, b"\x00\xffbody", opaque=2**31 - 1, flag=2),
    Command(0, {"msgId": "00", "queueId": "-1"}, b"", opaque=-1, flag=1, remark='all is "well"\n'),
    Command(17, {}, b"x" * 100_000, flag=1, remark="no route", language=Language.RUST, version=63),
]


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("command", COMMANDS, ids=repr)
def test_java_reads_our_frame_and_we_read_the_one_it_makes_of_it(wire: Peer, command: Command, binary: bool) -> None:
    command.binary = binary
    found = told(wire, "frame", encode(command))
    assert (found["code"], found["opaque"], found["flag"]) == (command.code, command.opaque, command.flag)
    assert (found["language"], found["version"]) == (command.language.name, command.version)
    assert (found.get("remark"), found.get("ext") or {}) == (command.remark, command.ext)
    assert base64.b64decode(found["body"]) == command.body
    (again,) = FrameReader().feed(base64.b64decode(found["data"]))
    assert again == command


HEADERS: dict[type[Fields], str] = {
    send.SendMessage: "SendMessageRequestHeader",
    send.SendMessageV2: "SendMessageRequestHeaderV2",
    send.PushReply: "ReplyMessageRequestHeader",
    send.SendMessageReply: "SendMessageResponseHeader",
    pull.PullMessage: "PullMessageRequestHeader",
    pull.PullMessageReply: "PullMessageResponseHeader",
    offsets.GetMaxOffset: "GetMaxOffsetRequestHeader",
    offsets.GetMinOffset: "GetMinOffsetRequestHeader",
    offsets.GetEarliestTime: "GetEarliestMsgStoretimeRequestHeader",
    offsets.SearchOffset: "SearchOffsetRequestHeader",
    offsets.QueryConsumerOffset: "QueryConsumerOffsetRequestHeader",
    offsets.UpdateConsumerOffset: "UpdateConsumerOffsetRequestHeader",
    offsets.OffsetReply: "QueryConsumerOffsetResponseHeader",
    offsets.EarliestTimeReply: "GetEarliestMsgStoretimeResponseHeader",
    offsets.ResetOffset: "ResetOffsetRequestHeader",
    offsets.GetConsumerStatus: "GetConsumerStatusRequestHeader",
    offsets.QueryConsumeTimeSpan: "QueryConsumeTimeSpanRequestHeader",
    offsets.CloneGroupOffset: "CloneGroupOffsetRequestHeader",
    offsets.QueryCorrectionOffset: "QueryCorrectionOffsetHeader",
    groups.UnregisterClient: "UnregisterClientRequestHeader",
    groups.ConsumerGroupRequest: "GetConsumerListByGroupRequestHeader",
    groups.ProducerGroup: "GetProducerConnectionListRequestHeader",
    groups.SendBack: "ConsumerSendMsgBackRequestHeader",
    groups.GetConsumeStats: "GetConsumeStatsRequestHeader",
    groups.DeleteGroup: "DeleteSubscriptionGroupRequestHeader",
    groups.GetConsumerRunningInfo: "GetConsumerRunningInfoRequestHeader",
    groups.ConsumeDirectly: "ConsumeMessageDirectlyResultRequestHeader",
    send.EndTransaction: "EndTransactionRequestHeader",
    send.CheckTransaction: "CheckTransactionStateRequestHeader",
    send.ResumeCheck: "ResumeCheckHalfMessageRequestHeader",
    pull.QueryMessage: "QueryMessageRequestHeader",
    pull.QueryMessageReply: "QueryMessageResponseHeader",
    pull.ViewMessage: "ViewMessageRequestHeader",
    pull.QueryConsumeQueue: "QueryConsumeQueueRequestHeader",
    admin.CreateTopic: "CreateTopicRequestHeader",
    admin.TopicName: "GetTopicStatsInfoRequestHeader",
    namesrv.GetRoute: "namesrv.GetRouteInfoRequestHeader",
    namesrv.GetTopicsByCluster: "GetTopicsByClusterRequestHeader",
    namesrv.DeleteTopicRoute: "namesrv.DeleteTopicFromNamesrvRequestHeader",
    namesrv.PutKv: "namesrv.PutKVConfigRequestHeader",
    namesrv.KvKey: "namesrv.GetKVConfigRequestHeader",
    namesrv.KvReply: "namesrv.GetKVConfigResponseHeader",
    namesrv.KvNamespace: "namesrv.GetKVListByNamespaceRequestHeader",
    namesrv.BrokerName: "namesrv.WipeWritePermOfBrokerRequestHeader",
    namesrv.WipeReply: "namesrv.WipeWritePermOfBrokerResponseHeader",
    namesrv.AddReply: "namesrv.AddWritePermOfBrokerResponseHeader",
    namesrv.BrokerIdentity: "namesrv.QueryDataVersionRequestHeader",
    namesrv.RegisterBroker: "namesrv.RegisterBrokerRequestHeader",
    namesrv.RegisterBrokerReply: "namesrv.RegisterBrokerResponseHeader",
    namesrv.DataVersionReply: "namesrv.QueryDataVersionResponseHeader",
    admin.ViewBrokerStats: "ViewBrokerStatsDataRequestHeader",
    admin.GetBrokerConsumeStats: "GetConsumeStatsInBrokerHeader",
    admin.BrokerConfigReply: "GetBrokerConfigResponseHeader",
    admin.UpdateAccount: "CreateAccessConfigRequestHeader",
    admin.AccessKey: "DeleteAccessConfigRequestHeader",
    admin.AclVersionReply: "GetBrokerAclConfigResponseHeader",
}
NOT_IN_THE_HEADER_OF_4_9: dict[type[Fields], str] = {  # 5.x has them, or they are put beside the header
    send.SendMessage: "brokerName",
    send.SendMessageReply: "batchUniqId recallHandle MSG_REGION TRACE_ON",
    pull.PullMessage: "maxMsgBytes requestSource",
    pull.PullMessageReply: "topicSysFlag groupSysFlag forbiddenType offsetDelta",
    offsets.GetMaxOffset: "committed",
    offsets.SearchOffset: "boundaryType",
    offsets.QueryConsumerOffset: "setZeroIfNotFound",
    offsets.ResetOffset: "queueId offset",
    groups.GetConsumeStats: "topicList",
    groups.DeleteGroup: "cleanOffset",
    send.EndTransaction: "topic",
    send.CheckTransaction: "topic",
    pull.QueryMessage: "_UNIQUE_KEY_QUERY",
    pull.ViewMessage: "topic",
    admin.CreateTopic: "attributes force",
}
CHECKED = {"topic_filter_type": "SINGLE_TAG", "commit_or_rollback": 8}  # Java takes certain values only


def filled(kind: type[Fields]) -> Fields:
    """A header with every field given, no two alike."""
    values: dict[str, Any] = {}
    for number, field in enumerate(msgspec.structs.fields(kind)):
        if field.name in CHECKED:
            values[field.name] = CHECKED[field.name]
        elif field.type in (bool, bool | None):
            values[field.name] = True
        elif field.type in (Int32, Int64, Int32 | None, Int64 | None):
            values[field.name] = -1 - number if field.type in (Int32, Int32 | None) else 2**62 + number
        else:
            values[field.name] = f"text {number}"
    return kind(**values)


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
def test_java_has_the_same_arguments_with_the_same_types(wire: Peer, kind: type[Fields]) -> None:
    header = filled(kind)
    ext = write(header)
    taken = wire.ask("wire", what="header", type=f"protocol.header.{HEADERS[kind]}", ext=ext)["ext"]
    missing = {name for name in ext if name not in taken}
    assert missing == set(NOT_IN_THE_HEADER_OF_4_9.get(kind, "").split())
    assert taken == {name: text for name, text in ext.items() if name in taken}
    assert read(kind, {**ext, **taken}) == header


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
def test_java_wants_no_argument_that_is_optional_here(wire: Peer, kind: type[Fields]) -> None:
    full, fields = write(filled(kind)), msgspec.structs.fields(kind)
    required = {field.encode_name: full[field.encode_name] for field in fields if field.required}
    wire.ask("wire", what="header", type=f"protocol.header.{HEADERS[kind]}", ext=required)


QUEUE = MessageQueue(broker_name="b", queue_id=3, topic="T")
SUBSCRIPTION = subscribe("T", "A || B", 1794765215418)
BROKER = BrokerData(broker_addrs={0: "127.0.0.1:10911", 1: "127.0.0.1:10921"}, broker_name="b", cluster="c")
BODIES: list[tuple[str, Body]] = [
    (
        "protocol.route.TopicRouteData",
        TopicRouteData(
            broker_datas=[BROKER],
            queue_datas=[QueueData(broker_name="b", perm=6, read_queue_nums=4, write_queue_nums=8, topic_sys_flag=1)],
            order_topic_conf="b:4",
        ),
    ),
    ("protocol.body.ClusterInfo", ClusterInfo(broker_addr_table={"b": BROKER}, cluster_addr_table={"c": ["b"]})),
    ("protocol.body.TopicList", TopicList(topic_list=["T"], broker_addr="x:1")),
    ("protocol.body.GroupList", GroupList(group_list=["g"])),
    ("protocol.body.KVTable", KVTable(table={"a": "b"})),
    (
        "protocol.heartbeat.HeartbeatData",
        HeartbeatData(
            client_id="c",
            producer_data_set=[ProducerData(group_name="p")],
            consumer_data_set=[ConsumerData(group_name="g", subscription_data_set=[SUBSCRIPTION])],
        ),
    ),
    (
        "protocol.body.CheckClientRequestBody",
        CheckClientRequestBody(client_id="c", group="g", subscription_data=SUBSCRIPTION),
    ),
    ("protocol.body.LockBatchRequestBody", LockBatchRequestBody(consumer_group="g", client_id="c", mq_set=[QUEUE])),
    ("protocol.body.LockBatchResponseBody", LockBatchResponseBody(locked=[QUEUE])),
    (
        "protocol.body.ConsumerConnection",
        ConsumerConnection(
            connection_set=[ClientConnection(client_id="c", client_addr="127.0.0.1:5", language="PYTHON", version=409)],
            subscription_table={"T": SUBSCRIPTION},
        ),
    ),
    (
        "protocol.body.ProducerConnection",
        ProducerConnection(
            connection_set=[ClientConnection(client_id="c", client_addr="127.0.0.1:5", language="CPP", version=63)]
        ),
    ),
    ("admin.TopicStatsTable", TopicStatsTable(offset_table={QUEUE: TopicOffset(min_offset=1, max_offset=9)})),
    ("admin.ConsumeStats", ConsumeStats(consume_tps=1.5, offset_table={QUEUE: OffsetWrapper(broker_offset=9)})),
    (
        "protocol.body.ConsumeStatsList",
        ConsumeStatsList(
            broker_addr="x:1",
            consume_stats_list=[{"g": [ConsumeStats(offset_table={QUEUE: OffsetWrapper(consumer_offset=2)})]}],
            total_diff=7,
        ),
    ),
    ("protocol.body.BrokerStatsData", BrokerStatsData(stats_day=BrokerStatsItem(sum=5, tps=0.5, avgpt=1.25))),
    ("protocol.body.ResetOffsetBody", ResetOffsetBody(offset_table={QUEUE: 2**40})),
    ("protocol.body.ResetOffsetBodyForC", ResetOffsetBody(offset_table={QUEUE: 5}).for_cpp()),
    (
        "protocol.body.GetConsumerStatusBody",
        GetConsumerStatusBody(consumer_table={"c": {QUEUE: 5}}, message_queue_table={QUEUE: 6}),
    ),
    (
        "protocol.body.QueryConsumeTimeSpanBody",
        QueryConsumeTimeSpanBody(
            consume_time_span_set=[QueueTimeSpan(message_queue=QUEUE, min_time_stamp=1, max_time_stamp=2, delay_time=3)]
        ),
    ),
    (
        "protocol.body.QueryConsumeQueueResponseBody",
        QueryConsumeQueueResponseBody(
            subscription_data=SUBSCRIPTION,
            queue_data=[ConsumeQueueData(physic_offset=1, physic_size=2, tags_code=-3, eval=True, msg="m")],
            max_queue_index=9,
        ),
    ),
    (
        "protocol.body.ConsumerRunningInfo",
        ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
            subscription_set=[SUBSCRIPTION],
            mq_table={QUEUE: ProcessQueueInfo(commit_offset=5, dropped=True)},
            status_table={"T": ConsumeStatus(consume_ok_tps=1.5)},
        ),
    ),
    (
        "protocol.body.ConsumeMessageDirectlyResult",
        ConsumeMessageDirectlyResult(consume_result=CMResult.CR_LATER, remark="r", spent_time_mills=5),
    ),
]


@pytest.mark.parametrize(("java_type", "body"), BODIES, ids=lambda value: value if isinstance(value, str) else "")
def test_java_reads_our_body_and_we_read_the_one_it_makes_of_it(wire: Peer, java_type: str, body: Body) -> None:
    again = told(wire, "body", body.to_bytes(), type=java_type)
    found = type(body).from_bytes(again)
    assert in_order(found) == in_order(body)


def in_order(body: Body) -> Any:
    """What a body says, whatever the order of its sets."""

    def sorted_sets(value: Any) -> Any:
        if isinstance(value, dict):
            pairs = ((json.dumps(sorted_sets(key), sort_keys=True), sorted_sets(item)) for key, item in value.items())
            return dict(sorted(pairs))
        if isinstance(value, list | tuple):
            return sorted((sorted_sets(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    return sorted_sets(fastjson_module.loads(body.to_bytes().decode()))


@pytest.mark.parametrize(
    ("java_type", "config"),
    [
        (
            "protocol.body.TopicConfigSerializeWrapper",
            TopicConfigs(topics={"T": TopicConfig(name="T", order=True, perm=4)}),
        ),
        (
            "protocol.body.SubscriptionGroupWrapper",
            SubscriptionGroups(groups={"g": SubscriptionGroup(name="g", retry_max_times=3)}),
        ),
        ("subscription.SubscriptionGroupConfig", SubscriptionGroup(name="g", consume_enable=False)),
        ("DataVersion", DataVersion(counter=5, timestamp=1794765215418)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_java_reads_our_tables_and_we_read_the_ones_it_makes_of_them(wire: Peer, java_type: str, config: Any) -> None:
    again = told(wire, "body", encode_config(config), type=java_type)
    assert decode_config(type(config), again) == config


@pytest.mark.parametrize("sent", [False, True], ids=["sent-plain", "sent-compressed"])
@pytest.mark.parametrize("received", [False, True], ids=["back-plain", "back-compressed"])
def test_a_registration_goes_to_java_and_back(wire: Peer, sent: bool, received: bool) -> None:
    topics_sent = {name: TopicConfig(name=name, read_queue_nums=4, write_queue_nums=2, perm=4) for name in ("T", "U")}
    body = RegisterBrokerBody(
        topics=TopicConfigs(topics=topics_sent, version=DataVersion(counter=5, timestamp=17)), filter_servers=["x:1"]
    )
    again = told(wire, "register", body.to_bytes(sent), compressed=sent, compress=received)
    found = RegisterBrokerBody.from_bytes(again, received)
    assert (found.topics.topics, found.topics.version) == (topics_sent, body.topics.version)
    assert found.filter_servers == ["x:1"]


@pytest.mark.parametrize("codec", ["zlib", "lz4", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
def test_what_java_compresses_is_inflated(wire: Peer, codec: str, size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    assert inflate(told(wire, "compress", body, codec=codec.upper()), codec) == body


def test_java_refuses_what_is_no_body(wire: Peer) -> None:
    with pytest.raises(PeerError):
        told(wire, "body", b"{", type="protocol.body.TopicList")
