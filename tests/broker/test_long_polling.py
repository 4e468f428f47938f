"""Pulls that wait: woken by what they want, answered when their time is up, dropped with their connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support.brokers import WAIT_S, BrokerHome, RunningBroker, bodies, ok
from support.core_clients import PlainClient
from support.loopback import until

from penstock.broker.filters import ALL
from penstock.broker.long_polling import HeldPull
from penstock.broker.send_and_pull_results import PullOutcome
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.store import Message

if TYPE_CHECKING:
    from broker.conftest import Run


async def held(broker: RunningBroker, count: int = 1) -> None:
    await until(lambda: len(broker.broker.held) == count)


def test_a_pull_at_the_end_is_answered_by_the_next_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"0"))
            waiting = client.hold("orders", 1)
            await held(broker)
            ok(await client.send("orders", b"1"))
            reply = await waiting
            assert bodies(reply) == [b"1"]
            assert reply.ext["nextBeginOffset"] == "2"
            assert len(broker.broker.held) == 0

    run(check())


def test_a_pull_of_an_empty_queue_waits_for_its_first_message(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"elsewhere", queueId=1))
            waiting = client.hold("orders", 0)
            await held(broker)
            ok(await client.send("orders", b"here", queueId=0))
            assert bodies(await waiting) == [b"here"]

    run(check())


def test_many_consumers_of_one_queue_are_all_woken(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            waiting = [client.hold("orders", 1, consumerGroup=f"CID_{number}") for number in range(50)]
            await held(broker, 50)
            ok(await client.send("orders", b"for all"))
            assert [bodies(reply) for reply in await asyncio.gather(*waiting)] == [[b"for all"]] * 50

    run(check())


def test_only_a_message_with_a_wanted_tag_wakes(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            waiting = client.hold("orders", 1, subscription="paid")
            await held(broker)
            for _ in range(3):
                ok(await client.send("orders", b"no", properties={"TAGS": "open"}))
            await until(lambda: broker.store.dispatcher.behind <= 0)
            assert not waiting.done()
            ok(await client.send("orders", b"yes", properties={"TAGS": "paid"}))
            assert bodies(await waiting) == [b"yes"]

    run(check())


@pytest.mark.parametrize("filter_type", ["TAG", "SQL92"])
def test_a_message_far_behind_unwanted_ones_does_not_wait_for_another(
    home: BrokerHome, run: Run, filter_type: str
) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=True) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            subscription = "paid" if filter_type == "TAG" else "TAGS = 'paid'"
            wanted = {"subscription": subscription, "expressionType": filter_type}
            waiting = client.hold("orders", 1, hold_ms=60_000, **wanted)
            await held(broker)
            unwanted = [Message("orders", b"no", tags="open", queue_id=0)] * 2000
            assert broker.store.put_many([*unwanted, Message("orders", b"yes", tags="paid", queue_id=0)]).ok
            reply = await asyncio.wait_for(waiting, WAIT_S)
            while reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
                offset = int(reply.ext["nextBeginOffset"])
                reply = await client.pull("orders", offset, **wanted)
            assert bodies(reply) == [b"yes"]

    run(check())


def test_when_the_time_is_up_the_pull_is_answered_whatever_there_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            reply = await client.hold("orders", 1, hold_ms=50)
            assert reply.code == ResponseCode.PULL_NOT_FOUND
            assert reply.ext["nextBeginOffset"] == "1"
            unwanted = client.hold("orders", 1, hold_ms=1000, subscription="paid")
            await held(broker, 1)
            ok(await client.send("orders", properties={"TAGS": "open"}))
            reply = await unwanted
            assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert reply.ext["nextBeginOffset"] == "2"

    run(check())


def test_without_bit_1_nobody_waits(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            reply = await client.pull("orders", 1, sysFlag=4, suspendTimeoutMillis=30_000)
            assert reply.code == ResponseCode.PULL_NOT_FOUND

    run(check())


@pytest.mark.parametrize("offset", [5, -3])
def test_an_offset_to_correct_is_answered_at_once(home: BrokerHome, run: Run, offset: int) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            assert (await client.hold("orders", offset)).code == ResponseCode.PULL_OFFSET_MOVED

    run(check())


def test_with_long_polling_off_the_broker_says_how_long(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(long_polling_enable=False, short_polling_time_mills=20) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            assert (await client.hold("orders", 1, hold_ms=300_000)).code == ResponseCode.PULL_NOT_FOUND

    run(check())


def test_the_commit_counts_once_not_again_when_the_pull_is_answered(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            waiting = client.hold("orders", 1, sysFlag=7, commitOffset=1)
            await held(broker)
            broker.state.offsets.reset("CID_test", "orders", {0: 0})
            ok(await client.send("orders"))
            ok(await waiting)
            assert broker.state.offsets.query("CID_test", "orders", 0) == 0

    run(check())


def test_pulls_go_with_their_connection(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, other = await broker.client(), await broker.client()
            ok(await client.send("orders"))
            gone = [client.hold("orders", 1) for _ in range(5)]
            kept = other.hold("orders", 1)
            await held(broker, 6)
            client.close()
            await held(broker, 1)
            ok(await other.send("orders", b"next"))
            assert bodies(await kept) == [b"next"]
            await asyncio.gather(*gone, return_exceptions=True)

    run(check())


def test_a_pull_of_a_client_that_has_gone_meanwhile_is_not_held(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            pulls, client = broker.broker.held, PlainClient()
            client.close()
            with pytest.raises(Refusal, match="closed"):
                pulls.hold(HeldPull(client, "orders", 0, 0, ALL, lambda _pull, _last: True, 100), 60)
            assert len(pulls) == 0
            assert client not in pulls._by_client
            assert pulls.budget.used == 0

    run(check())


def test_one_connection_may_have_only_so_many_pulls_waiting(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(max_held_pulls=3) as broker:
            client, other = await broker.client(), await broker.client()
            ok(await client.send("orders"))
            waiting = [client.hold("orders", 1) for _ in range(3)]
            await held(broker, 3)
            reply = await client.hold("orders", 1)
            assert reply.code == ResponseCode.SYSTEM_BUSY
            assert "maxHeldPulls" in (reply.remark or "")
            waiting.append(other.hold("orders", 1))
            await held(broker, 4)
            ok(await other.send("orders", b"next"))
            assert [bodies(reply) for reply in await asyncio.gather(*waiting)] == [[b"next"]] * 4

    run(check())


def test_a_message_that_is_put_in_another_thread_wakes_too(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            waiting = client.hold("orders", 1)
            await held(broker)
            assert (await asyncio.to_thread(broker.store.put, Message("orders", b"from a thread"))).ok
            assert bodies(await waiting) == [b"from a thread"]

    run(check())


def test_nothing_is_missed_between_looking_and_waiting(home: BrokerHome, run: Run) -> None:
    """Sends and pulls race: each message must reach the consumer without any pull running into its time limit."""

    async def check() -> None:
        async with home.running() as broker:
            producer, consumer = await broker.client(), await broker.client()
            ok(await producer.send("orders", b"0"))

            async def produce() -> None:
                for number in range(1, 300):
                    ok(await producer.send("orders", b"%d" % number))

            sending = asyncio.create_task(produce())
            got: list[bytes] = []
            while len(got) < 300:
                got += bodies(await asyncio.wait_for(consumer.hold("orders", len(got), hold_ms=60_000), 30))
            await sending
            assert got == [b"%d" % number for number in range(300)]

    run(check())


def test_under_sync_flush_a_pull_is_woken_when_the_message_is_on_disk(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(sync=True) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            waiting = client.hold("orders", 1)
            await held(broker)
            reply = ok(await client.send("orders", b"safe"))
            assert bodies(await waiting) == [b"safe"]
            record = broker.store.look_up_id(reply.ext["msgId"])
            assert record is not None
            assert broker.store.watermarks.flushed >= record.physical_offset + record.size

    run(check())


def test_only_a_message_that_an_sql_filter_wants_wakes(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(enable_property_filter=True) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            wanted = {"subscription": "price > 5", "expressionType": "SQL92"}
            waiting = client.hold("orders", 1, **wanted)
            late = client.hold("orders", 1, hold_ms=1000, subscription="price > 500", expressionType="SQL92")
            await held(broker, 2)
            for price in (1, 2, 3):
                ok(await client.send("orders", b"cheap", properties={"price": price}))
            reply = await late
            assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "4")
            assert not waiting.done()
            ok(await client.send("orders", b"dear", properties={"price": 7}))
            reply = await waiting
            assert bodies(reply) == [b"dear"]
            assert reply.ext["nextBeginOffset"] == "5"

    run(check())


def test_a_pull_whose_read_is_cancelled_before_it_began_is_refused(home: BrokerHome, run: Run) -> None:
    async def outcome() -> PullOutcome:
        raise AssertionError("it never began")

    async def check() -> None:
        async with home.running() as broker:
            pulls, settled = broker.broker.held, list[object]()
            pull = HeldPull(PlainClient(), "orders", 0, 0, ALL, lambda _pull, _last: True, 0)
            pull.then(settled.append)
            pulls.settle_later(pull, outcome())
            drained = asyncio.ensure_future(pulls.drained())
            for task in pulls._reading:
                task.cancel()
            await drained
            [refusal] = settled
            assert isinstance(refusal, Refusal)
            assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(check())
