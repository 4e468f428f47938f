"""Ordered consumption: one message of a queue at a time, also after failures and rebalancing."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from client.test_retries import dead_letters
from support.clients import SOON_S, Gathered, until_true

from penstock.client import Later, Message, MessageQueue, Producer, PushConsumer, PushOptions, ReceivedMessage

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

ORDERS = {"orders": "*"}
_moments = itertools.count()
OPTIONS = PushOptions(ordered=True, suspend_s=0.05)


async def send_keyed(namesrv: str, begin: int, end: int, keys: int = 8) -> None:
    async with Producer("PID", namesrv) as producer:
        for number in range(begin, end):
            await producer.send(Message("orders", b"%d" % number, sharding_key=f"k{number % keys}"))


class InOrder(Gathered):
    """Gathers messages queue by queue, and notices two of one queue at once."""

    def __init__(self, fails: object = None) -> None:
        super().__init__(fails)  # type: ignore[arg-type]
        self.busy: set[int] = set()
        self.overlaps = 0
        """How often two messages of one queue were with the handler at once."""

    @staticmethod
    def came_at(message: ReceivedMessage) -> int:
        moment: int = message.came_at  # type: ignore[attr-defined]
        return moment

    async def __call__(self, message: ReceivedMessage) -> Later | None:
        message.came_at = next(_moments)  # type: ignore[attr-defined]
        if message.record.topic.startswith("%RETRY%"):
            return await super().__call__(message)
        self.overlaps += message.queue_id in self.busy
        self.busy.add(message.queue_id)
        await asyncio.sleep(0)
        try:
            return await super().__call__(message)
        finally:
            self.busy.discard(message.queue_id)

    def offsets(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for message in self.messages:
            found[message.queue_id].append(message.queue_offset)
        return found


def assert_in_order(*gathered: InOrder) -> None:
    """One at a time, and when a message came for the first time, to whom ever, all those before it had come."""
    assert [each.overlaps for each in gathered] == [0] * len(gathered)
    came: dict[MessageQueue, list[int]] = defaultdict(list)
    for message in sorted((message for each in gathered for message in each.messages), key=InOrder.came_at):
        came[message.queue].append(message.queue_offset)
    for offsets in came.values():
        first_times = list(dict.fromkeys(offsets))
        assert first_times == sorted(first_times)


def test_every_queue_is_consumed_in_order(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = InOrder()
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=OPTIONS):
            await send_keyed(b.namesrv, 0, 200)
            await gathered.until_count(200)
        assert_in_order(gathered)
        for offsets in gathered.offsets().values():
            assert offsets == list(range(len(offsets)))
        for key in range(8):
            mine = [int(m.body) for m in gathered.messages if m.properties["__SHARDINGKEY"] == f"k{key}"]
            assert mine == sorted(mine)

    run(main())


def test_a_message_that_fails_holds_up_its_queue_and_no_other(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        failures = {b"5": 3}

        def fail(message: ReceivedMessage) -> None:
            if failures.get(message.body, 0) > 0:
                failures[message.body] -= 1
                raise ValueError("not yet")

        gathered = InOrder(fail)
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=OPTIONS):
            await send_keyed(b.namesrv, 0, 80)
            await gathered.until(lambda: len(set(gathered.bodies)) == 80)
        times = [message.reconsume_times for message in gathered.messages if message.body == b"5"]
        assert len(times) == 4
        assert gathered.messages[0].reconsume_times == 0
        queue = next(message.queue_id for message in gathered.messages if message.body == b"5")
        place = next(message.queue_offset for message in gathered.messages if message.body == b"5")
        offsets = gathered.offsets()[queue]
        first = offsets.index(place)
        assert offsets[first : first + 4] == [place] * 4, "others of the queue came in between"
        assert_in_order(gathered)

    run(main())


def test_after_its_last_retry_a_message_is_a_dead_letter_and_the_queue_goes_on(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = InOrder(lambda message: Later() if message.body == b"3" else None)
        options = PushOptions(ordered=True, suspend_s=0.01, max_reconsume_times=2)
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            await send_keyed(b.namesrv, 0, 20, keys=1)
            await gathered.until_has({b"%d" % number for number in range(20)})
            async with asyncio.timeout(SOON_S):
                while not (letters := await dead_letters(b)):
                    await asyncio.sleep(0.05)
        assert [letter.body for letter in letters] == [b"3"]
        assert gathered.counts[b"3"] == 3
        assert_in_order(gathered)

    run(main())


def test_two_consumers_in_order_and_one_of_them_leaves(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        one, two = InOrder(), InOrder()
        async with PushConsumer("CID", one, b.namesrv, subscriptions=ORDERS, options=OPTIONS) as first:
            second = await PushConsumer("CID", two, b.namesrv, subscriptions=ORDERS, options=OPTIONS).start()
            await until_true(lambda: len(orders_of(first)) == len(orders_of(second)) == 2)
            sending = asyncio.create_task(send_keyed(b.namesrv, 0, 400))
            await until_true(lambda: len(one.messages) + len(two.messages) >= 100)
            await second.close()
            await sending
            await until_true(lambda: len(set(one.bodies) | set(two.bodies)) == 400)
        assert_in_order(one, two)
        last_of_second = {queue: max(offsets) for queue, offsets in two.offsets().items()}
        for queue, offsets in one.offsets().items():
            if queue in last_of_second:  # taken over: from where the other had stopped, nothing twice
                assert min(offsets) == last_of_second[queue] + 1

    run(main())


def orders_of(consumer: PushConsumer) -> set[int]:
    return {queue.queue_id for queue in consumer.assigned if queue.topic == "orders"}


def test_a_queue_that_another_client_has_locked_is_left_alone(run: Run, b: LocalBroker) -> None:
    """A member that the others do not see, as after a broker's restart: its lock decides."""

    async def main() -> None:
        from penstock.client.client_instance import ClientInstance
        from penstock.client.queue_locks import ClientQueueLocks

        stranger = ClientInstance(b.namesrv)
        route = await stranger.routes.find("orders")
        locks = ClientQueueLocks(stranger, "CID")
        taken = list(route.subscribe_queues)[:2]
        await locks.lock(taken)
        assert all(locks.holds(queue) for queue in taken)
        gathered = InOrder()
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=OPTIONS) as consumer:
            await until_true(lambda: len(orders_of(consumer)) == 2)
            await send_keyed(b.namesrv, 0, 80)
            free = {queue.queue_id for queue in route.subscribe_queues} - {queue.queue_id for queue in taken}
            await gathered.until(lambda: {message.queue_id for message in gathered.messages} == free)
            assert orders_of(consumer) == free
            await locks.unlock(taken)
            await gathered.until(lambda: len(set(gathered.bodies)) == 80)
        await stranger.close()
        assert_in_order(gathered)

    run(main())


def test_a_queue_that_moves_stays_locked_as_long_as_its_handler_runs(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        began, may_end = asyncio.Event(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            began.set()
            await may_end.wait()

        loop = asyncio.get_running_loop()
        options = PushOptions(ordered=True, consume_from="first")
        await send_keyed(b.namesrv, 0, 1)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options) as slow:
            await began.wait()
            locks = slow._locks
            assert locks is not None
            (queue,) = [each for each, held in slow._assignments.table.items() if held.cached_offsets]
            slow._assignments.remove(queue)  # as a rebalance does
            almost_over = locks._held[queue] = loop.time() + 5
            await slow._renew_locks()
            assert locks._held[queue] > almost_over
            may_end.set()

    run(main())
