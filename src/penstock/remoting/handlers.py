"""What answers a request, and what becomes of an error in it.

    def handle(connection, command): return command.reply(ResponseCode.SUCCESS)

A handler is called on the loop's thread with the connection and the request. It returns

- a `Command` made with `command.reply(...)`: the fast path, no task is made;
- bytes: the same, encoded already, for requests that come by the ten thousand a second; or two pieces of them in a
  tuple, the beginning of the frame and its body, so that a large body need not be copied;
- an awaitable of one (or of None): the reply goes out when it is done, other requests are served meanwhile;
- None: there is no reply, or `connection.send` brings it later.

Whatever it raises becomes a reply, never a dead connection: a `Refusal` its code, an error of ours the code below, and
anything else SYSTEM_ERROR without details, which go to the log. A one-way request is never replied to.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import BadMessage, PenstockError, StoreFailed
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from penstock.remoting.connection import Connection

Result: TypeAlias = Command | bytes | tuple[bytes, bytes] | Awaitable[Command | None] | None
Handler: TypeAlias = Callable[["Connection", Command], Result]
Handlers: TypeAlias = Mapping[int, Handler]
Before: TypeAlias = Callable[["Connection", Command], Command | None]
"""Looks at every request before its handler does; what it returns is the reply, and the handler is not called."""

_logger = logging.getLogger("penstock.remoting")

_CODES: Final = {
    BadMessage: ResponseCode.MESSAGE_ILLEGAL,
    StoreFailed: ResponseCode.SERVICE_NOT_AVAILABLE,
}


class Refusal(PenstockError):
    """A request that is refused with a code of its own: `raise Refusal(ResponseCode.NO_PERMISSION, "…")`."""

    def __init__(self, code: ResponseCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def failed(command: Command, error: BaseException) -> Command:
    """The reply to a request whose handler raised. Paths stay here: a stranger may read the remark."""
    if isinstance(error, Refusal):
        return command.reply(error.code, str(error))
    if isinstance(error, PenstockError):
        code = _CODES.get(type(error), ResponseCode.SYSTEM_ERROR)
        if error.path is not None:
            _logger.warning("request %d failed: %s", command.code, error)
            return command.reply(code, str(error.args[0]))
        return command.reply(code, str(error))
    _logger.error("request %d failed", command.code, exc_info=error)
    return command.reply(ResponseCode.SYSTEM_ERROR, "the request failed unexpectedly; the server's log says why")


def unsupported(command: Command) -> Command:
    """The reply to a code that nobody handles."""
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {command.code} is not supported")
