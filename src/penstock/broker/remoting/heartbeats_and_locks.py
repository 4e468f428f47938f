"""Requests of clients about themselves, by request code: heartbeats, membership, subscriptions and queue locks."""

from __future__ import annotations

from typing import Final

from penstock.broker.consumers import Heartbeat
from penstock.broker.operations_as_plain_calls import Call, Core
from penstock.broker.remoting.adapt_operations import OperationRoute, handlers_of
from penstock.protocol.bodies.clients import CheckClientRequestBody, HeartbeatData
from penstock.protocol.bodies.queues import LockBatchRequestBody
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Handler

_ROUTES: Final = {
    RequestCode.UNREGISTER_CLIENT: OperationRoute("unregister"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: OperationRoute("list consumers"),
    RequestCode.CHECK_CLIENT_CONFIG: OperationRoute("check subscription", CheckClientRequestBody.from_bytes),
    RequestCode.LOCK_BATCH_MQ: OperationRoute("lock queues", LockBatchRequestBody.from_bytes),
    RequestCode.UNLOCK_BATCH_MQ: OperationRoute("unlock queues", LockBatchRequestBody.from_bytes),
}


def client_handlers(core: Core) -> dict[int, Handler]:
    return {**handlers_of(core, _ROUTES), RequestCode.HEART_BEAT: _heartbeat(core.find("heartbeat").call)}


def _heartbeat(call: Call) -> Handler:
    """Returns the handler of heartbeats. A client states its language and version in the header of each frame."""

    def handle(connection: Connection, command: Command) -> Command:
        data = HeartbeatData.from_bytes(command.body)
        call(connection, Heartbeat(data, command.language, command.version))
        return command.reply(ResponseCode.SUCCESS)

    return handle
