"""A broker with something on it: topics, groups that are behind, a dead letter, names and bodies with markup."""

from __future__ import annotations

import asyncio

from penstock.client import Later, Message, Producer, PushConsumer, PushOptions, ReceivedMessage
from penstock.testing import LocalBroker

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
ORDERS = 40


def fill(broker: LocalBroker) -> None:
    """Sends, has groups consume some of it, and leaves dead letters of group `returns`."""
    asyncio.run(_fill(broker))
    broker.settle()


async def _fill(broker: LocalBroker) -> None:
    async with Producer("PID", broker.namesrv) as producer:
        for number in range(ORDERS):
            body = b'{"order": %d, "price": "%d.50"}' % (number, number)
            await producer.send(Message("orders", body, tags="paid", keys=f"order_{number}"))
        await producer.send(Message("oddities", MARKUP.encode(), tags=MARKUP, keys="odd", properties={"note": MARKUP}))
        await producer.send(Message("oddities", bytes(range(256)), keys="binary"))
        await producer.send(Message("refunds", b"broken refund", tags="refund", keys="refund_1"))
        await producer.send(Message("refunds", b"another broken refund", tags="refund", keys="refund_2"))
    await _consume(broker, "warehouse", "orders", ORDERS)
    await _die(broker, "returns", "refunds", 2)


async def _consume(broker: LocalBroker, group: str, topic: str, count: int) -> None:
    seen: set[str] = set()
    enough = asyncio.Event()

    def take(message: ReceivedMessage) -> None:
        seen.add(message.msg_id)
        if len(seen) >= count:
            enough.set()

    async with PushConsumer(group, take, broker.namesrv, subscriptions={topic: "*"}):
        await asyncio.wait_for(enough.wait(), 60)


async def _die(broker: LocalBroker, group: str, topic: str, count: int) -> None:
    """A group that never gets on with its messages, until they are dead letters."""
    options = PushOptions(max_reconsume_times=0)
    failed: set[str] = set()
    enough = asyncio.Event()

    def fail(message: ReceivedMessage) -> Later:
        failed.add(message.msg_id)
        if len(failed) >= count:
            enough.set()
        return Later()

    async with PushConsumer(group, fail, broker.namesrv, subscriptions={topic: "*"}, options=options):
        await asyncio.wait_for(enough.wait(), 60)


def until_dead_letters(broker: LocalBroker, group: str, count: int) -> None:
    """Returns when a group has so many."""
    with broker.admin() as admin:
        while True:
            try:
                stats = admin.topics.stats(f"%DLQ%{group}")
            except Exception:
                stats = {}
            if sum(each.max_offset for each in stats.values()) >= count:
                return
