"""Transactions: half messages stay out of sight until their producer says what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import (
    AT_ONCE,
    COMMIT,
    HALF,
    OP,
    ROLLBACK,
    UNKNOWN,
    BrokerHome,
    bodies,
    end,
    ending,
    half_messages,
    make_round,
    ok,
    pulled,
    records,
    send_half,
)
from support.loopback import until

from penstock.format.message_id import decode_message_id
from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run


def test_a_half_message_is_out_of_sight(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            half = await send_half(client, queueId=2)
            assert half.ext["queueId"] == "2"
            assert (await pulled(broker, client, "orders", queueId=2)).code == ResponseCode.PULL_NOT_FOUND
            (stored,) = half_messages(broker, HALF)
            assert stored.sys_flag & 12 == 0
            assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("orders", "2")
            assert stored.msg_id == half.ext["msgId"]

    run(check())


def test_a_commit_puts_the_message_where_it_belongs(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            half = await send_half(client, b"paid", queueId=2, flag=7, bornTimestamp=1_600_000_000_000)
            ok(await end(client, half, COMMIT))
            (found,) = records(await pulled(broker, client, "orders", queueId=2, subscription="t"))
            assert (found.body, found.flag, found.born_timestamp) == (b"paid", 7, 1_600_000_000_000)
            assert found.sys_flag & 12 == COMMIT
            assert found.prepared_transaction_offset == decode_message_id(half.ext["msgId"])[1]
            assert found.properties.keys() == {"PGROUP", "UNIQ_KEY", "TAGS", "CLUSTER"}
            (mark,) = half_messages(broker, OP)
            assert (mark.body, mark.tags) == (half.ext["queueOffset"].encode(), "d")

    run(check())


def test_a_commit_wakes_the_consumer_that_waits(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, consumer = await broker.client(), await broker.client()
            half = await send_half(client)
            waiting = consumer.hold("orders")
            await until(lambda: len(broker.broker.held) == 1)
            client.tell(RequestCode.END_TRANSACTION, **ending(half, COMMIT))
            assert bodies(await waiting) == [b"paid"]

    run(check())


def test_a_rollback_leaves_a_mark_and_no_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**AT_ONCE) as broker:
            client = await broker.client()
            half = await send_half(client)
            ok(await end(client, half, ROLLBACK))
            assert (await pulled(broker, client, "orders")).code == ResponseCode.PULL_NOT_FOUND
            assert await make_round(broker) == 0
            assert len(half_messages(broker, HALF)) == len(half_messages(broker, OP)) == 1

    run(check())


def test_a_producer_that_does_not_know_yet_changes_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            half = await send_half(client)
            ok(await end(client, half, UNKNOWN))
            assert not half_messages(broker, OP)
            ok(await end(client, half, COMMIT))
            assert bodies(await pulled(broker, client, "orders")) == [b"paid"]

    run(check())


@pytest.mark.parametrize(
    "wrong",
    [
        {"producerGroup": "PID_other"},
        {"tranStateTableOffset": 1},
        {"commitLogOffset": 1},
        {"commitLogOffset": -5},
        {"commitLogOffset": 1 << 62},
    ],
)
def test_a_transaction_is_not_ended_by_who_does_not_know_it(home: BrokerHome, run: Run, wrong: dict[str, Any]) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            half = await send_half(client)
            reply = await end(client, half, COMMIT, **wrong)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert not half_messages(broker, "orders")
            assert not half_messages(broker, OP)

    run(check())


def test_an_ordinary_message_is_no_half_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            plain = ok(await client.send("orders", b"x", properties={"PGROUP": "PID_test", "REAL_TOPIC": "other"}))
            assert (await end(client, plain, COMMIT)).code == ResponseCode.SYSTEM_ERROR

    run(check())


def test_transactions_are_refused_where_the_settings_say_so(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(reject_transaction_message=True) as broker:
            client = await broker.client()
            reply = await client.send("orders", properties={"TRAN_MSG": "true", "PGROUP": "PID_test"})
            assert reply.code == ResponseCode.NO_PERMISSION

    run(check())


def test_under_sync_flush_the_end_of_a_transaction_is_on_disk_when_it_is_answered(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(sync=True) as broker:
            client = await broker.client()
            ok(await end(client, await send_half(client), COMMIT))
            assert broker.store.watermarks.flushed == broker.store.log.max_offset
            assert bodies(await pulled(broker, client, "orders")) == [b"paid"]

    run(check())


def test_a_delay_in_a_transaction_is_not_kept(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await end(client, await send_half(client, properties={"DELAY": "3"}), COMMIT))
            assert bodies(await pulled(broker, client, "orders")) == [b"paid"]

    run(check())
