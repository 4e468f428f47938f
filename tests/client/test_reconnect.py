"""A broker that goes and comes back: its clients find it again by themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from client.test_ordered import OPTIONS, InOrder, assert_in_order
from client.test_push_consumer import send_numbers
from support.clients import FakeCluster, Gathered, until_true

from penstock.client import Message, Producer, ProducerOptions, PushConsumer
from penstock.errors import PenstockError, Unreachable
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

ORDERS = {"orders": "*"}


async def send_until_stored(producer: Producer, body: bytes) -> None:
    """As a program does that must not lose a message."""
    while True:
        try:
            await producer.send(Message("orders", body))
            return
        except PenstockError:
            await asyncio.sleep(0.05)


def test_a_send_fails_while_the_broker_is_away_and_works_when_it_is_back(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            assert (await producer.send(Message("orders", b"before"))).ok
            await asyncio.to_thread(b.stop)
            with pytest.raises(Unreachable):
                await producer.send(Message("orders", b"lost"))
            await asyncio.to_thread(b.start)
            assert (await producer.send(Message("orders", b"after"))).ok

    run(main())


def test_a_send_with_time_waits_for_the_broker(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        options = ProducerOptions(timeout_s=30, retries=20)
        async with Producer("PID", b.namesrv, options=options) as producer:
            await producer.send(Message("orders", b"before"))
            await asyncio.to_thread(b.stop)
            sending = asyncio.create_task(producer.send(Message("orders", b"after")))
            await asyncio.to_thread(b.start)
            assert (await sending).ok

    run(main())


def test_a_consumer_goes_on_after_a_restart_and_nothing_is_lost_or_comes_twice(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS) as consumer:
            for round_number in range(3):
                begin = round_number * 50
                await gathered.until_has(await send_numbers(b.namesrv, begin, begin + 50))
                await asyncio.to_thread(b.restart)
            await gathered.until_has(await send_numbers(b.namesrv, 150, 200))
            assert len(consumer.assigned) == 5
        assert gathered.counts.total() == 200

    run(main())


def test_consumers_in_order_stay_in_order_over_restarts(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        one, two = InOrder(), InOrder()
        options = ProducerOptions(retries=0)
        async with (
            PushConsumer("CID", one, b.namesrv, subscriptions=ORDERS, options=OPTIONS),
            PushConsumer("CID", two, b.namesrv, subscriptions=ORDERS, options=OPTIONS),
            Producer("PID", b.namesrv, options=options) as producer,
        ):
            sent = 0
            for _ in range(3):
                restarting = asyncio.create_task(asyncio.to_thread(b.restart))
                while not restarting.done():
                    await send_until_stored(producer, b"%d" % sent)
                    sent += 1
                await restarting
            wanted = {b"%d" % number for number in range(sent)}
            await until_true(lambda: wanted <= set(one.bodies) | set(two.bodies))
        assert_in_order(one, two)

    run(main())


def test_who_restarts_with_the_consumer_away_hears_of_it_at_the_first_pull(run: Run, b: LocalBroker) -> None:
    """A client that the broker has forgotten says again who it is."""

    async def main() -> None:
        gathered = Gathered()
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
            await gathered.until_has(await send_numbers(b.namesrv, 0, 10))
            await asyncio.to_thread(_forget_clients, b)
            await gathered.until_has(await send_numbers(b.namesrv, 10, 20))

    def _forget_clients(b: LocalBroker) -> None:
        async def forget() -> None:
            assert b._broker is not None
            b._broker.state.clients.__init__()  # type: ignore[misc]

        assert b._thread is not None
        b._thread.run(forget())

    run(main())


@pytest.mark.parametrize("silent", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT])
def test_a_send_that_waits_for_a_broker_while_its_producer_closes_fails_and_is_not_cancelled(
    run: Run, silent: RequestCode
) -> None:
    asked = asyncio.Event()

    def say_nothing(connection: Connection, command: Command) -> None:
        asked.set()

    async def main() -> None:
        async with FakeCluster({silent: say_nothing}).running() as fake:
            producer = await Producer("PID", fake.namesrv).start()
            sends = [
                asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=60)),
                asyncio.create_task(producer.send(Message("T", b"x", sharding_key="k"))),
            ]
            await asked.wait()
            await producer.close()
            for send in sends:
                with pytest.raises(Unreachable, match=r"client is closed|producer is closed"):
                    await send

    run(main())
