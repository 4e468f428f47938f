"""Request handlers, and the replies to requests that fail.

    def handle(connection, command): return command.reply(ResponseCode.SUCCESS)

A handler is called on the loop's thread with the connection and the request. It returns

- a `Command` from `command.reply(...)`: the fast path, without a task;
- bytes: an encoded reply frame, for the most frequent requests;
- a tuple: the start of an encoded reply frame and its body, so that a large body is not copied;
- an awaitable of a `Command` or None: the reply is sent when it is done, other requests are served meanwhile;
- None: there is no reply, or the handler's module sends it later with `connection.send`.

An exception becomes a reply and never closes the connection. A `Refusal` carries its response code. Other errors of
Penstock have the codes in `_CODES`, or else SYSTEM_ERROR. Any other exception is SYSTEM_ERROR, with details in the log
only. A one-way request gets no reply.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.errors import BadMessage, PenstockError, StoreFailed
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.command import Command
from penstock.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.remoting.connection import Connection

Result: TypeAlias = Command | bytes | tuple[bytes, bytes] | Awaitable[Command | None] | None
Handler: TypeAlias = Callable[["Connection", Command], Result]
Handlers: TypeAlias = Mapping[int, Handler]
Before: TypeAlias = Callable[["Connection", Command], Command | None]
"""Called before the handler of every request; if it returns a reply or raises, the handler is not called."""
ServeFrames: TypeAlias = Callable[["Connection", bytes, int], tuple[int, int, list[bytes]]]
"""Serves whole frames without making commands of them, from a position of the received bytes on. Returns the position
of the first frame that it did not serve; where that frame ends if a handler has to serve it, else the same position;
and the frames of the replies, in pieces. It may return early with FLUSH_AT bytes of replies."""

_failures: Final = defaultdict[type[BaseException], RateLimitedLog](
    lambda: RateLimitedLog(logging.getLogger("penstock.remoting"))
)
"""The lines about failed requests, by the type of the error."""
_CODES: Final = {
    BadMessage: ResponseCode.MESSAGE_ILLEGAL,
    StoreFailed: ResponseCode.SERVICE_NOT_AVAILABLE,
}


def failed(command: Command, error: BaseException) -> Command:
    """Returns the reply to a request whose handler raised `error`.

    Paths go to the log only, because any client may read the remark.
    """
    if isinstance(error, Refusal):
        return command.reply(error.code, str(error))
    if isinstance(error, PenstockError):
        code = _CODES.get(type(error), ResponseCode.SYSTEM_ERROR)
        if error.path is not None:
            _failures[type(error)].warn(f"request {command.code} failed: {error}")
            return command.reply(code, str(error.args[0]))
        return command.reply(code, str(error))
    _failures[type(error)].error(f"request {command.code} failed", error)
    return command.reply(ResponseCode.SYSTEM_ERROR, "the request failed unexpectedly; see the server's log")


def unsupported(command: Command) -> Command:
    """Returns the reply to a request code without a handler."""
    return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request code {command.code} is not supported")


def oversized(command: Command, limit: int) -> Command:
    """Returns the reply to a request whose body is longer than `limit` bytes."""
    found = f"has a body of {len(command.body)} bytes; at most {limit} are allowed"
    return command.reply(ResponseCode.SYSTEM_ERROR, f"request code {command.code} {found}")
