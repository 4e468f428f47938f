"""Handlers that the adapter makes of operations."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from support.core_clients import PlainClient

from penstock.broker.operations_as_plain_calls import Answer, Client, Denied, Operation
from penstock.broker.remoting.adapt_operations import adapt
from penstock.errors import BadRequest
from penstock.format.config_tables import TopicConfig
from penstock.protocol.bodies.admin import TopicList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import TopicName
from penstock.protocol.headers.offsets import OffsetReply
from penstock.remoting.connection import Connection


def ask(operation: Operation, command: Command | None = None, **how: Any) -> Command:
    result = adapt(operation, **how)(cast(Connection, PlainClient()), command or Command(1))
    return asyncio.run(cast(Any, result)) if not isinstance(result, Command) else result


@pytest.mark.parametrize(
    ("outcome", "remark", "ext", "body"),
    [
        (None, None, {}, b""),
        (TopicList(topic_list=["t"]), None, {}, b'{"topicList":["t"]}'),
        (b"raw", None, {}, b"raw"),
        (OffsetReply(offset=7), None, {"offset": "7"}, b""),
        ((OffsetReply(offset=7), b"raw"), None, {"offset": "7"}, b"raw"),
        ("until it stops", "until it stops", {}, b""),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_an_outcome_becomes_a_reply(
    outcome: Any, remark: str | None, ext: dict[str, str], body: bytes, later: bool
) -> None:
    async def come_later(client: Client) -> Any:
        return outcome

    reply = ask(Operation("test", come_later if later else lambda client: outcome))
    assert (reply.code, reply.remark, reply.ext, reply.body) == (ResponseCode.SUCCESS, remark, ext, body)


def test_a_table_is_encoded_as_its_file_is() -> None:
    reply = ask(Operation("test", lambda client: TopicConfig(name="t", read_queue_nums=1, write_queue_nums=1)))
    assert b'"topicName":"t"' in bytes(reply.body)


def test_a_clients_answer_is_passed_on() -> None:
    answer = Answer(ResponseCode.SYSTEM_ERROR, "no", b"why", {"a": "b"})
    reply = ask(Operation("test", lambda client: answer))
    assert (reply.code, reply.remark, reply.body, reply.ext) == answer


def test_the_request_is_read_only_after_the_client_is_admitted() -> None:
    def admit(client: Client) -> None:
        raise Denied(ResponseCode.NO_PERMISSION, "not you")

    operation = Operation("test", lambda client, request, body: request.topic + body)
    missing = Command(RequestCode.GET_TOPIC_CONFIG)
    with pytest.raises(Denied):
        ask(operation._replace(admit=admit), missing, kind=TopicName, body=str)
    with pytest.raises(BadRequest, match="topic"):
        ask(operation, missing, kind=TopicName, body=str)
    given = Command(RequestCode.GET_TOPIC_CONFIG, {"topic": "t"}, b"x")
    assert ask(operation, given, kind=TopicName, body=lambda data: bytes(data).decode()).remark == "tx"
