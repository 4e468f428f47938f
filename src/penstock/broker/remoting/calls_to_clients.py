"""Requests of the broker to its clients, as remoting commands."""

from __future__ import annotations

from typing import Final, cast

from penstock.broker.operations_as_plain_calls import Answer, Client
from penstock.protocol import fields
from penstock.protocol.codes import RequestCode
from penstock.protocol.command import Command
from penstock.protocol.fields import Fields
from penstock.protocol.headers.groups import ConsumeDirectly, ConsumerGroupRequest, GetConsumerRunningInfo
from penstock.protocol.headers.offsets import GetConsumerStatus, ResetOffset
from penstock.protocol.headers.send import CheckTransaction, PushReply
from penstock.remoting.connection import Connection

_CODES: Final[dict[type[Fields], RequestCode]] = {
    CheckTransaction: RequestCode.CHECK_TRANSACTION_STATE,
    ConsumeDirectly: RequestCode.CONSUME_MESSAGE_DIRECTLY,
    ConsumerGroupRequest: RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    GetConsumerRunningInfo: RequestCode.GET_CONSUMER_RUNNING_INFO,
    GetConsumerStatus: RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    PushReply: RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ResetOffset: RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
}


class RemotingClientRequests:
    """`core.ClientRequests` over the connections that the clients opened."""

    def tell(self, client: Client, request: Fields, body: bytes | memoryview = b"") -> None:
        if body or not client.is_behind:  # a notice without a body is sent again with the next change
            _connection(client).request_oneway(_command(request, body))

    async def ask(self, client: Client, request: Fields, body: bytes | memoryview, timeout_s: float) -> Answer:
        reply = await _connection(client).request(_command(request, body), timeout_s)
        return Answer(reply.code, reply.remark, reply.body, reply.ext)


def _connection(client: Client) -> Connection:
    return cast(Connection, client)  # this room gives the core no other clients


def _command(request: Fields, body: bytes | memoryview) -> Command:
    return Command(_CODES[type(request)], fields.write(request), body)
