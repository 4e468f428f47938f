"""Messages that were accepted before a limit came: they are delivered, committed and sent back all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import AT_ONCE as CHECK_AT_ONCE
from support.brokers import (
    COMMIT,
    HALF,
    BrokerHome,
    RunningBroker,
    bodies,
    half_messages,
    make_round,
    ok,
    pulled,
    records,
)
from support.loopback import until

from penstock.format.constants import MAX_PROPERTIES_LENGTH
from penstock.protocol.codes import RequestCode
from penstock.store import Message, PutResult, encode_message

if TYPE_CHECKING:
    from broker.conftest import Run

DELAYED = {"message_delay_level": "0s 0s 0s 0s"}
ZEROS = "v" + "\0" * 1100


@pytest.fixture
def put_before(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stores a message as a version without today's limits would."""

    def put(broker: RunningBroker, message: Message) -> PutResult:
        with monkeypatch.context() as patch:
            patch.setattr(encode_message, "check_no_zeros", lambda encoded: None)
            result = broker.store.put(message)
        assert result.ok
        return result

    return put


def test_a_delayed_message_with_zeros_in_its_properties_is_delivered(
    home: BrokerHome, run: Run, put_before: Any
) -> None:
    async def check() -> None:
        async with home.running(store=DELAYED) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            put_before(broker, Message("orders", b"old", properties={"DELAY": "1", "a": ZEROS}))
            await until(lambda: broker.store.max_offset("orders", 0) == 2)
            (found,) = records(await pulled(broker, client, "orders", 1))
            assert (found.body, found.properties["a"]) == (b"old", ZEROS)

    run(check())


def test_a_delayed_message_is_delivered_although_messages_must_be_shorter_now(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_delay_level": "1h"}) as broker:
            ok(await (await broker.client()).send("orders", bytes(50_000), properties={"DELAY": "1"}))
        async with home.running(store={**DELAYED, "max_message_size": 1024}) as broker:
            await until(lambda: broker.store.max_offset("orders", 0) == 1)
            assert bodies(await pulled(broker, await broker.client(), "orders")) == [bytes(50_000)]

    run(check())


def test_a_message_with_zeros_in_its_properties_can_be_sent_back(home: BrokerHome, run: Run, put_before: Any) -> None:
    async def check() -> None:
        async with home.running(store=DELAYED) as broker:
            result = put_before(broker, Message("orders", b"old", properties={"a": ZEROS}))
            back = {"offset": result.physical_offset, "group": "CID", "delayLevel": 1}
            ok(await (await broker.client()).ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back))
            await until(lambda: broker.store.max_offset("%RETRY%CID", 0) == 1)

    run(check())


def half(value: str) -> Message:
    own = {"PGROUP": "PID_test", "TRAN_MSG": "true", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "U"}
    return Message(HALF, b"old", properties={**own, "a": value})


def test_a_half_message_with_zeros_in_its_properties_is_checked_and_committed(
    home: BrokerHome, run: Run, put_before: Any
) -> None:
    async def check() -> None:
        async with home.running(**CHECK_AT_ONCE) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            put_before(broker, half(ZEROS))
            assert await make_round(broker) == 1
            copy = half_messages(broker, HALF)[-1]
            assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
            end = {
                "producerGroup": "PID_test",
                "tranStateTableOffset": copy.queue_offset,
                "commitLogOffset": copy.physical_offset,
                "commitOrRollback": COMMIT,
                "msgId": "U",
            }
            ok(await client.ask(RequestCode.END_TRANSACTION, **end))
            (found,) = records(await pulled(broker, client, "orders", 1))
            assert (found.body, found.properties["a"]) == (b"old", ZEROS)

    run(check())


def test_a_half_message_without_room_for_its_count_does_not_block_the_ones_behind(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(**CHECK_AT_ONCE) as broker:
            room = MAX_PROPERTIES_LENGTH - len(encode_message.encode_properties(half("").properties or {})) - 3
            assert broker.store.put(half("v" * room)).ok
            assert broker.store.put(half("v")).ok
            await make_round(broker)
            assert [each.properties["a"] for each in half_messages(broker, HALF)[2:]] == ["v"]

    run(check())
