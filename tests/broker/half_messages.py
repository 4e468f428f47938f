"""Steps of a transaction as a producer and the broker take them."""

from __future__ import annotations

from typing import Any

from broker.raw_client import RawClient, RunningBroker, ok

from penstock.format.message_id import decode_message_id
from penstock.format.record import Record
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
SYSTEM_GROUP = "CID_RMQ_SYS_TRANS"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
AT_ONCE: dict[str, Any] = {"transaction_time_out": 0, "transaction_check_interval": 3_600_000}
"""Old enough to be asked about as soon as it is there; tests make the rounds themselves."""


async def send_half(client: RawClient, body: bytes = b"paid", topic: str = "orders", **changes: Any) -> Command:
    properties = {"TRAN_MSG": "true", "PGROUP": "PID_test", "UNIQ_KEY": "U1", "TAGS": "t"}
    properties |= changes.pop("properties", {})
    return ok(await client.send(topic, body, properties=properties, sysFlag=4, **changes))


def ending(half: Command, outcome: int, **changes: object) -> dict[str, object]:
    """The arguments that end the transaction of a half message, as a producer takes them from the reply to its send."""
    return {
        "producerGroup": "PID_test",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": decode_message_id(half.ext["msgId"])[1],
        "commitOrRollback": outcome,
        "fromTransactionCheck": False,
        "msgId": "U1",
        **changes,
    }


async def end(client: RawClient, half: Command, outcome: int, **changes: object) -> Command:
    return await client.ask(RequestCode.END_TRANSACTION, **ending(half, outcome, **changes))


async def asked(client: RawClient) -> Command:
    """The broker's question about a transaction."""
    question = await client.notice()
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert question.is_oneway
    return question


async def answer(client: RawClient, question: Command, outcome: int) -> None:
    arguments = {
        "producerGroup": "PID_test",
        "tranStateTableOffset": question.ext["tranStateTableOffset"],
        "commitLogOffset": question.ext["commitLogOffset"],
        "commitOrRollback": outcome,
        "fromTransactionCheck": True,
        "msgId": question.ext["msgId"],
    }
    ok(await client.ask(RequestCode.END_TRANSACTION, **arguments))


def messages(broker: RunningBroker, topic: str, queue_id: int = 0) -> list[Record]:
    return broker.store.get(topic, queue_id, 0).messages


async def pulled(broker: RunningBroker, client: RawClient, topic: str, offset: int = 0, **changes: Any) -> Command:
    """What a pull gives once all that was stored is in its queue."""
    broker.store.catch_up()
    return await client.pull(topic, offset, **changes)


async def make_round(broker: RunningBroker) -> int:
    return await broker.broker.transaction_check.round()
