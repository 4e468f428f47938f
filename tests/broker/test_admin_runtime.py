"""The broker as a whole: how it runs, its figures, and cleaning up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, ok
from support.loopback import until

from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.bodies.stats import BrokerStatsData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import Message

if TYPE_CHECKING:
    from broker.conftest import Run

LATENCIES = "putMessageDistributeTime"
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


def test_every_put_is_in_a_class_of_latency_and_the_slowest_have_a_class_of_their_own(
    home: BrokerHome, run: Run
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            reply = ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            classes = dict(text.split(":") for text in KVTable.from_bytes(reply.body).table[LATENCIES].split())
            assert next(iter(classes)) == "[<=1ms]"
            assert list(classes)[-2:] == ["[<=5000ms]", "[5000ms~]"]
            assert sum(map(int, classes.values())) == 1

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
