"""Reading queues at one's own pace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from client.test_push_consumer import send_numbers

from penstock.client import Message, MessageQueue, Producer, PullConsumer, PullStatus
from penstock.errors import NoRoute, PenstockError, Unreachable

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker


async def fill(b: LocalBroker, count: int, tag: str = "") -> MessageQueue:
    """Messages 0 to `count` in the first queue of `orders`."""
    async with Producer("PID", b.namesrv) as producer:
        queue = (await producer.queues("orders"))[0]
        batch = [Message("orders", b"%d" % number, tags=f"{tag}{number % 2}") for number in range(count)]
        await producer.send_batch(batch, queue=queue)
    b.settle()
    return queue


def test_pages_follow_each_other_to_the_end(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        queue = await fill(b, 100)
        async with PullConsumer("CID", b.namesrv) as consumer:
            first = await consumer.pull(queue, 0, max_messages=10)
            assert first.status is PullStatus.FOUND
            assert [message.body for message in first.messages] == [b"%d" % number for number in range(10)]
            assert (first.next_offset, first.min_offset, first.max_offset) == (10, 0, 100)
            assert (await consumer.pull(queue, 100)).status is PullStatus.NO_NEW_MSG
            beyond = await consumer.pull(queue, 500)
            assert (beyond.status, beyond.messages) == (PullStatus.OFFSET_ILLEGAL, [])

    run(main())


def test_tags_are_selected_and_what_is_not_wanted_is_passed_over(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        queue = await fill(b, 40, "t")
        async with PullConsumer("CID", b.namesrv) as consumer:
            page = await consumer.pull(queue, 0, expression="t1")
            assert {message.tags for message in page.messages} == {"t1"}
            none = await consumer.pull(queue, 0, expression="t7")
            assert none.status is PullStatus.NO_MATCHED_MSG
            assert none.next_offset > 0

    run(main())


def test_a_pull_waits_for_the_next_message(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        queue = await fill(b, 3)
        async with PullConsumer("CID", b.namesrv) as consumer, Producer("PID", b.namesrv) as producer:
            waiting = asyncio.create_task(consumer.pull(queue, 3, wait_s=20))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await producer.send(Message("orders", b"new"), queue=queue)
            assert [message.body for message in (await waiting).messages] == [b"new"]

    run(main())


def test_offsets_of_a_queue_and_of_a_group(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        queue = await fill(b, 10)
        async with PullConsumer("CID", b.namesrv) as consumer:
            offsets = consumer.offsets
            assert (await offsets.min_offset(queue), await offsets.max_offset(queue)) == (0, 10)
            message = (await consumer.pull(queue, 0)).messages[0]
            assert await offsets.earliest_time(queue) == message.store_timestamp
            assert await offsets.offset_by_time(queue, 0) == 0
            assert await offsets.offset_by_time(queue, 2**62) in (9, 10)
            assert await offsets.committed("CID", queue, exact=True) is None
            assert await offsets.committed("CID", queue) == 0  # the queue is young enough to be read whole
            await offsets.commit("CID", queue, 7)
            assert await offsets.committed("CID", queue) == 7

    run(main())


def test_polls_go_through_all_queues_and_commits_are_where_the_next_goes_on(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        sent = await send_numbers(b.namesrv, 0, 100)
        found: list[bytes] = []
        async with PullConsumer("CID", b.namesrv, max_messages=10) as consumer:
            consumer.assign(await consumer.queues("orders"))
            while len(found) < 60:
                found += [message.body for message in await consumer.poll()]
            await consumer.commit()
        async with PullConsumer("CID", b.namesrv) as consumer:
            consumer.assign(await consumer.queues("orders"))
            while len(found) < 100:
                found += [message.body for message in await consumer.poll()]
            assert await consumer.poll(0.05) == []
        assert sorted(found) == sorted(sent)

    run(main())


def test_a_poll_begins_where_the_reader_seeks(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        queue = await fill(b, 20)
        async with PullConsumer("CID", b.namesrv) as consumer:
            with pytest.raises(PenstockError, match="is not assigned"):
                consumer.seek(queue, 5)
            consumer.assign([queue])
            assert await consumer.position(queue) == 0
            consumer.seek(queue, 15)
            assert [message.body for message in await consumer.poll()] == [b"15", b"16", b"17", b"18", b"19"]
            assert await consumer.position(queue) == 20
            assert await consumer.seek_to_time(queue, 0) == 0
            assert (await consumer.poll())[0].body == b"0"
            consumer.assign([])
            assert consumer.assigned == []
            assert await consumer.poll(0.01) == []

    run(main())


def test_what_goes_wrong_is_raised_where_the_reader_waits(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        queue = await fill(b, 1)
        async with PullConsumer("CID", b.namesrv) as consumer:
            with pytest.raises(NoRoute, match="no broker has topic '%DLQ%unknown'"):
                await consumer.queues("%DLQ%unknown")
            consumer.assign([queue])
            assert len(await consumer.poll()) == 1
            await asyncio.to_thread(b.stop)
            with pytest.raises(Unreachable):
                await poll_for_ever(consumer)

    async def poll_for_ever(consumer: PullConsumer) -> None:
        while True:
            await consumer.poll(5)

    run(main())
