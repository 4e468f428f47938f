"""One TCP connection that carries commands, on either side.

The replies to all commands of one read leave in one write. A handler that returns a reply at once needs neither a task
nor a future.

Back-pressure: while a peer does not read its replies, the server does not read from that peer. Commands that have
arrived already, at most those of one read, wait until the replies have left. `ServerConnections` closes connections
that stay blocked, slow or silent for too long.

Fairness: the loop reads from a socket as long as there is something. So after each large read, and before a large
frame is served, the server's side asks the pool whether it is still its turn, and waits in line if not. It also waits
in line once the handlers of its requests have taken `turn_s` seconds in one turn.

Use a connection from the thread of its event loop only. `connect` opens a connection; the module `server` accepts them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import BadFrame, NoAnswer, PenstockError, Unreachable
from penstock.protocol.codes import SERVED
from penstock.protocol.command import ONE_WAY, RESPONSE, Command
from penstock.protocol.frame import MAX_HEADER, MAX_REQUEST_HEADER, FrameReader, encode_parts
from penstock.remoting.handler_types_and_errors import (
    Before,
    Handler,
    Handlers,
    Result,
    ServeFrames,
    failed,
    oversized,
    unsupported,
)
from penstock.remoting.limits import FLUSH_AT, SMALL_BODY, ConnectionLimits
from penstock.remoting.pending_requests import Flight, PendingRequests, ReplyTo
from penstock.remoting.sockets import keep_alive

if TYPE_CHECKING:
    from penstock.remoting.limits import ServerConnections

_logger = logging.getLogger("penstock.remoting")
Address = tuple[str, int]
_NOWHERE: Final[Address] = ("", 0)
_LARGE_READ: Final = 64 << 10
"""A read of at least this many bytes, or the end of a frame with as many, takes a turn."""
_LARGE: Final = 4 << 10
"""Bodies of at least this many bytes are passed to the socket as they are, not copied behind their header."""


class Connection(asyncio.Protocol):
    """One side of a connection.

    `peer` and `local` are (host, port). `account` is the account by which access control authenticated the peer, if
    any.
    """

    def __init__(
        self,
        handlers: Handlers,
        limits: ConnectionLimits,
        *,
        before: Before | None = None,
        pool: ServerConnections | None = None,
        serve_frames: ServeFrames | None = None,
    ) -> None:
        """With a `pool`, this is the server's side, which stops reading while its peer does not read.

        `serve_frames` gets all frames first. `handlers` serve those that it leaves.
        """
        self._loop = asyncio.get_running_loop()
        self._handlers = handlers
        self._limits = limits
        self._before = before
        self._pool = pool
        self._serve_frames = serve_frames
        self._reader = FrameReader(limits.frame_bytes, MAX_HEADER if pool is None else MAX_REQUEST_HEADER)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # until connection_made
        self._pending = PendingRequests(self._loop, "the peer")
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._has_large = False
        self._batching = False
        self._flush_is_due = False
        self._waiting: deque[Command] = deque()
        self._deferred: set[asyncio.Future[Command | None]] = set()
        self._blocked = False
        self._in_line = False
        self._turn_ends_at = 0.0
        self._waiting_bytes = 0
        self._finishing = False
        self._writable: asyncio.Event | None = None

        self.peer = _NOWHERE
        self.local = _NOWHERE
        self.is_loopback = False
        self.secure = False
        self.closed = False
        self.account: str | None = None
        self.on_close: list[Callable[[Connection], None]] = []
        """Each callback is called once, after either side has closed the connection."""

        self.opened_at = self.active_at = self._loop.time()
        self.has_spoken = False
        self.frame_began_at = 0.0
        self.held_bytes = 0
        self.congested_at = 0.0
        self.unsent_bytes = 0
        self.deferred_bytes = 0

    def __repr__(self) -> str:
        return f"<connection with {self.peer[0]}:{self.peer[1]}{', closed' if self.closed else ''}>"

    @property
    def was_made(self) -> bool:
        """Whether the connection was ever established."""
        return self._transport is not None

    # -- sending ---------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether the write buffer is above its high-water mark."""
        return self.congested_at > 0.0

    @property
    def is_behind(self) -> bool:
        """Whether at least `high_water` bytes wait to be sent, written or not."""
        return self.congested_at > 0.0 or self._out_bytes >= self._limits.high_water

    @property
    def is_held_up(self) -> bool:
        """Whether reading is paused: the peer does not read, or too many of its requests are unanswered."""
        return self._blocked

    @property
    def unanswered(self) -> int:
        """The number of requests that this side has sent and that have no reply yet."""
        return len(self._pending)

    def send(self, command: Command) -> None:
        """Sends a command: a deferred reply, or a request whose opaque is set. Drops it if the connection is closed."""
        if self.closed:
            return
        self._put(command)
        self._flush_soon()

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Like `send`, for encoded frames of deferred replies."""
        if not self.closed:
            self._enqueue_parts(frames)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not (self._batching or self._flush_is_due):
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def enqueue(self, command: Command) -> None:
        """Like `send`, but the command leaves with the next `flush`, which the caller must call."""
        if not self.closed:
            self._put(command)

    def flush(self) -> None:
        """Writes the enqueued commands. While requests are being served, they leave with the replies instead."""
        if not self._batching:
            self._flush()

    async def request(self, command: Command, timeout_s: float, flight: Flight | None = None) -> Command:
        """Sends a request under a new opaque, and returns its reply.

        Waits up to `timeout_s` seconds while the connection is congested. Raises NoAnswer `timeout_s` seconds after the
        frame was written, Unreachable if the connection closes before the reply, and what `encode_parts` raises if
        there is no such frame.
        """
        if self.congested:
            await self.until_writable(timeout_s)
        if self.closed:
            raise self._gone()
        reply: asyncio.Future[Command] = self._loop.create_future()
        opaque = self.enqueue_request(command, timeout_s, reply, flight)
        self._flush_soon()
        try:
            return await reply
        except BaseException:
            self._pending.give_up(opaque)
            raise

    def enqueue_request(
        self, command: Command, timeout_s: float, reply_to: ReplyTo, flight: Flight | None = None
    ) -> int:
        """Like `request`, but waits for nothing: `reply_to` gets the reply or the error, and the request leaves with
        the next `flush`, which the caller must call. The connection must be open. Returns the request's opaque.
        """
        command.opaque = opaque = self._pending.add(timeout_s, reply_to, flight)
        try:
            self._put(command)
        except BaseException:
            self._pending.discard(opaque)
            raise
        if flight is not None:
            flight.written()
        return opaque

    def request_oneway(self, command: Command) -> None:
        """Sends a request that gets no reply. Drops it if the connection is closed."""
        command.flag |= ONE_WAY
        self.send(command)

    async def until_writable(self, timeout_s: float) -> None:
        """Waits until the connection is no longer congested or is closed. Raises NoAnswer after `timeout_s` seconds."""
        if not self.congested or self.closed:
            return
        if self._writable is None:
            self._writable = asyncio.Event()
        try:
            await asyncio.wait_for(self._writable.wait(), timeout_s)
        except TimeoutError:
            raise NoAnswer(f"{self.peer[0]}:{self.peer[1]} did not read what was sent to it in time") from None

    def _put(self, command: Command) -> None:
        """Encodes a command and enqueues it for the next flush."""
        try:
            parts = encode_parts(command)
        except Exception as error:  # the peer still waits for a reply
            if not command.flag & RESPONSE:
                raise
            parts = encode_parts(failed(command, error))
        self._enqueue_parts(parts)

    def _enqueue_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        if parts:
            sizes = list(map(len, parts))
            self._out += parts
            self._out_bytes += sum(sizes)
            self._has_large = self._has_large or max(sizes) >= _LARGE

    def _flush(self) -> None:
        """Writes all enqueued bytes. Drops them if the connection is closed or closing."""
        self._flush_is_due = False
        out = self._out
        if not out:
            return
        if self.closed or self._transport.is_closing():
            self._drop_unwritten()
            return
        self._out = []
        self._out_bytes = 0
        if self._has_large:
            self._has_large = False
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))
        self.active_at = self._loop.time()
        if self._pending.has_unwritten:
            self._pending.frames_written(self.active_at)
        if self.congested_at and self._pool is not None:
            self._pool.set_unsent(self, self._transport.get_write_buffer_size())

    def _drop_unwritten(self) -> None:
        self._out = []
        self._out_bytes = 0
        self._has_large = False

    # -- receiving -------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        now = self.active_at = self._loop.time()
        size, before = len(data), self.held_bytes
        data = self._reader.join(data)
        has_turn = self._blocked or self._take_turn(size, before, bool(data))
        is_served = False
        try:
            if self._serve_frames is not None and data and has_turn and not self._blocked:
                left = self._serve_bytes(data, self._serve_frames)
                if left and self._transport.is_closing():
                    return  # the replies could not be written: no client is left to serve the rest to
                is_served, data = len(left) < len(data), left
            commands = self._reader.feed(data) if data else []
        except BadFrame as error:
            self.drop_peer(str(error))
            return
        held = self._reader.held
        if held or before:
            if commands or is_served or not before:
                self.frame_began_at = now
            if self._pool is not None:
                self._pool.set_held(self, held)
            else:
                self.held_bytes = held
        if self.closed:
            return
        if commands or is_served:
            self.has_spoken = True
        if not has_turn:
            self._wait_in_line(commands, before)
        elif self._blocked:
            self._waiting.extend(commands)
        elif commands:
            self._serve(commands)

    def _take_turn(self, size: int, before: int, is_complete: bool) -> bool:
        """Whether it is this connection's turn to go on after a large read.

        Reading `size` bytes counts, and for a frame that is complete now, handling the `before` bytes that were held.
        """
        if self._pool is None or not (size >= _LARGE_READ or (before >= _LARGE_READ and is_complete)):
            return True
        return self._pool.take_turn(self, size + before if is_complete else size)

    def _wait_in_line(self, commands: Sequence[Command], before: int) -> None:
        """Keeps commands, and the `before` bytes that were held for them, until it is this connection's turn."""
        assert self._pool is not None
        self._in_line = True
        self._waiting.extend(commands)
        self._waiting_bytes = before if commands else 0
        self._pool.set_held(self, self.held_bytes + self._waiting_bytes)
        self._block()

    def go_on(self) -> None:
        """Goes on with reading and serving, because it is this connection's turn."""
        self._in_line = False
        if not self.closed and self._pool is not None:
            self._pool.set_held(self, self.held_bytes - self._waiting_bytes)
            self._waiting_bytes = 0
            self._resume()

    def _serve(self, commands: Sequence[Command]) -> None:
        """Serves commands in order, until all are served or the connection is blocked. The rest waits in `_waiting`.

        Once a write has failed, the rest is dropped.
        """
        self._begin_turn()
        self._batching = True
        try:
            self._answer(commands)
        finally:  # also if a reply could not be encoded at all: the connection must be able to write again
            self._batching = False
        if self._out:
            self._flush()

    def _serve_bytes(self, data: bytes, serve_frames: ServeFrames) -> bytes:
        """Serves the frames of a read in order: `serve_frames` what it takes, the handlers the rest.

        Returns what is left: an incomplete or a bad frame; or if the connection is blocked or closing, all that was not
        served.
        Raises BadFrame; then the frames before the bad one have been served.
        """
        at = 0
        self._begin_turn()
        self._batching = True
        try:
            while not (self._blocked or self.closed or self._transport.is_closing()):
                at, stop, replies = serve_frames(self, data, at)
                self._enqueue_parts(replies)
                is_full = self._out_bytes >= FLUSH_AT
                if is_full:
                    self._flush()
                    if self._transport.is_closing():
                        break
                if stop > at and not (self._blocked or self.closed):
                    commands = self._reader.feed(data[at:stop])
                    at = stop
                    self._answer(commands)
                elif not is_full:
                    break
        finally:
            self._batching = False
            if self._out:
                self._flush()
        return data[at:] if at else data

    def _begin_turn(self) -> None:
        self._turn_ends_at = monotonic() + self._limits.turn_s  # the loop's own time stands still within a turn

    def _answer(self, commands: Sequence[Command]) -> None:
        """Serves commands for `_serve`; the replies leave with the next flush."""
        handlers, before = self._handlers, self._before
        for number, command in enumerate(commands, 1):
            if self._pool is not None and monotonic() >= self._turn_ends_at and self._pool.wait_in_line(self):
                self._waiting.extend(commands[number - 1 :])
                self._in_line = True
                self._block()
                break
            flag = command.flag
            if flag & RESPONSE:
                self._pending.answer(command)
                continue
            try:
                result: Result = None
                if len(command.body) > SMALL_BODY and len(command.body) > (
                    limit := self._limits.body_limit(command.code)
                ):
                    result = oversized(command, limit)
                elif before is not None:
                    result = before(self, command)
                if result is None:
                    handler = handlers.get(command.code)
                    result = unsupported(command) if handler is None else handler(self, command)
                if result is None:
                    continue
                if not isinstance(result, (Command, bytes, tuple)):
                    self._defer(command, result)
            except Exception as error:  # a failed request must not end the connection
                result = failed(command, error)
            if flag & ONE_WAY:
                if isinstance(result, Command):
                    self._count_refusal(command, result)
            elif isinstance(result, bytes):
                self._out.append(result)
                self._out_bytes += len(result)
            elif isinstance(result, tuple):
                self._enqueue_parts(result)
            elif isinstance(result, Command):
                self._count_refusal(command, result)
                self._put(result)
            if self._out_bytes >= FLUSH_AT:
                self._flush()
                if self._transport.is_closing():
                    break
            if self._blocked or self.closed:
                self._waiting.extend(commands[number:])
                break

    def _defer(self, command: Command, result: Awaitable[Command | None]) -> None:
        future = asyncio.ensure_future(result)
        self._deferred.add(future)
        size = command.keep()
        future.add_done_callback(partial(self._finish_deferred, command, size))
        if self._pool is not None:
            self._pool.add_deferred(self, size)
            if len(self._deferred) >= self._limits.deferred or self.deferred_bytes >= self._limits.deferred_bytes:
                self._block()

    def _finish_deferred(self, command: Command, size: int, future: asyncio.Future[Command | None]) -> None:
        """Sends the reply of a deferred request of `size` bytes, whose awaitable is done."""
        self._deferred.discard(future)
        if self._pool is not None:
            self._pool.add_deferred(self, -size)
        if future.cancelled():
            reply: Command | None = failed(command, PenstockError("the request was cancelled: the server is stopping"))
        else:
            error = future.exception()
            reply = future.result() if error is None else failed(command, error)
            if not isinstance(reply, Command | None):
                reply = failed(command, TypeError(f"a handler returned {type(reply).__name__} instead of a reply"))
        if reply is not None:
            self._count_refusal(command, reply)
            if not command.is_oneway:
                self.send(reply)
        if self._finishing and not self._deferred:
            self.close()
        elif self._blocked:
            self._resume()

    def _count_refusal(self, command: Command, reply: Command) -> None:
        if self._pool is not None and reply.code not in SERVED:
            self._pool.request_refused(command.code if command.code in self._handlers else -1)

    # -- back-pressure ----------------------------------------------------------------------------------------

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
            self._loop.call_soon(self._resume)  # not from within a write

    def _block(self) -> None:
        """Stops reading from the peer and serving its requests."""
        self._blocked = True
        if not self.closed:
            self._transport.pause_reading()

    def _resume(self) -> None:
        """Serves the waiting commands and reads again, unless the connection must stay blocked."""
        limits = self._limits
        is_full = len(self._deferred) > limits.deferred // 2 or self.deferred_bytes > limits.deferred_bytes // 2
        still_blocked = self.congested or is_full or self._in_line
        if self.closed or self._finishing or not self._blocked or still_blocked:
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
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(self._limits.high_water, self._limits.low_water)
        self.peer = address_of(transport.get_extra_info("peername"))
        self.local = address_of(transport.get_extra_info("sockname"))
        self.is_loopback = bool(self.peer[0]) and ipaddress.ip_address(self.peer[0]).is_loopback
        self.secure = transport.get_extra_info("sslcontext") is not None
        self._pending = PendingRequests(self._loop, f"{self.peer[0]}:{self.peer[1]}")
        if self._pool is not None:
            self._pool.add(self)

    def close(self) -> None:
        """Closes the connection once everything sent so far is written.

        Aborts it if the peer does not read the rest within `goodbye_s` seconds.
        """
        if self.closed:
            return
        self._flush()
        self.closed = True
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._limits.goodbye_s, self._transport.abort)

    def abort(self) -> None:
        """Closes at once; unwritten data is lost."""
        self.closed = True
        self._transport.abort()
        if self._pool is not None:
            self._pool.forget_buffers(self)

    def drop_peer(self, why: str) -> None:
        """Aborts the connection because its peer broke a rule, and logs why."""
        if self._pool is not None:
            self._pool.refused(self.peer, why)
        else:
            _logger.warning("closed the connection to %s:%d: %s", *self.peer, why)
        self.abort()

    def finish(self) -> None:
        """Accepts no more requests, and closes the connection once the pending requests are answered."""
        self._finishing = True
        self._waiting.clear()
        self._block()
        if not self._deferred:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._drop_unwritten()
        self._waiting.clear()
        if self._writable is not None:
            self._writable.set()
        if self._pool is not None:
            self._pool.remove(self)
        self._pending.fail(self._gone)
        for callback in self.on_close:
            try:
                callback(self)
            except Exception:
                _logger.exception("a close callback of %r failed", self)

    def _gone(self) -> Unreachable:
        return Unreachable(f"the connection to {self.peer[0]}:{self.peer[1]} is closed")


def address_of(name: Any) -> Address:
    """Returns (host, port) of a socket's name. An IPv4-mapped IPv6 address becomes plain IPv4."""
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
    """Connects to (host, port) within `timeout_s` seconds. `handlers` serve the peer's requests. Raises Unreachable."""
    host, port = address
    loop = asyncio.get_running_loop()
    connection = Connection(handlers or {}, limits or ConnectionLimits())
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(lambda: connection, host, port, ssl=tls)
    except TimeoutError:
        raise Unreachable(
            f"cannot connect to {host}:{port} within {timeout_s:g} s (check the address and the network)"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a name that no host can have, such as `a..b`
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise Unreachable(f"cannot connect to {host}:{port}: {why} (check the address; is it running?)") from None
    keep_alive(transport.get_extra_info("socket"))
    return connection
