"""Messages that appear when their sender's own transaction is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from client.test_producer import everything
from support.clients import Gathered, until_true

from penstock.client import Message, PushConsumer, ReceivedMessage, TransactionProducer, TransactionState
from penstock.errors import BadMessage, BadSettings
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
SOON = {"transactionTimeOut": 100, "transactionCheckInterval": 200}
ORDERS = {"orders": "*"}


def never(message: ReceivedMessage) -> TransactionState:
    raise AssertionError("no check was expected")


def saying(state: TransactionState) -> Callable[[Message], TransactionState]:
    return lambda message: state


def test_a_commit_shows_the_message_and_a_rollback_does_not(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        gathered, seen_before = Gathered(), []

        async def book(message: Message) -> TransactionState:
            seen_before.append(list(gathered.bodies))
            return COMMIT

        async with (
            PushConsumer("CID", gathered, b.namesrv, subscriptions=ORDERS),
            TransactionProducer("PID", never, b.namesrv) as producer,
        ):
            dropped = await producer.send_in_transaction(Message("orders", b"no"), saying(ROLLBACK))
            assert (dropped.state, dropped.is_ended) == (ROLLBACK, True)
            sent = await producer.send_in_transaction(Message("orders", b"yes", tags="paid", keys="k"), book)
            assert (sent.state, sent.is_ended, sent.sent.ok) == (COMMIT, True, True)
            await gathered.until_count(1)
        assert seen_before == [[]]
        assert gathered.bodies == [b"yes"]
        (message,) = gathered.messages
        assert (message.topic, message.tags, message.keys, message.msg_id) == (
            "orders",
            "paid",
            ("k",),
            sent.sent.msg_id,
        )
        assert [message.body for message in await everything(b, "orders")] == [b"yes"]

    run(main())


def test_what_is_not_known_is_asked_about_until_it_is(run: Run) -> None:
    async def main(namesrv: str) -> None:
        gathered = Gathered()
        asked: list[bytes] = []

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.body)
            assert message.topic == "orders"
            if message.body == b"never":
                return ROLLBACK
            return COMMIT if asked.count(message.body) > 1 else UNKNOWN

        async with (
            PushConsumer("CID", gathered, namesrv, subscriptions=ORDERS),
            TransactionProducer("PID", check, namesrv) as producer,
        ):
            result = await producer.send_in_transaction(Message("orders", b"later"), saying(UNKNOWN))
            assert (result.state, result.is_ended) == (UNKNOWN, False)
            await producer.send_in_transaction(Message("orders", b"never"), saying(UNKNOWN))
            await gathered.until_count(1)
            await until_true(lambda: b"never" in asked)
        assert gathered.bodies == [b"later"]
        assert asked.count(b"later") >= 2  # once more, where the answer was still under way at the next round

    with broker(["orders"], settings=SOON) as b:
        run(main(b.namesrv))


def test_another_producer_of_the_group_answers_for_one_that_is_gone(run: Run) -> None:
    async def main(namesrv: str) -> None:
        gathered = Gathered()
        async with PushConsumer("CID", gathered, namesrv, subscriptions=ORDERS):
            async with TransactionProducer("PID", saying_unknown, namesrv) as gone:
                await gone.send_in_transaction(Message("orders", b"orphan"), saying(UNKNOWN))
            async with TransactionProducer("PID", lambda message: COMMIT, namesrv):
                await gathered.until_count(1)  # without ever having sent anything
        assert gathered.bodies == [b"orphan"]

    def saying_unknown(message: ReceivedMessage) -> TransactionState:
        return UNKNOWN

    with broker(["orders"], settings=SOON) as b:
        run(main(b.namesrv))


def test_an_error_in_the_senders_part_is_raised_and_the_check_decides(run: Run) -> None:
    async def main(namesrv: str) -> None:
        gathered, asked = Gathered(), asyncio.Event()

        def check(message: ReceivedMessage) -> TransactionState:
            asked.set()
            return COMMIT

        def fail(message: Message) -> TransactionState:
            raise KeyError("the database is away")

        async with (
            PushConsumer("CID", gathered, namesrv, subscriptions=ORDERS),
            TransactionProducer("PID", check, namesrv) as producer,
        ):
            with pytest.raises(KeyError):
                await producer.send_in_transaction(Message("orders", b"x"), fail)
            await gathered.until_count(1)
            assert asked.is_set()

    with broker(["orders"], settings=SOON) as b:
        run(main(b.namesrv))


def test_a_transaction_has_no_delay(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with TransactionProducer("PID", never, b.namesrv) as producer:
            with pytest.raises(BadMessage, match="cannot have a delay"):
                await producer.send_in_transaction(Message("orders", b"x", delay_level=1), saying(COMMIT))
            assert (await producer.send(Message("orders", b"plain"))).ok

    run(main())


def test_a_program_that_forgets_to_answer_is_told_so_and_the_transaction_stays_open(run: Run) -> None:
    checks = [None, COMMIT]

    def check(message: ReceivedMessage) -> TransactionState:
        return checks.pop(0) if len(checks) > 1 else checks[0]  # type: ignore[return-value]

    async def main(namesrv: str) -> None:
        gathered = Gathered()
        async with (
            PushConsumer("CID", gathered, namesrv, subscriptions=ORDERS),
            TransactionProducer("PID", check, namesrv) as producer,
        ):
            with pytest.raises(BadSettings, match="must be a TransactionState, not None"):
                await producer.send_in_transaction(Message("orders", b"x"), saying(None))  # type: ignore[arg-type]
            await gathered.until_has({b"x"})

    with broker(["orders"], settings=SOON) as b:
        run(main(b.namesrv))
