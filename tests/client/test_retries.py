"""Messages that are not consumed at the first attempt: they come again, and in the end they are dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from client.test_producer import everything
from support.clients import Gathered

from penstock.client import DeadLetter, Later, Message, Producer, PushConsumer, PushOptions, ReceivedMessage
from penstock.client.client_instance import ClientInstance
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.groups import SendBack

if TYPE_CHECKING:
    import pytest
    from client.conftest import Run

    from penstock.testing import LocalBroker

ORDERS = {"orders": "*"}


async def send(b: LocalBroker, *bodies: bytes) -> None:
    async with Producer("PID", b.namesrv) as producer:
        for body in bodies:
            await producer.send(Message("orders", body, tags="paid", keys="order_1", properties={"colour": "red"}))


def test_a_message_that_failed_comes_again_as_it_was(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        def fail_once(message: ReceivedMessage) -> None:
            if message.body == b"bad" and message.reconsume_times == 0:
                raise ValueError("not today")

        gathered = Gathered(fail_once)
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions={"orders": "paid"}):
            await send(b, b"good", b"bad")
            await gathered.until_count(3)
        first, again = (message for message in gathered.messages if message.body == b"bad")
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        assert again.topic == "orders"
        assert again.record.topic == "%RETRY%CID"
        assert again.msg_id == first.msg_id
        assert again.offset_msg_id != first.offset_msg_id
        assert (again.tags, again.keys, again.properties["colour"]) == ("paid", ("order_1",), "red")
        assert gathered.counts == {b"good": 1, b"bad": 2}

    run(main())


def test_a_message_that_fails_for_good_becomes_a_dead_letter(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered(lambda message: Later() if message.body == b"bad" else None)
        options = PushOptions(max_reconsume_times=2)
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS, options=options):
            await send(b, b"good", b"bad")
            await gathered.until_count(4)
            dead: list[ReceivedMessage] = []
            async with asyncio.timeout(30):
                while not dead:
                    await asyncio.sleep(0.05)
                    dead = await dead_letters(b)
        assert gathered.counts == {b"good": 1, b"bad": 3}
        assert [message.reconsume_times for message in gathered.messages if message.body == b"bad"] == [0, 1, 2]
        (letter,) = dead
        assert (letter.body, letter.tags, letter.properties["RETRY_TOPIC"]) == (b"bad", "paid", "orders")

    run(main())


async def dead_letters(b: LocalBroker) -> list[ReceivedMessage]:
    from penstock.errors import NoRoute

    try:
        return await everything(b, "%DLQ%CID")
    except NoRoute:
        return []


def test_a_handler_may_send_a_message_to_the_dead_letters_at_once(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered(lambda message: DeadLetter("hopeless"))
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
            await send(b, b"hopeless")
            async with asyncio.timeout(30):
                while not await dead_letters(b):
                    await asyncio.sleep(0.05)
        assert gathered.counts == {b"hopeless": 1}

    run(main())


def test_a_handler_that_takes_too_long_has_failed(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered = Gathered()
        cancelled = []

        async def slow(message: ReceivedMessage) -> None:
            await gathered(message)
            if message.reconsume_times == 0:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(message.body)
                    raise

        options = PushOptions(consume_timeout_s=0.2)
        async with PushConsumer("CID", slow, b.namesrv, subscriptions=ORDERS, options=options):
            await send(b, b"slow")
            await gathered.until_count(2)
        assert cancelled == [b"slow"]

    run(main())


def test_where_the_broker_does_not_take_a_message_back_a_copy_is_retried(
    run: Run, b: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The physical offset is wrong on purpose, so that code 36 finds no message."""
    request = ClientInstance.request

    async def spoil(self: ClientInstance, address: str, code: RequestCode, header: object = None, *rest, **more):  # type: ignore[no-untyped-def]
        if isinstance(header, SendBack):
            header.offset = 999_999_999
        return await request(self, address, code, header, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientInstance, "request", spoil)

    async def main() -> None:
        gathered = Gathered(lambda message: Later() if message.reconsume_times == 0 else None)
        async with PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS):
            await send(b, b"bad")
            await gathered.until_count(2)
        first, again = gathered.messages
        assert again.reconsume_times == 1
        assert (again.topic, again.record.topic) == ("orders", "%RETRY%CID")
        assert again.properties["ORIGIN_MESSAGE_ID"] == first.msg_id

    run(main())


def test_a_body_that_cannot_be_inflated_fails_like_any_message(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async def read(message: ReceivedMessage) -> None:
            assert message.body

        gathered = Gathered()

        async def handle(message: ReceivedMessage) -> None:
            gathered.messages.append(message)
            gathered._came.set()
            await read(message)

        options = PushOptions(body_limit=100_000, max_reconsume_times=0)
        async with PushConsumer("CID", handle, b.namesrv, subscriptions=ORDERS, options=options):
            await send(b, b"\0" * 100_001)  # a few hundred bytes on the wire
            await gathered.until(lambda: len(gathered.messages) == 1)
            async with asyncio.timeout(30):
                while not await dead_letters(b):
                    await asyncio.sleep(0.05)

    run(main())
