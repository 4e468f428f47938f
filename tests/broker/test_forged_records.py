"""A record in the body of a message is no message, whichever request names its offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.brokers import BrokerHome, RawClient, RunningBroker, ok, send_half

from penstock.format.constants import HALF_TOPIC, OP_HALF_TOPIC, PGROUP, REAL_QID, REAL_TOPIC
from penstock.format.record import Record, encode_record
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run

_BODY_AT = 88
"""The start of the body in a record with IPv4 addresses."""
FORGED = {PGROUP: "G", REAL_TOPIC: "orders", REAL_QID: "77777"}


async def send_forged(broker: RunningBroker, client: RawClient) -> int:
    """Sends a message whose body is a half message of somebody else. Returns the physical offset of the forgery."""
    offset = broker.store.watermarks.appended + _BODY_AT
    half = Record(topic=HALF_TOPIC, queue_offset=0, body=b"forged", properties=FORGED, physical_offset=offset)
    ok(await client.send("mine", encode_record(half)))
    assert broker.store.records.raw(offset, len(encode_record(half)))[0] is not None
    return offset


def test_a_forged_record_is_not_shown_by_its_offset(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            offset = await send_forged(broker, client)
            reply = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.body == b""

    run(check())


def test_a_forged_record_cannot_be_sent_back(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            offset = await send_forged(broker, client)
            reply = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=offset, group="CID_test", delayLevel=0)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert f"no message at offset {offset}" in (reply.remark or "")

    run(check())


def test_a_forged_half_message_ends_no_transaction_and_makes_no_queue(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await send_half(client))  # of somebody else, at queue offset 0
            offset = await send_forged(broker, client)
            for outcome in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
                reply = await client.ask(
                    RequestCode.END_TRANSACTION,
                    producerGroup="G",
                    tranStateTableOffset=0,
                    commitLogOffset=offset,
                    commitOrRollback=outcome,
                    msgId="any",
                )
                assert reply.code == ResponseCode.SYSTEM_ERROR
                assert "no half message" in (reply.remark or "")
            broker.store.catch_up()
            assert broker.store.queues.find("orders", 77777) is None
            assert broker.store.max_offset(OP_HALF_TOPIC, 0) == 0

    run(check())
