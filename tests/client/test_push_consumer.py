"""Consumers that share a group's queues, or do not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.clients import SOON_S, Gathered, until_true

from penstock.client import (
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
)
from penstock.errors import BadSettings, Unreachable

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

ORDERS = {"orders": "*"}


async def send_numbers(namesrv: str, begin: int, end: int, topic: str = "orders") -> set[bytes]:
    """Sends each number in a request of its own, so that every queue gets some."""
    bodies = [b"%d" % number for number in range(begin, end)]
    async with Producer("PID", namesrv, options=ProducerOptions(batch_bytes=1)) as producer:
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
    return set(bodies)


async def committed(namesrv: str, group: str, topic: str = "orders") -> int:
    """How many messages of a topic a group has consumed, as the broker has it."""
    async with PullConsumer(group, namesrv) as look:
        return sum([await look.offsets.committed(group, queue) or 0 for queue in await look.queues(topic)])


def orders_of(consumer: PushConsumer) -> set[int]:
    return {queue.queue_id for queue in consumer.assigned if queue.topic == "orders"}


def test_two_consumers_share_the_queues_and_every_message_is_consumed_once(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        one, two = Gathered(), Gathered()
        async with (
            PushConsumer("CID", one, b.namesrv, subscriptions=ORDERS) as first,
            PushConsumer("CID", two, b.namesrv, subscriptions=ORDERS) as second,
        ):
            await until_true(lambda: sorted(map(len, (orders_of(first), orders_of(second)))) == [2, 2])
            assert orders_of(first) | orders_of(second) == {0, 1, 2, 3}
            sent = await send_numbers(b.namesrv, 0, 200)
            await until_true(lambda: len(one.messages) + len(two.messages) >= 200)
        assert set(one.bodies) | set(two.bodies) == sent
        assert not set(one.bodies) & set(two.bodies)
        assert len(one.messages) + len(two.messages) == 200
        assert {message.queue_id for message in one.messages}.isdisjoint(message.queue_id for message in two.messages)

    run(main())


def test_who_stays_takes_over_the_queues_of_who_leaves(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        one, two = Gathered(), Gathered()
        async with PushConsumer("CID", one, b.namesrv, subscriptions=ORDERS) as first:
            second = await PushConsumer("CID", two, b.namesrv, subscriptions=ORDERS).start()
            await until_true(lambda: len(orders_of(first)) == len(orders_of(second)) == 2)
            await send_numbers(b.namesrv, 0, 50)
            await until_true(lambda: len(one.messages) + len(two.messages) == 50)
            await second.close()
            await until_true(lambda: len(orders_of(first)) == 4)
            more = await send_numbers(b.namesrv, 50, 100)
            await one.until_has(more)
        assert (one.counts + two.counts).total() == 100  # nothing came twice: who left had stored its offsets

    run(main())


def test_every_consumer_of_a_broadcast_gets_every_message(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        options = PushOptions(broadcast=True, consume_from="first")
        one, two = Gathered(), Gathered()
        async with (
            PushConsumer("CID", one, b.namesrv, subscriptions=ORDERS, options=options),
            PushConsumer("CID", two, b.namesrv, subscriptions=ORDERS, options=options),
        ):
            sent = await send_numbers(b.namesrv, 0, 100)
            await one.until_has(sent)
            await two.until_has(sent)
        assert one.counts.total() == two.counts.total() == 100

    run(main())


def test_a_broadcast_consumer_goes_on_where_its_file_says(run: Run, b: LocalBroker, tmp_path: Path) -> None:
    async def consume(gathered: Gathered, wanted: set[bytes]) -> None:
        options = PushOptions(broadcast=True, consume_from="first", offset_file=tmp_path / "mine" / "offsets.json")
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            await gathered.until_has(wanted)

    async def main() -> None:
        before, after = Gathered(), Gathered()
        await consume(before, await send_numbers(b.namesrv, 0, 40))
        more = await send_numbers(b.namesrv, 40, 60)
        await consume(after, more)
        assert set(after.bodies) == more
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["offsets.json"]

    run(main())


def test_a_broadcast_message_that_fails_is_not_retried(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        def fail(message: ReceivedMessage) -> None:
            if message.body == b"3":
                raise ValueError("no")

        gathered = Gathered(fail)
        options = PushOptions(broadcast=True, consume_from="first")
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            sent = await send_numbers(b.namesrv, 0, 20)
            await gathered.until_has(sent)
        assert gathered.counts.total() == 20

    run(main())


def test_only_the_tags_that_were_asked_for_come_and_their_text_decides(run: Run, b: LocalBroker) -> None:
    """`Aa` and `BB` have the same hash, which is all that some brokers compare."""

    async def main() -> None:
        gathered = Gathered()
        async with (
            PushConsumer("CID", gathered, b.namesrv, subscriptions={"orders": "Aa || paid"}),
            Producer("PID", b.namesrv) as producer,
        ):
            for number, tag in enumerate(["Aa", "BB", "paid", "", "refunded"] * 4):
                await producer.send(Message("orders", b"%d" % number, tags=tag))
            for queue in await producer.queues("orders"):
                await producer.send(Message("orders", b"last", tags="paid"), queue=queue)
            await gathered.until_count(12)
            assert {message.tags for message in gathered.messages} == {"Aa", "paid"}
        assert await committed(b.namesrv, "CID") == 24  # what was not wanted is done with, too

    run(main())


def test_a_plain_function_may_block(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        meeting = threading.Barrier(8, timeout=SOON_S)
        threads = set()
        all_there = asyncio.Event()
        loop = asyncio.get_running_loop()

        def handle(message: ReceivedMessage) -> None:
            threads.add(threading.current_thread().name)
            meeting.wait()  # only eight at once can pass
            loop.call_soon_threadsafe(all_there.set)

        options = PushOptions(max_in_flight=8)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await send_numbers(b.namesrv, 0, 8)
            await asyncio.wait_for(all_there.wait(), SOON_S)
        assert len(threads) == 8
        assert await committed(b.namesrv, "CID") == 8

    run(main())


def test_no_more_messages_are_in_flight_than_allowed(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        now = most = 0
        gathered = Gathered()

        async def handle(message: ReceivedMessage) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.002)
            now -= 1
            await gathered(message)

        options = PushOptions(max_in_flight=3)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await gathered.until_has(await send_numbers(b.namesrv, 0, 60))
        assert most == 3

    run(main())


def test_closing_waits_for_what_is_with_the_handler_and_the_rest_comes_to_the_next(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        begun, may_end, done = [], asyncio.Event(), []

        async def slow(message: ReceivedMessage) -> None:
            begun.append(message.body)
            await may_end.wait()
            done.append(message.body)

        sent = await send_numbers(b.namesrv, 0, 300)
        consumer = PushConsumer("CID", slow, b.namesrv, subscriptions=ORDERS, options=PushOptions(max_in_flight=2))
        await consumer.start()
        await until_true(lambda: len(begun) == 2)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        may_end.set()
        await closing
        assert sorted(done) == sorted(begun)  # none was cut off
        rest = Gathered()
        async with PushConsumer("CID", rest, b.namesrv, subscriptions=ORDERS):
            await rest.until_has(sent - set(done))

    run(main())


def test_a_consumer_that_falls_behind_pulls_no_further(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        may_go_on = asyncio.Event()
        gathered = Gathered()

        async def wait(message: ReceivedMessage) -> None:
            await may_go_on.wait()
            await gathered(message)

        async with Producer("PID", b.namesrv) as producer:
            queue = (await producer.queues("orders"))[0]
            for begin in range(0, 1500, 100):
                batch = [Message("orders", b"%d" % number) for number in range(begin, begin + 100)]
                await producer.send_batch(batch, queue=queue)
        async with PushConsumer("CID", wait, b.namesrv, subscriptions=ORDERS) as consumer:
            table = consumer._assignments.table
            await until_true(lambda: queue in table and len(table[queue]) >= 1000)
            assert len(table[queue]) < 1000 + 32
            may_go_on.set()
            await gathered.until_has({b"%d" % number for number in range(1500)})
        assert gathered.counts.total() == 1500

    run(main())


def test_a_new_group_begins_where_it_says(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        await send_numbers(b.namesrv, 0, 20)
        await asyncio.sleep(0.01)
        async with Producer("PID", b.namesrv) as producer:
            border = (await producer.send(Message("orders", b"border"))).queue
        b.settle()
        async with PullConsumer("look", b.namesrv) as look:
            page = await look.pull(border, await look.offsets.max_offset(border) - 1)
            moment = page.messages[-1].store_timestamp
        gathered = Gathered()
        options = PushOptions(consume_from=moment)
        async with PushConsumer("by-time", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            await gathered.until_has({b"border"})
            assert set(gathered.bodies) <= {b"border", *(b"%d" % number for number in range(16, 20))}
        everything = Gathered()
        options = PushOptions(consume_from="first")
        async with PushConsumer("first", everything, b.namesrv, subscriptions=ORDERS, options=options):
            await everything.until_count(21)

    run(main())


def test_topics_are_subscribed_to_and_given_up_while_it_runs(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with PushConsumer("CID", gathered, b.namesrv) as consumer:
            await consumer.subscribe("orders")
            await gathered.until_has(await send_numbers(b.namesrv, 0, 10))
            await consumer.unsubscribe("orders")
            await until_true(lambda: not orders_of(consumer))
            assert await committed(b.namesrv, "CID") == 10

    run(main())


def test_a_topic_that_comes_later_is_consumed_then(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions={"later": "*"}):
            await gathered.until_has(await send_numbers(b.namesrv, 0, 10, "later"))

    run(main())


def test_without_a_name_server_a_consumer_does_not_start(run: Run) -> None:
    async def main() -> None:
        with pytest.raises(
            Unreachable, match=r"Cannot reach name server 127\.0\.0\.1:1 \(connection refused\)\. Is it running\?"
        ):
            await PushConsumer("CID", Gathered(), "127.0.0.1:1", subscriptions=ORDERS).start()

    run(main())


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadSettings, match="at least 1"):
        PushOptions(max_in_flight=0)
    with pytest.raises(BadSettings, match="broadcast"):
        PushOptions(offset_file="x")
    with pytest.raises(BadSettings, match="names no tag"):
        PushConsumer("CID", Gathered(), subscriptions={"orders": "||"})
