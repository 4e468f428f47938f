"""Makes remoting handlers from operations of the broker's core.

    handlers[RequestCode.GET_TOPIC_STATS_INFO] = adapt(core.find("topic stats"), TopicName)

A handler admits the client, reads the request's arguments (and its body, if `body` reads one), calls the core, and
encodes the outcome. `None` is a bare success. A table or a `Body` becomes the reply's body as JSON, bytes become its
body as they are, `Fields` its arguments, and a text its remark; a tuple is several of these. The `Answer` of a client
is passed on as it is. The outcome may be awaitable. An operation that does not fit has a handler of its own in this
room. Most modules of the room are tables of routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from penstock.broker.operations_as_plain_calls import Answer, Core, Operation
from penstock.protocol import fields
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.fields import Fields
from penstock.protocol.headers import REQUESTS
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Handler, Result

ReadBody: TypeAlias = Callable[[bytes | memoryview], Any]


class OperationRoute(NamedTuple):
    """The operation that a request code asks for. `body` reads the request's body if the operation wants it."""

    operation: str
    body: ReadBody | None = None


def handlers_of(core: Core, routes: Mapping[RequestCode, OperationRoute]) -> dict[int, Handler]:
    """Returns the handlers of request codes whose arguments and outcomes `adapt` can convert."""
    return {code: adapt(core.find(route.operation), REQUESTS.get(code), route.body) for code, route in routes.items()}


def adapt(operation: Operation, kind: type[Fields] | None = None, body: ReadBody | None = None) -> Handler:
    """Returns the handler that calls `call(client, request)`, `call(client, body)` or `call(client, request, body)`."""
    call, admit = operation.call, operation.admit

    def handle(connection: Connection, command: Command) -> Result:
        if admit is not None:
            admit(connection)
        arguments: list[Any] = [] if kind is None else [command.read(kind)]
        if body is not None:
            arguments.append(body(command.body))
        outcome = call(connection, *arguments)
        if outcome is None:
            return command.reply(ResponseCode.SUCCESS)
        return _later(command, outcome) if hasattr(outcome, "__await__") else encode_outcome(command, outcome)

    return handle


async def _later(command: Command, outcome: Awaitable[Any]) -> Command:
    return encode_outcome(command, await outcome)


def encode_outcome(command: Command, outcome: Any) -> Command:
    """Returns the successful reply that carries an outcome, or a client's answer."""
    if outcome is None:
        return command.reply(ResponseCode.SUCCESS)
    if isinstance(outcome, Answer):
        return command.reply(outcome.code, outcome.remark, outcome.arguments, outcome.body)
    reply = command.reply(ResponseCode.SUCCESS)
    for part in outcome if isinstance(outcome, tuple) else (outcome,):
        if isinstance(part, Fields):
            reply.ext |= fields.write(part)
        elif isinstance(part, str):
            reply.remark = part
        else:
            reply.body = part if isinstance(part, bytes | memoryview) else msgspec.json.encode(part.to_json())
    return reply
