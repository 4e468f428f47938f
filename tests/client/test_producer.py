"""Sending through the client to a real broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from support.clients import Gathered

from penstock.client import (
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)
from penstock.errors import BadMessage, NoRoute, Refused
from penstock.format.sys_flag import COMPRESSED
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker


async def everything(b: LocalBroker, topic: str) -> list[ReceivedMessage]:
    """All messages of a topic, by queue and offset."""
    b.settle()
    found = []
    async with PullConsumer("look", b.namesrv) as consumer:
        for queue in await consumer.queues(topic):
            offset = 0
            while (page := await consumer.pull(queue, offset)).messages:
                found += page.messages
                offset = page.next_offset
    return found


def test_a_message_is_stored_with_all_that_it_has(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        sent = Message(
            "orders",
            b"two shirts",
            tags="paid",
            keys=("order_1", "all"),
            properties={"colour": "rot, grün", "TRACE_CONTEXT": "x-1"},
            flag=7,
        )
        async with Producer("PID", b.namesrv) as producer:
            result = await producer.send(sent)
        assert result.ok
        assert result.status is SendStatus.SEND_OK
        assert len(result.msg_id) == 32
        assert result.region == "DefaultRegion"
        (message,) = await everything(b, "orders")
        assert (message.topic, message.body, message.tags, message.keys) == (
            "orders",
            b"two shirts",
            "paid",
            ("order_1", "all"),
        )
        assert message.properties["colour"] == "rot, grün"
        assert message.properties["TRACE_CONTEXT"] == "x-1"
        assert message.record.flag == 7
        assert (message.msg_id, message.offset_msg_id) == (result.msg_id, result.offset_msg_id)
        assert (message.queue, message.queue_offset) == (result.queue, result.queue_offset)
        assert abs(message.born_timestamp - time.time_ns() // 1_000_000) < 60_000

    run(main())


def test_messages_take_turns_at_the_queues(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            results = [await producer.send(Message("orders", b"%d" % number)) for number in range(8)]
            turns = [result.queue.queue_id for result in results]
            assert turns[:4] == turns[4:]
            assert sorted(turns[:4]) == [0, 1, 2, 3]
            assert {result.queue for result in results} == set(await producer.queues("orders"))

    run(main())


def test_messages_of_one_sharding_key_stay_together_and_in_order(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            for number in range(40):
                await producer.send(Message("orders", b"%d" % number, sharding_key=f"customer_{number % 5}"))
        found = await everything(b, "orders")
        for customer in range(5):
            key = f"customer_{customer}"
            mine = [message for message in found if message.properties["__SHARDINGKEY"] == key]
            assert len({message.queue for message in mine}) == 1
            assert [int(message.body) for message in mine] == list(range(customer, 40, 5))
        assert len({message.queue for message in found}) > 1

    run(main())


def test_a_queue_may_be_chosen(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            third = (await producer.queues("orders"))[2]
            results = [await producer.send(Message("orders", b"x"), queue=third) for _ in range(3)]
            assert [(result.queue, result.queue_offset) for result in results] == [(third, 0), (third, 1), (third, 2)]
            with pytest.raises(NoRoute, match="queue of topic 'orders' given"):
                await producer.send(Message("others", b"x"), queue=third)

    run(main())


def test_many_sends_at_once_are_all_answered(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            bodies = [b"%d" % number for number in range(500)]
            results = await asyncio.gather(*(producer.send(Message("orders", body)) for body in bodies))
        assert len({result.offset_msg_id for result in results}) == 500
        assert sorted(message.body for message in await everything(b, "orders")) == sorted(bodies)

    run(main())


def test_a_batch_is_one_queue_and_consecutive_offsets(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            messages = [Message("orders", b"%d" % number, tags=f"t{number}", keys="k") for number in range(10)]
            results = await producer.send_batch(messages)
        assert [result.queue for result in results] == [results[0].queue] * 10
        assert [result.queue_offset for result in results] == list(range(10))
        found = await everything(b, "orders")
        assert [message.body for message in found] == [message.body for message in messages]
        assert [message.tags for message in found] == [message.tags for message in messages]
        assert [message.msg_id for message in found] == [result.msg_id for result in results]
        assert [message.offset_msg_id for message in found] == [result.offset_msg_id for result in results]

    run(main())


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([], "at least one"),
        ([Message("a", b""), Message("b", b"")], "the same topic"),
        ([Message("a", b""), Message("a", b"", wait=False)], "the same `wait`"),
        ([Message("a", b"", delay_level=1)], "a delay"),
        ([Message("%RETRY%a", b"")], "a retry topic"),
        ([Message("a", b"", sharding_key="1"), Message("a", b"", sharding_key="2")], "the same sharding key"),
        ([Message("a", b"x" * 3_000_000), Message("a", b"x" * 3_000_000)], "send it in parts"),
        ([Message("a", b"")] * 31_279, "a batch has 31279 messages; the limit is 31278, .*; send it in parts"),
    ],
)
def test_what_cannot_be_a_batch_is_refused(run: Run, b: LocalBroker, messages: list[Message], why: str) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            with pytest.raises(BadMessage, match=why):
                await producer.send_batch(messages)

    run(main())


def test_a_one_way_message_arrives(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with (
            PushConsumer("CID", gathered, b.namesrv, subscriptions={"orders": "*"}),
            Producer("PID", b.namesrv) as producer,
        ):
            for number in range(100):
                await producer.send_oneway(Message("orders", b"%d" % number))
            await gathered.until_has({b"%d" % number for number in range(100)})

    run(main())


def test_large_bodies_travel_compressed(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            await producer.send(Message("orders", b"x" * 4095, keys="small"))
            await producer.send(Message("orders", b"x" * 4096, keys="large"))
        found = {message.keys[0]: message for message in await everything(b, "orders")}
        assert not found["small"].record.sys_flag & COMPRESSED
        assert found["large"].record.sys_flag & COMPRESSED
        assert len(found["large"].record.body) < 100
        assert found["large"].body == b"x" * 4096

    run(main())


def test_a_delayed_message_comes_when_it_is_due(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        async with (
            PushConsumer("CID", gathered, b.namesrv, subscriptions={"orders": "*"}),
            Producer("PID", b.namesrv) as producer,
        ):
            await producer.send(Message("orders", b"later", delay_level=1))
            await gathered.until_count(1)
            message = gathered.messages[0]
            assert message.store_timestamp - message.born_timestamp >= 1000

    run(main())


def test_a_topic_is_made_by_its_first_message(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            results = [await producer.send(Message("brand-new", b"%d" % number)) for number in range(8)]
        assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
        assert len(await everything(b, "brand-new")) == 8

    run(main())


def test_without_automatic_topics_there_is_no_route(run: Run) -> None:
    async def main(namesrv: str) -> None:
        async with Producer("PID", namesrv) as producer:
            with pytest.raises(NoRoute, match="no broker has topic 'unknown'"):
                await producer.send(Message("unknown", b"x"))

    with broker({"orders": 1}, settings={"autoCreateTopicEnable": False}) as b:
        run(main(b.namesrv))


def test_what_the_broker_refuses_carries_its_code(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv, options=ProducerOptions(compress_over=10**9)) as producer:
            with pytest.raises(Refused) as caught:
                await producer.send(Message("orders", b"x" * 3_000_000))  # the profile dev takes 512 KiB
            assert caught.value.code == 13
            assert caught.value.remark
            with pytest.raises(BadMessage, match="the limit is"):
                await producer.send(Message("orders", b"x" * 5_000_000))
            nowhere = MessageQueue(broker_name="broker-a", queue_id=99, topic="orders")
            with pytest.raises(Refused, match="no queue 99"):
                await producer.send(Message("orders", b"x"), queue=nowhere)

    run(main())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("", b""),
        lambda: Message("no spaces", b""),
        lambda: Message("x" * 128, b""),
        lambda: Message("t", b"", properties={"a\x01b": "c"}),
        lambda: Message("t", b"", tags="a\x02b"),
    ],
)
def test_a_message_that_no_broker_could_store_cannot_be_created(make: object) -> None:
    with pytest.raises(BadMessage):
        make()  # type: ignore[operator]
