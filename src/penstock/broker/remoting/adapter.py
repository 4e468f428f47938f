"""Makes a remoting handler from a call of the broker's core.

    handlers[RequestCode.GET_TOPIC_STATS_INFO] = adapt(core.call_of("topic stats"), TopicName)

The handler reads the request's arguments (and its JSON body, if `body` names a type), calls the core, and encodes the
outcome: None is a bare success, a `Body` becomes the reply's body, `Fields` become its arguments, a tuple is both, and
bytes are a body as they are. The outcome may be awaitable. What does not fit has a handler of its own in this room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from penstock.protocol import fields
from penstock.protocol.bodies.base import Body
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.fields import Fields
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Result


def adapt(call: Callable[..., Any], kind: type[Fields] | None = None, body: type[Body] | None = None) -> Handler:
    """Returns the handler that calls `call(client, request)`, `call(client, body)` or `call(client, request, body)`."""

    def handle(connection: Connection, command: Command) -> Result:
        arguments: list[Any] = [] if kind is None else [command.read(kind)]
        if body is not None:
            arguments.append(body.from_bytes(command.body))
        outcome = call(connection, *arguments)
        return _later(command, outcome) if isawaitable(outcome) else encode_outcome(command, outcome)

    return handle


async def _later(command: Command, outcome: Awaitable[Any]) -> Command:
    return encode_outcome(command, await outcome)


def encode_outcome(command: Command, outcome: Any) -> Command:
    """Returns the successful reply that carries an outcome."""
    parts = outcome if isinstance(outcome, tuple) else (outcome,)
    ext: dict[str, str] = {}
    body = b""
    for part in parts:
        if isinstance(part, Body):
            body = part.to_bytes()
        elif isinstance(part, Fields):
            ext |= fields.write(part)
        elif isinstance(part, dict):
            ext |= part
        elif part is not None:
            body = part
    return command.reply(ResponseCode.SUCCESS, ext=ext, body=body)
