"""rocketmq-exporter, which shows brokers to Prometheus: it parses each figure here without a default, and stops at the
first that it cannot parse. The names and formats are the exporter's; what parses them is written anew.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, RawClient, ok

from penstock.broker.admin.runtime import MinuteOfLatencies
from penstock.broker.stats import SAMPLE_S
from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.bodies.stats import PUT_LATENCIES_KEY
from penstock.protocol.codes import RequestCode
from penstock.store import PutStatus
from penstock.store.message import PutResult

if TYPE_CHECKING:
    from broker.conftest import Run

LONGS = """
    bootTimestamp brokerVersion commitLogMaxOffset commitLogMinOffset dispatchBehindBytes dispatchMaxBuffer
    earliestMessageTimeStamp getMessageEntireTimeMax msgGetTotalTodayMorning msgGetTotalTodayNow
    msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning
    pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize
    putMessageEntireTimeMax putMessageSizeTotal putMessageTimesTotal queryThreadPoolQueueCapacity
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainTransientStoreBufferNumbs
    sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize
    startAcceptSendRequestTimeStamp
"""
DOUBLES = "commitLogDiskRatio consumeQueueDiskRatio putLatency99 putLatency999 putMessageAverageSize"
THREE_RATES = "getFoundTps getMissTps getTotalTps getTransferedTps putTps"
TEXTS = "brokerVersionDesc runtime"
CLASSES = "<=0ms 0~10ms 10~50ms 50~100ms 100~200ms 200~500ms 500ms~1s 1~2s 2~3s 3~4s 4~5s 5~10s 10s~"
"""The latency classes that the exporter looks up by name."""
RATE = r"[0-9]+(\.[0-9]+)?(E-?[0-9]+)?"


async def runtime(client: RawClient) -> dict[str, str]:
    return KVTable.from_bytes(ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table


def latencies(text: str) -> dict[str, int]:
    """Splits at each space and each colon, as the exporter does: no space may be in a class, or at the end."""
    pairs = [word.split(":") for word in text.split(" ")]
    return {name.strip("[]"): int(count) for name, count in pairs}


def test_every_figure_is_there_and_can_be_parsed(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            for properties in ({}, {"DELAY": "3"}):
                ok(await client.send("orders", properties=properties))
            ok(await client.pull("orders"))
            table = await runtime(client)
            for name in LONGS.split():
                assert re.fullmatch(r"-?[0-9]{1,19}", table[name]), name
            for name in DOUBLES.split():
                assert re.fullmatch(rf"-?{RATE}", table[name]), name
            for name in THREE_RATES.split():
                assert re.fullmatch(rf"{RATE} {RATE} {RATE}", table[name]), name
            assert all(table[name] for name in TEXTS.split())
            assert re.fullmatch(rf"{RATE} (B|[KMGTPE]iB)", table["remainHowManyDataToFlush"])
            size = rf"{RATE} [KMGTPE]iB"
            assert re.fullmatch(rf"Total : {size}, Free : {size}\.", table["commitLogDirCapacity"])
            assert list(latencies(table["putMessageDistributeTime"])) == CLASSES.split()
            delayed = {name: text for name, text in table.items() if name.startswith("scheduleMessageOffset")}
            assert delayed == {"scheduleMessageOffset_3": "0,1"}

    run(check())


def test_every_figure_is_there_before_the_first_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            table = await runtime(await broker.client())
            assert {*f"{LONGS} {DOUBLES} {THREE_RATES} {TEXTS} commitLogDirCapacity".split()} <= table.keys()
            assert table["remainTransientStoreBufferNumbs"] == "2147483647", "as without a pool in RocketMQ"
            assert (table["putLatency99"], table["putLatency999"]) == ("0.00", "0.00")

    run(check())


@pytest.mark.parametrize(
    ("millis", "name"),
    [
        (0.4, "<=0ms"),
        (7, "0~10ms"),
        (11, "10~50ms"),
        (99, "50~100ms"),
        (150, "100~200ms"),
        (201, "200~500ms"),
        (900, "500ms~1s"),
        (1500, "1~2s"),
        (2500, "2~3s"),
        (3500, "3~4s"),
        (4500, "4~5s"),
        (9000, "5~10s"),
        (11_000, "10s~"),
    ],
)
def test_a_put_is_in_rocketmqs_class(home: BrokerHome, run: Run, millis: float, name: str) -> None:
    async def check() -> None:
        async with home.running() as broker:
            broker.store.statistics.count_put(PutResult(PutStatus.PUT_OK, 0, 1), millis / 1000)
            table = await runtime(await broker.client())
            found = latencies(table["putMessageDistributeTime"])
            assert [each for each, count in found.items() if count] == [name]
            assert float(table["putLatency99"]) >= min(millis, 10_000)
            assert sum(int(count) for count in re.findall(r"\]:(\d+)", table[PUT_LATENCIES_KEY])) == 1

    run(check())


def test_latency_classes_begin_anew_every_minute() -> None:
    minute = MinuteOfLatencies()
    for sample in range(1, 13):
        counts = {"1": sample * 10, "20": sample, "more": 0}
        minute.sample(counts)
        found = latencies(minute.text(counts))
        since = sample % int(60 / SAMPLE_S) if sample >= 6 else sample
        assert (found["<=0ms"], found["10~50ms"], sum(found.values())) == (since * 10, since, since * 11)
