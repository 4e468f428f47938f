"""The requests that one connection has sent and that are not answered yet.

Ids count up and are unique on their connection only. A reply to an id that is not waited for (any more) is ignored.
One timer serves all: it is set to the earliest deadline, and since most requests have the same time limit it is seldom
set anew.


One TCP connection that carries commands, on either side.

What arrives in one read is answered in one write. Replies of handlers that return at once need neither task nor
future. A peer that does not read its replies is not read from either: what it has already sent waits here, at most
one read of it, until its replies have gone out. `Pool` closes those that stay so, or are slow, or silent.

Belongs to the thread of its event loop: call it from there only.


Connections that we open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import BadFrame, NoAnswer, PenstockError, Unreachable
from penstock.protocol.command import ONE_WAY, RESPONSE, Command
from penstock.protocol.frame import FrameReader, encode_parts
from penstock.remoting.handlers import Before, Handler, Handlers, Result, failed, unsupported
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.sockets import keep_alive

if TYPE_CHECKING:
    from penstock.remoting.limits import Pool

_LAST_ID = 2**31 - 1


class Asked:
    """Belongs to the loop's thread."""

    __slots__ = ("_last", "_loop", "_peer", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self._loop = loop
        self._peer = peer
        self._last = 0
        self._waiting: dict[int, tuple[asyncio.Future[Command], float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deadline: float) -> tuple[int, asyncio.Future[Command]]:
        """A new id, and what becomes its reply; or NoAnswer at the deadline."""
        opaque = self._last
        while True:
            opaque = opaque + 1 if opaque < _LAST_ID else 1
            if opaque not in self._waiting:
                break
        self._last = opaque
        future: asyncio.Future[Command] = self._loop.create_future()
        self._waiting[opaque] = (future, deadline)
        if self._timer is None or deadline < self._timer.when():
            self._set_timer(deadline)
        return opaque, future

    def forget(self, opaque: int) -> None:
        """Nobody waits for this one any more."""
        self._waiting.pop(opaque, None)

    def answer(self, reply: Command) -> None:
        """Hands a reply to whoever waits for it."""
        found = self._waiting.pop(reply.opaque, None)
        if found is not None and not found[0].done():
            found[0].set_result(reply)

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """The connection is gone: no reply will come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error())

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        late = [opaque for opaque, (_, deadline) in self._waiting.items() if deadline <= now]
        for opaque in late:
            future, _ = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(NoAnswer(f"{self._peer} did not answer in time"))
        self._timer = None
        if self._waiting:
            self._set_timer(min(deadline for _, deadline in self._waiting.values()))


_logger = logging.getLogger("penstock.remoting")
Address = tuple[str, int]
_NOWHERE: Final[Address] = ("", 0)
_FLUSH_AT: Final = 256 << 10
"""Replies of one read are written together, up to about so many bytes."""
_LARGE: Final = 4 << 10
"""A body from this size on is handed to the socket as it is, not copied behind its header."""


class Connection(asyncio.Protocol):
    """`peer` and `local` are (host, port); `account` is who the upper layers found the peer to be."""

    def __init__(
        self, handlers: Handlers, limits: ConnectionLimits, *, before: Before | None = None, pool: Pool | None = None
    ) -> None:
        """With a `pool` this is a server's side, which stops reading while its peer does not read."""
        self._loop = asyncio.get_running_loop()
        self._handlers = handlers
        self._limits = limits
        self._before = before
        self._pool = pool
        self._reader = FrameReader(limits.frame_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # until connection_made
        self._asked = Asked(self._loop, "the peer")
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._has_large = False
        self._batching = False
        self._flush_is_due = False
        self._waiting: deque[Command] = deque()
        self._deferred: set[asyncio.Future[Command | None]] = set()
        self._blocked = False
        self._finishing = False
        self._writable: asyncio.Event | None = None

        self.peer = _NOWHERE
        self.local = _NOWHERE
        self.is_loopback = False
        self.secure = False
        self.closed = False
        self.account: str | None = None
        self.on_close: list[Callable[[Connection], None]] = []
        """Called once each when the connection is gone, whoever ended it."""

        self.opened_at = self.active_at = self._loop.time()
        self.has_spoken = False
        self.frame_began_at = 0.0
        self.held_bytes = 0
        self.congested_at = 0.0
        self.unsent_bytes = 0

    def __repr__(self) -> str:
        return f"<connection with {self.peer[0]}:{self.peer[1]}{', closed' if self.closed else ''}>"

    @property
    def was_made(self) -> bool:
        """Whether there ever was a connection."""
        return self._transport is not None

    # -- sending ---------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether so much waits to be written that it is better to add nothing."""
        return self.congested_at > 0.0

    @property
    def is_held_up(self) -> bool:
        """Whether we have stopped reading from the peer, because it does not read or we owe it too many replies."""
        return self._blocked

    @property
    def unanswered(self) -> int:
        """How many of our requests are under way."""
        return len(self._asked)

    def send(self, command: Command) -> None:
        """Writes a command: a reply that was deferred, or a request whose opaque is set. Dropped if closed."""
        if self.closed:
            return
        self._put(command)
        if not (self._batching or self._flush_is_due):
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def lay_down(self, command: Command) -> None:
        """As `send`, but leaves with the next `flush`, which the caller owes."""
        if not self.closed:
            self._put(command)

    def flush(self) -> None:
        """Writes what was laid down in this turn of the loop, unless requests are being served: it leaves with them."""
        if not self._batching:
            self._flush()

    async def request(self, command: Command, timeout_s: float) -> Command:
        """Sends a request, with an opaque of this connection, and returns its reply.

        Raises NoAnswer when `timeout_s` has passed, and Unreachable when the connection is, or gets, closed.
        """
        deadline = self._loop.time() + timeout_s
        if self.congested:
            await self.until_writable(timeout_s)
        if self.closed:
            raise self._gone()
        opaque, reply = self._asked.add(deadline)
        command.opaque = opaque
        try:
            self.send(command)
            return await reply
        finally:
            self._asked.forget(opaque)

    def request_oneway(self, command: Command) -> None:
        """Sends a request that is not answered. Dropped if closed."""
        command.flag |= ONE_WAY
        self.send(command)

    async def until_writable(self, timeout_s: float) -> None:
        """Returns when the connection is not congested any more, or closed. Raises NoAnswer after `timeout_s`."""
        if not self.congested or self.closed:
            return
        if self._writable is None:
            self._writable = asyncio.Event()
        try:
            await asyncio.wait_for(self._writable.wait(), timeout_s)
        except TimeoutError:
            raise NoAnswer(f"{self.peer[0]}:{self.peer[1]} did not read what was sent to it in time") from None

    def _put(self, command: Command) -> None:
        """Encodes a command and lays it down for the next flush."""
        try:
            parts = encode_parts(command)
        except Exception as error:  # a reply that cannot be encoded is still owed
            if not command.flag & RESPONSE:
                raise
            parts = encode_parts(failed(command, error))
        self._lay_down(parts)

    def _lay_down(self, parts: Sequence[bytes | memoryview]) -> None:
        self._out += parts
        self._out_bytes += len(parts[0])
        if len(parts) > 1:
            size = len(parts[1])
            self._out_bytes += size
            if size >= _LARGE:
                self._has_large = True

    def _flush(self) -> None:
        """Writes what was laid down."""
        self._flush_is_due = False
        out = self._out
        if not out or self.closed or self._transport.is_closing():
            return
        self._out = []
        self._out_bytes = 0
        if self._has_large:
            self._has_large = False
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))
        self.active_at = self._loop.time()
        if self.congested_at and self._pool is not None:
            self._pool.set_unsent(self, self._transport.get_write_buffer_size())

    # -- receiving -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        now = self.active_at = self._loop.time()
        try:
            commands = self._reader.feed(data)
        except BadFrame as error:
            self.give_up(str(error))
            return
        held = self._reader.held
        if held or self.held_bytes:
            if commands or not self.held_bytes:
                self.frame_began_at = now
            if self._pool is not None:
                self._pool.set_held(self, held)
            else:
                self.held_bytes = held
        if commands and not self.closed:
            self.has_spoken = True
            if self._blocked:
                self._waiting.extend(commands)
            else:
                self._serve(commands)

    def _serve(self, commands: Sequence[Command]) -> None:
        """Answers commands in their order, until all are served or the peer has to read first."""
        handlers, before = self._handlers, self._before
        self._batching = True
        for number, command in enumerate(commands, 1):
            flag = command.flag
            if flag & RESPONSE:
                self._asked.answer(command)
                continue
            try:
                result: Result = None if before is None else before(self, command)
                if result is None:
                    handler = handlers.get(command.code)
                    result = unsupported(command) if handler is None else handler(self, command)
                if result is None:
                    continue
                if not isinstance(result, (Command, bytes, tuple)):
                    self._defer(command, result)
            except Exception as error:  # one request's mistake is no reason to end the connection
                result = failed(command, error)
            if not flag & ONE_WAY:
                if isinstance(result, tuple):
                    self._lay_down(result)
                elif isinstance(result, bytes):
                    self._out.append(result)
                    self._out_bytes += len(result)
                elif isinstance(result, Command):
                    self._put(result)
                if self._out_bytes >= _FLUSH_AT:
                    self._flush()
            if self._blocked or self.closed:
                self._waiting.extend(commands[number:])
                break
        self._batching = False
        if self._out:
            self._flush()

    def _defer(self, command: Command, result: Awaitable[Command | None]) -> None:
        future = asyncio.ensure_future(result)
        self._deferred.add(future)
        future.add_done_callback(partial(self._settle, command))
        if self._pool is not None and len(self._deferred) >= self._limits.deferred:
            self._block()

    def _settle(self, command: Command, future: asyncio.Future[Command | None]) -> None:
        """A deferred reply is there."""
        self._deferred.discard(future)
        if future.cancelled():
            reply: Command | None = failed(command, PenstockError("the request was given up: the server is stopping"))
        else:
            error = future.exception()
            reply = future.result() if error is None else failed(command, error)
            if not isinstance(reply, Command | None):
                reply = failed(command, TypeError(f"a handler gave {type(reply).__name__} for a reply"))
        if reply is not None and not command.is_oneway:
            self.send(reply)
        if self._finishing and not self._deferred:
            self.close()
        elif self._blocked:
            self._go_on()

    # -- going slow ------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.congested_at = self._loop.time()
        if self._writable is not None:
            self._writable.clear()
        if self._pool is not None and not self.closed:
            self._block()
            self._pool.set_unsent(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.congested_at = 0.0
        if self._writable is not None:
            self._writable.set()
        if self._pool is not None:
            if not self.closed:
                self._pool.set_unsent(self, 0)
            self._loop.call_soon(self._go_on)  # not from within a write

    def _block(self) -> None:
        """Neither reads nor serves requests from now on."""
        self._blocked = True
        if not self.closed:
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Serves what waited, and reads again, if nothing is in the way any more."""
        in_the_way = self.congested or len(self._deferred) > self._limits.deferred // 2
        if self.closed or self._finishing or not self._blocked or in_the_way:
            return
        self._blocked = False
        if self._waiting:
            waiting, self._waiting = list(self._waiting), deque()
            self._serve(waiting)
        if not (self._blocked or self.closed):
            self.frame_began_at = self._loop.time()
            self._transport.resume_reading()

    # -- opening and closing ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(self._limits.high_water, self._limits.low_water)
        self.peer = address_of(transport.get_extra_info("peername"))
        self.local = address_of(transport.get_extra_info("sockname"))
        self.is_loopback = bool(self.peer[0]) and ipaddress.ip_address(self.peer[0]).is_loopback
        self.secure = transport.get_extra_info("sslcontext") is not None
        self._asked = Asked(self._loop, f"{self.peer[0]}:{self.peer[1]}")
        if self._pool is not None:
            self._pool.add(self)

    def close(self) -> None:
        """Closes when what was sent so far is written; a peer that does not read it is cut off soon."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._limits.goodbye_s, self._transport.abort)

    def abort(self) -> None:
        """Closes at once; what is not written is lost."""
        self.closed = True
        self._transport.abort()
        if self._pool is not None:
            self._pool.forget_buffers(self)

    def give_up(self, why: str) -> None:
        """Closes a connection whose peer did something wrong."""
        if self._pool is not None:
            self._pool.refused(self.peer, why)
        else:
            _logger.warning("closed the connection to %s:%d: %s", *self.peer, why)
        self.abort()

    def finish(self) -> None:
        """Takes no more requests; closes when those under way are answered."""
        self._finishing = True
        self._waiting.clear()
        self._block()
        if not self._deferred:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._waiting.clear()
        if self._writable is not None:
            self._writable.set()
        if self._pool is not None:
            self._pool.remove(self)
        self._asked.fail(self._gone)
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:
                _logger.exception("a close callback of %r failed", self)

    def _gone(self) -> Unreachable:
        return Unreachable(f"the connection to {self.peer[0]}:{self.peer[1]} is closed")


def address_of(name: Any) -> Address:
    """(host, port) of a socket's name, IPv4 in its own form also where the socket speaks IPv6."""
    if not isinstance(name, tuple):
        return _NOWHERE
    host, port = str(name[0]).partition("%")[0], int(name[1])
    return host.removeprefix("::ffff:") if "." in host else host, port


async def connect(
    address: Address,
    *,
    handlers: Mapping[int, Handler] | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 3.0,
    limits: ConnectionLimits | None = None,
) -> Connection:
    """A connection to (host, port); `handlers` answer what the peer asks us. Raises Unreachable."""
    host, port = address
    loop = asyncio.get_running_loop()
    connection = Connection(handlers or {}, limits or ConnectionLimits())
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(lambda: connection, host, port, ssl=tls)
    except TimeoutError:
        raise Unreachable(
            f"cannot connect to {host}:{port} within {timeout_s:g} s (check the address and the way there)"
        ) from None
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise Unreachable(f"cannot connect to {host}:{port}: {why} (check the address, and that it runs)") from None
    keep_alive(transport.get_extra_info("socket"))
    return connection
