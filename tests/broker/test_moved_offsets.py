"""OFFSET_MOVED_EVENT: who is sent to another offset than it asked for leaves a record, and not one for each pull."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.brokers import BrokerHome, RawClient, RunningBroker, ok, records
from support.loopback import until

from penstock.broker.pull import MAX_IN_A_SPAN, SPAN_MS, MovedOffsets
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.format.record import Record
from penstock.protocol.codes import ResponseCode
from penstock.store import MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run

MOVED = "OFFSET_MOVED_EVENT"


async def events(broker: RunningBroker, client: RawClient) -> list[Record]:
    broker.store.catch_up()
    reply = await client.pull(MOVED, consumerGroup="CID_watch")
    return [] if reply.code == ResponseCode.PULL_NOT_FOUND else records(reply)


async def moved(client: RawClient, offset: int, **changes: Any) -> None:
    assert (await client.pull("orders", offset, **changes)).code == ResponseCode.PULL_OFFSET_MOVED


def test_a_pull_that_is_sent_elsewhere_leaves_a_record(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(broker_name="broker-x") as broker:
            client = await broker.client()
            for _ in range(3):
                ok(await client.send("orders"))
            ok(await client.pull("orders", 0))
            assert await events(broker, client) == []
            await moved(client, 70)
            (event,) = await events(broker, client)
            assert json.loads(event.body) == {
                "consumerGroup": "CID_test",
                "messageQueue": {"brokerName": "broker-x", "queueId": 0, "topic": "orders"},
                "offsetRequest": 70,
                "offsetNew": 3,
            }
            assert (event.properties["TAGS"], event.properties["KEYS"]) == ("CID_test", "CID_test")

    run(check())


def test_a_consumer_that_asks_again_and_again_leaves_one(home: BrokerHome, run: Run) -> None:
    now = 1_000_000

    async def check() -> None:
        nonlocal now
        async with home.running(options={"clock": lambda: now}) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            for offset in (70, 71, 70):
                await moved(client, offset)
            assert len(await events(broker, client)) == 1
            await moved(client, 70, queueId=1)
            await moved(client, 70, consumerGroup="CID_other")
            assert len(await events(broker, client)) == 3
            now += SPAN_MS
            await moved(client, 72)
            last = (await events(broker, client))[-1]
            assert json.loads(last.body)["offsetRequest"] == 72

    run(check())


def test_a_pull_that_waited_and_is_then_sent_elsewhere_leaves_a_record_too(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.store.catch_up()
            waits = client.hold("orders", 1)
            await until(lambda: len(broker.broker.held) == 1)
            queue = broker.store.queues.find("orders", 0)
            assert queue is not None
            queue.min_offset = 2  # what it waits for is deleted
            ok(await client.send("orders"))
            ok(await client.send("orders"))
            assert (await waits).code == ResponseCode.PULL_OFFSET_MOVED
            assert len(await events(broker, client)) == 1

    run(check())


def test_a_broker_that_may_not_be_written_to_answers_without_a_record(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.state.settings.change(broker_permission=4)
            await moved(client, 70)
            assert await events(broker, client) == []

    run(check())


def test_all_groups_together_have_a_limit(tmp_path: Any) -> None:
    with MessageStore.open(tmp_path, Settings.dev()) as store:
        moved = MovedOffsets(store, SettingsInForce(BrokerSettings()), lambda: 1_000_000)
        for number in range(MAX_IN_A_SPAN + 50):
            moved.report(f"group-{number}", "orders", 0, 70, 3)
        assert store.statistics.put_total == MAX_IN_A_SPAN


def test_a_store_that_takes_nothing_keeps_no_pull_from_its_answer(tmp_path: Any) -> None:
    store = MessageStore.open(tmp_path, Settings.dev())
    moved = MovedOffsets(store, SettingsInForce(BrokerSettings()), lambda: 1_000_000)
    store.close()
    moved.report("group", "orders", 0, 70, 3)
    assert store.statistics.put_total == 0
