"""The peculiarities of remoting around sends, pulls and queries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.brokers import WAIT_S, BrokerHome, ok, send_arguments

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import sign

if TYPE_CHECKING:
    from broker.conftest import Run

ALWAYS = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE])
def test_a_refused_send_has_the_region_unless_the_broker_accepts_no_message_at_all(
    home: BrokerHome, run: Run, code: RequestCode
) -> None:
    async def check() -> None:
        async with home.running(auto_create_topic_enable=False) as broker:
            client = await broker.client()
            refused = await client.ask(code, b"x", **send_arguments("nowhere"))
            assert (refused.code, refused.ext) == (ResponseCode.TOPIC_NOT_EXIST, ALWAYS)
            broker.broker.write_guard.close("test", "no more")
            denied = await client.ask(code, b"x", **send_arguments("nowhere"))
            assert (denied.code, denied.ext) == (ResponseCode.SERVICE_NOT_AVAILABLE, {})

    run(check())


@pytest.mark.parametrize("sync", [False, True])
def test_a_one_way_send_is_stored_and_gets_no_reply(home: BrokerHome, run: Run, sync: bool) -> None:
    async def check() -> None:
        async with home.running(sync=sync) as broker:
            client = await broker.client()
            for _ in range(2):  # the second one takes the fast path
                client.tell(RequestCode.SEND_MESSAGE, b"one-way", **send_arguments("orders"))
            assert ok(await client.send("orders")).ext["queueOffset"] == "2"
            assert len(broker.broker.pending_acks) == 0

    run(check())


@pytest.mark.parametrize("code", [RequestCode.QUERY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE])
def test_the_next_request_of_a_connection_lends_its_account_to_no_other(
    home: BrokerHome, run: Run, tmp_path: Path, code: RequestCode
) -> None:
    """Both arrive in one read, and the first one is answered later."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n- {accessKey: weakling, secretKey: very-secret}\n"
        "- {accessKey: strongest, secretKey: very-secret, topicPerms: [orders=PUB|SUB]}\n"
    )
    path.chmod(0o600)

    async def check() -> None:
        async with home.running(acl_enable=True, acl_file=path) as broker:
            client = await broker.client()
            query = {"topic": "orders", "key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": "9"}
            arguments = {name: str(value) for name, value in send_arguments("orders").items()} | query
            asked = []
            for account in ("weakling", "strongest"):
                command = Command(code, dict(arguments), b"x")
                sign(command, account, "very-secret")
                asked.append(asyncio.create_task(client.connection.request(command, WAIT_S)))
            weak, strong = await asyncio.gather(*asked)
            assert "account 'weakling' is not allowed" in (weak.remark or "")
            assert "is not allowed" not in (strong.remark or "")

    run(check())
