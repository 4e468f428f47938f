"""Topics as administrators make, change, delete and see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, bodies, ok

from penstock.format.config_tables import TopicConfig, TopicConfigs
from penstock.protocol.bodies.admin import GroupList, TopicList, decode_config
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.stats import TopicStatsTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run


async def create(client: RawClient, topic: str, **changes: Any) -> Command:
    arguments = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **changes,
    }
    return await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **arguments)


def test_a_topic_is_made_and_changed_and_survives_a_restart(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await create(client, "orders", order=True, attributes="+message.type=FIFO"))
            ok(await create(client, "orders", readQueueNums=3, perm=4, attributes="+a=b,-message.type"))
            reply = ok(await client.ask(RequestCode.GET_TOPIC_CONFIG, topic="orders"))
            found = decode_config(TopicConfig, reply.body)
            assert (found.read_queue_nums, found.write_queue_nums, found.perm, found.order) == (3, 2, 4, False)
            assert found.extra == {"attributes": {"a": "b"}}
        async with home.running() as broker:
            kept = broker.state.topics.find("orders")
            assert kept is not None
            assert (kept.read_queue_nums, kept.extra) == (3, {"attributes": {"a": "b"}})

    run(check())


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("", {}),
        ("no/path", {}),
        ("..", {}),
        ("x" * 128, {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("TBW102", {}),
        ("DefaultCluster", {}),
        ("broker-a", {}),
        ("rmq_sys_anything", {}),
        ("orders", {"readQueueNums": -1}),
        ("orders", {"writeQueueNums": 1_000_000}),
        ("orders", {"perm": 99}),
        ("orders", {"topicFilterType": "CLASS"}),
        ("orders", {"attributes": "message.type"}),
        ("orders", {"readQueueNums": "many"}),
    ],
)
def test_a_topic_that_may_not_be_made(home: BrokerHome, run: Run, topic: str, changes: dict[str, Any]) -> None:
    async def check() -> None:
        async with home.running() as broker:
            before = dict(broker.state.topics.all())
            reply = await create(await broker.client(), topic, **changes)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert dict(broker.state.topics.all()) == before

    run(check())


def test_there_are_no_more_topics_than_the_settings_allow(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(max_topics=11) as broker:
            client = await broker.client()
            ok(await create(client, "one"))
            assert "maxTopics" in ((await create(client, "two")).remark or "")
            ok(await create(client, "one", perm=2))

    run(check())


def test_a_deleted_topic_is_gone_with_its_queues_and_its_groups_progress(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"old"))
            ok(await client.send("other", b"stays"))
            ok(await create(client, "%RETRY%CID_test_orders"))
            broker.state.offsets.commit("CID_test", "orders", 0, 1)
            broker.state.offsets.commit("CID_test", "other", 0, 1)
            ok(await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders"))
            assert (await client.pull("orders")).code == ResponseCode.TOPIC_NOT_EXIST
            assert broker.state.topics.find("%RETRY%CID_test_orders") is None
            assert broker.state.offsets.of_group("CID_test") == {"other": {0: 1}}
            assert "orders" not in broker.store.topics()
            ok(await client.send("orders", b"new"))
            broker.store.catch_up()
            assert bodies(await client.pull("orders")) == [b"new"]
            assert bodies(await client.pull("other")) == [b"stays"]

    run(check())


@pytest.mark.parametrize("topic", ["TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster"])
def test_the_brokers_own_topics_are_not_deleted(home: BrokerHome, run: Run, topic: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            reply = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert broker.state.topics.find(topic) is not None

    run(check())


def test_all_topics_and_those_of_the_system_are_listed(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await create(client, "orders"))
            reply = ok(await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG))
            found = decode_config(TopicConfigs, reply.body)
            assert found.topics == broker.state.topics.all()
            assert found.version == broker.state.topics.data_version
            assert json.loads(reply.body)["topicConfigTable"]["orders"]["topicFilterType"] == "SINGLE_TAG"
            reply = ok(await client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
            system = TopicList.from_bytes(reply.body).topic_list
            assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(system)
            assert "orders" not in system

    run(check())


def test_the_statistics_of_a_topic_have_a_line_for_each_queue(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await create(client, "orders"))
            for _ in range(3):
                ok(await client.send("orders", queueId=1))
            reply = ok(await client.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="orders"))
            assert b'{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:' in bytes(reply.body)
            table = TopicStatsTable.from_bytes(reply.body).offset_table
            empty, used = (
                table[MessageQueue(broker_name="broker-a", queue_id=number, topic="orders")] for number in (0, 1)
            )
            assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
            assert (used.min_offset, used.max_offset) == (0, 3)
            assert used.last_update_timestamp == broker.store.store_time("orders", 1, 2)
            assert len(table) == 2

    run(check())


@pytest.mark.parametrize("code", [RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_TOPIC_CONFIG])
def test_a_topic_that_is_not_there(home: BrokerHome, run: Run, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            reply = await (await broker.client()).ask(code, topic="none")
            assert reply.code == ResponseCode.TOPIC_NOT_EXIST

    run(check())


def test_who_consumes_a_topic_is_told_by_heartbeats_and_by_offsets(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            await client.heartbeat("me", consumes={"CID_now": {"orders": "*"}})
            broker.state.offsets.commit("CID_then", "orders", 0, 1)
            reply = ok(await client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders"))
            assert GroupList.from_bytes(reply.body).group_list == ["CID_now", "CID_then"]

    run(check())
