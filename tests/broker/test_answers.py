"""Request and reply between clients, through the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, ok, send_arguments

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run

TOPIC = "DefaultCluster_REPLY_TOPIC"


async def answer(client: RawClient, code: int = RequestCode.SEND_REPLY_MESSAGE, **changes: Any) -> Command:
    properties = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "c1"}
    arguments = send_arguments(TOPIC, **{"properties": properties, **changes})
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        short = dict(zip(send_arguments(TOPIC), "abcdefghi", strict=True))
        arguments = {short[name]: value for name, value in arguments.items()}
    return await client.ask(code, b"here you are", **arguments)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_an_answer_reaches_the_client_that_asked(home: BrokerHome, run: Run, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running() as broker:
            asker, other = await broker.client(), await broker.client()
            await asker.heartbeat("asker", produces=("PID",))
            reply = ok(await answer(other, code))
            pushed = await asker.notice()
            assert pushed.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            assert bytes(pushed.body) == b"here you are"
            assert "CORRELATION_ID\x01c1" in pushed.ext["properties"]
            assert "PUSH_REPLY_TIME\x01" in pushed.ext["properties"]
            assert pushed.ext["storeHost"] == broker.store.settings.store_host
            assert pushed.ext["topic"] == TOPIC
            stored = broker.store.look_up_id(reply.ext["msgId"])
            assert stored is not None
            assert (stored.topic, stored.body) == (TOPIC, b"here you are")

    run(check())


def test_answers_need_not_be_stored(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store_reply_message_enable=False) as broker:
            asker = await broker.client()
            await asker.heartbeat("asker", produces=("PID",))
            reply = ok(await answer(await broker.client()))
            assert (reply.ext["msgId"], reply.ext["queueOffset"]) == ("0", "0")
            assert broker.store.log.max_offset == 0

    run(check())


def test_who_answers_hears_that_nobody_got_it(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            reply = await answer(client)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "'asker'" in (reply.remark or "")
            assert reply.ext["queueId"] == "0"
            reply = await answer(client, properties={"CORRELATION_ID": "c1"})
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "REPLY_TO_CLIENT" in (reply.remark or "")
            reply = await answer(client, topic="SCHEDULE_TOPIC_XXXX")
            assert reply.code == ResponseCode.NO_PERMISSION

    run(check())


def test_who_answers_hears_that_it_was_refused(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            asker = await broker.client(answers={RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: ResponseCode.SYSTEM_ERROR})
            await asker.heartbeat("asker", produces=("PID",))
            reply = await answer(await broker.client())
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "refused" in (reply.remark or "")

    run(check())
