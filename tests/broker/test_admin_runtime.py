"""The broker as a whole: how it runs, its figures, and cleaning up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers import HALF, BrokerHome, RawClient, ok, send_half
from support.loopback import until

from penstock.format.constants import SCHEDULE_TOPIC
from penstock.format.message_id import decode_message_id
from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.bodies.stats import COUNTERS_KEY, PUT_LATENCIES_KEY, BrokerCounters, BrokerStatsData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import Message, PutStatus
from penstock.store.message import PutResult

if TYPE_CHECKING:
    from broker.conftest import Run

WANTED = """
    brokerVersionDesc brokerVersion msgPutTotalTodayNow msgPutTotalTodayMorning msgPutTotalYesterdayMorning
    msgGetTotalTodayNow msgGetTotalTodayMorning msgGetTotalYesterdayMorning sendThreadPoolQueueSize
    sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize
    queryThreadPoolQueueSize dispatchBehindBytes pageCacheLockTimeMills earliestMessageTimeStamp
    startAcceptSendRequestTimeStamp commitLogDirCapacity remainHowManyDataToFlush putTps getTransferedTps getTotalTps
    getFoundTps getMissTps bootTimestamp runtime putMessageTimesTotal putMessageAverageSize
"""


def test_the_runtime_has_the_figures_that_tools_look_for(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_delay_level": "1h"}) as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            ok(await client.send("orders", properties={"DELAY": "1"}))
            broker.store.catch_up()
            ok(await client.pull("orders"))
            reply = ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            table = KVTable.from_bytes(reply.body).table
            assert set(WANTED.split()) <= table.keys()
            assert table["brokerVersionDesc"] == "V4_9_8"
            assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("4", "3")
            assert table["scheduleMessageOffset_1"] == "0,1"
            assert float(table["putTps"].split()[0]) >= 0
            assert table["earliestMessageTimeStamp"] == str(broker.store.earliest_time())
            assert str(home.path) not in str(table)

    run(check())


async def counters(client: RawClient) -> BrokerCounters:
    reply = ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO, penstockCounters=True))
    return BrokerCounters.from_bytes(KVTable.from_bytes(reply.body).table[COUNTERS_KEY].encode())


def test_counters_never_fall_whatever_is_deleted_or_reset(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for _ in range(3):
                sent = ok(await client.send("orders"))
            ok(await client.pull("orders", consumerGroup="CID"))
            offset = decode_message_id(sent.ext["msgId"])[1]
            back = {"offset": offset, "group": "CID", "delayLevel": -1, "originTopic": "orders"}
            ok(await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back))
            before = await counters(client)
            assert before.messages_in["orders"][0] == 3
            assert before.messages_in["%DLQ%CID"][0] == 1
            assert before.messages_out == {"orders@CID": (3, before.messages_in["orders"][1])}
            assert before.sent_back == {"orders@CID": 1}
            broker.state.offsets.commit("CID", "orders", 0, 3)
            broker.state.offsets.commit("CID", "orders", 0, 0)
            ok(await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders"))
            ok(await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="CID"))
            assert await counters(client) == before
            ok(await client.send("orders"))
            ok(await client.pull("orders", consumerGroup="CID"))
            after = await counters(client)
            assert after.messages_in["orders"][0] == 4
            assert after.messages_out["orders@CID"][0] == 4
            stats = await client.ask(
                RequestCode.VIEW_BROKER_STATS_DATA, statsName="BROKER_PUT_NUMS", statsKey="DefaultCluster"
            )
            assert BrokerStatsData.from_bytes(ok(stats).body).stats_minute.sum == 5

    run(check())


def test_refused_requests_are_counted_by_their_code(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            assert (await counters(client)).requests_refused == {}
            for _ in range(2):
                assert (await client.send("not a topic")).code != ResponseCode.SUCCESS
            assert (await client.ask(98_765)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert (await counters(client)).requests_refused == {"310": 2, "-1": 1}

    run(check())


def test_an_idle_broker_shows_no_load_however_many_pulls_wait(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            pull = client.hold("orders", 1)
            await until(lambda: len(broker.broker.held) == 1)
            table = KVTable.from_bytes(ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            queues = [name for name in table if "Queue" in name and name.endswith("Size")]
            assert sorted(queues) == [
                "EndTransactionQueueSize",
                "pullThreadPoolQueueSize",
                "queryThreadPoolQueueSize",
                "sendThreadPoolQueueSize",
            ]
            assert {table[name] for name in queues} == {"0"}
            assert all(int(table[name]) > 0 for name in table if name.endswith("QueueCapacity"))
            assert "EndTransactionThreadPoolQueueCapacity" in table
            assert table["heldPulls"] == "1"
            ok(await client.send("orders"))
            ok(await pull)

    run(check())


def test_delayed_and_half_messages_count_under_their_system_topic_as_well(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        for _ in range(2):  # what an earlier run has stored does not count
            async with home.running() as broker:
                client = await broker.client()
                for _ in range(3):
                    ok(await client.send("orders", properties={"DELAY": "18"}))
                await send_half(client)
                broker.store.catch_up()
                for topic, count in ((SCHEDULE_TOPIC, 3), (HALF, 1), ("orders", 3)):
                    asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic}
                    reply = ok(await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, **asked))
                    assert BrokerStatsData.from_bytes(reply.body).stats_day.sum == count, topic
                asked = {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"}
                reply = ok(await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, **asked))
                assert BrokerStatsData.from_bytes(reply.body).stats_day.sum == 4, "each once"

    run(check())


def test_latencies_are_written_with_the_class_above_all_bounds(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            broker.store.statistics.count_put(PutResult(PutStatus.PUT_OK, 0, 1), 7.0)
            ok(await client.send("orders"))
            ok(await client.pull("orders"))
            table = KVTable.from_bytes(ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            assert table[PUT_LATENCIES_KEY].endswith(" [<=10000ms]:1 [10000ms~]:0")
            assert float(table["putMessageSeconds"]) > 7
            assert table["getMessageDistributeTime"].endswith(" [10000ms~]:0")
            assert float(table["getMessageSeconds"]) > 0
            assert int(table["getMessageSizeTotal"]) == broker.store.figures().got_bytes > 0
            assert COUNTERS_KEY not in table, "they are many, and have to be asked for"

    run(check())


def test_figures_by_topic_and_group(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            broker.store.catch_up()
            ok(await client.pull("orders", consumerGroup="CID"))
            for name, key, total in (
                ("TOPIC_PUT_NUMS", "orders", 3),
                ("GROUP_GET_NUMS", "orders@CID", 3),
                ("BROKER_PUT_NUMS", "DefaultCluster", 3),
            ):
                reply = ok(await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key))
                found = BrokerStatsData.from_bytes(reply.body)
                assert found.stats_minute.sum == found.stats_hour.sum == found.stats_day.sum == total, name
                assert found.stats_minute.tps > 0
            for name, key in (("TOPIC_PUT_NUMS", "none"), ("NO_SUCH", "orders"), ("GROUP_GET_NUMS", "orders")):
                reply = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
                assert reply.code == ResponseCode.SYSTEM_ERROR

    run(check())


def test_queues_of_topics_that_nobody_knows_are_deleted_on_demand(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.store.put(Message("stray", b"x"))
            assert "stray" in broker.store.topics()
            ok(await client.ask(RequestCode.CLEAN_UNUSED_TOPIC))
            assert broker.store.topics() == ["orders"]

    run(check())


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG])
def test_cleaning_leaves_what_is_in_use(home: BrokerHome, run: Run, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            ok(await client.ask(code))
            await until(lambda: broker.store.max_offset("orders", 0) == 1)
            ok(await client.pull("orders"))

    run(check())
