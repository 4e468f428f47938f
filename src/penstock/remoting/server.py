"""A listening port and the connections accepted on it.

    server = Server({RequestCode.GET_MAX_OFFSET: handle}, before=access)
    host, port = await server.start("127.0.0.1", 0)
    ...
    await server.stop(grace_s=5)

Plain and TLS connections share the port. `Acceptor` peeks at the first byte of a connection: 0x16 starts a TLS
handshake, and no frame starts with it. A connection that sends nothing waits without a task, and is closed after a time
limit. `handlers` may be any mapping; the server looks up a handler for every request. `before` is called first for
every request. `stop` accepts no new connection, waits for pending replies, and returns within a time limit. Use a
server from the thread of its event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from penstock.protocol.frame import TLS_HANDSHAKE
from penstock.remoting.connection import Address, Connection, address_of
from penstock.remoting.handler_types_and_errors import Before, Handlers, ServeFrames
from penstock.remoting.limits import ConnectionLimits, ServerConnections, raise_open_files
from penstock.remoting.sockets import keep_alive, listen
from penstock.remoting.tls import PLAIN, ServerTls, TlsMode
from penstock.task_supervision import Supervisor

_AT_ONCE: Final = 256
"""Limit of the connections that are accepted in one turn of the loop, so that open connections are served in
between."""
_PAUSE_S: Final = 0.5


class Acceptor:
    """Accepts the connections of one listening socket. `close` closes the socket."""

    def __init__(
        self,
        listener: socket.socket,
        pool: ServerConnections,
        limits: ConnectionLimits,
        tls: ServerTls,
        make: Callable[[], Connection],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._pool = pool
        self._limits = limits
        self._tls = tls
        self._make = make
        self._silent: dict[socket.socket, tuple[str, float]] = {}
        """Connections that have not sent a byte yet: their host, and the loop's time at which they were accepted."""
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stops accepting, and closes connections that are not established yet."""
        if self._pause is None:
            self._loop.remove_reader(self._listener)
        else:
            self._pause.cancel()
        self._listener.close()
        for waiting in list(self._silent):
            self._drop(waiting)
        for task in self._opening:
            task.cancel()

    def sweep(self, now: float) -> None:
        """Closes connections that have not sent a byte for too long. `now` is the loop's time in seconds."""
        for waiting, (host, came_at) in list(self._silent.items()):
            if now - came_at > self._limits.first_frame_s:
                self._pool.refused((host, 0), f"no byte arrived within {self._limits.first_frame_s:g} s")
                self._drop(waiting)

    # -- accepting -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, name = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors or memory: a retry at once would fail, too
                self._pool.refused(("anyone", 0), f"the system cannot accept it ({error.strerror})")
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE_S, self._accept_again)
                return
            host, _ = address_of(name)
            if self._pool.admit(host, accepted.fileno()):
                self._receive(accepted, host)
            else:
                accepted.close()

    def _accept_again(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _receive(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        keep_alive(accepted)
        if not self._tls.peeks:
            self._open(accepted, host, None)
        elif not self._peek(accepted, host):
            self._silent[accepted] = (host, self._loop.time())
            self._loop.add_reader(accepted, self._peek_again, accepted)

    def _peek_again(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted)
        host, came_at = self._silent.pop(accepted)
        if not self._peek(accepted, host):
            self._silent[accepted] = (host, came_at)
            self._loop.add_reader(accepted, self._peek_again, accepted)

    def _peek(self, accepted: socket.socket, host: str) -> bool:
        """Opens or refuses the connection by its first byte. Returns False if no byte has arrived yet."""
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            first = b""
        if not first:
            accepted.close()
            self._pool.release(host)
        elif first[0] == TLS_HANDSHAKE:
            self._open(accepted, host, self._tls.context)
        elif self._tls.mode is TlsMode.ENFORCING:
            self._pool.refused((host, 0), "it does not use TLS, and tls.server.mode is enforcing")
            accepted.close()
            self._pool.release(host)
        else:
            self._open(accepted, host, None)
        return True

    def _drop(self, waiting: socket.socket) -> None:
        self._loop.remove_reader(waiting)
        host, _ = self._silent.pop(waiting)
        waiting.close()
        self._pool.release(host)

    # -- handing over ----------------------------------------------------------------------------------------

    def _open(self, accepted: socket.socket, host: str, context: ssl.SSLContext | None) -> None:
        connection = self._make()
        connection.on_close.append(lambda _: self._pool.release(host))
        task = self._loop.create_task(self._hand_over(accepted, connection, context))
        self._opening.add(task)
        task.add_done_callback(partial(self._on_handed_over, accepted, host, connection))

    async def _hand_over(self, accepted: socket.socket, connection: Connection, context: ssl.SSLContext | None) -> None:
        options: dict[str, Any] = {}
        if context is not None:
            options = {
                "ssl_handshake_timeout": self._limits.handshake_s,
                "ssl_shutdown_timeout": self._limits.goodbye_s,
            }
        await self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=context, **options)

    def _on_handed_over(
        self, accepted: socket.socket, host: str, connection: Connection, task: asyncio.Task[None]
    ) -> None:
        """Closes a connection that could not be opened. `_hand_over` cannot: a task that is cancelled before its first
        step runs no line of it.
        """
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        if connection.was_made:
            connection.abort()
        else:  # the handshake failed or never began, so connection_lost is never called
            accepted.close()
            self._pool.release(host)
        if isinstance(error, OSError):
            self._pool.refused((host, 0), f"its TLS handshake failed ({getattr(error, 'reason', '') or error})")
        elif error is not None:
            raise error


_logger = logging.getLogger("penstock.remoting")


class Server:
    """A server of remoting commands. Start and stop it once."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        limits: ConnectionLimits | None = None,
        tls: ServerTls = PLAIN,
        before: Before | None = None,
        serve_frames: ServeFrames | None = None,
        tasks: Supervisor | None = None,
        on_refused: Callable[[int], object] | None = None,
    ) -> None:
        """`tasks` supervises the background tasks; default: a Supervisor of its own. `on_refused` is called with the
        code of each request that is refused or fails; -1 for a code without a handler. `serve_frames` gets all frames
        before the handlers, and before `before`.
        """
        self._handlers = handlers
        self._limits = limits or ConnectionLimits()
        self._tls = tls
        self._before = before
        self.serve_frames = serve_frames
        """Gets all frames before the handlers; None if the handlers serve them all."""
        self._pool = ServerConnections(self._limits, on_refused)
        self._acceptor: Acceptor | None = None
        self._tasks = tasks or Supervisor(_logger)
        self._sweep_name = ""

    @property
    def pool(self) -> ServerConnections:
        """The open connections and their buffers."""
        return self._pool

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._pool.connections)

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> Address:
        """Starts to listen at `host` and `port`, or on the socket `bound`. Returns the address. Raises Unreachable.

        If `port` is 0, the returned address has the port that the system chose. `bound` is a socket that is bound
        already, for callers that needed to know the port earlier.
        """
        allowed = raise_open_files(self._limits.connections)
        self._pool.keep_reserve(allowed)
        if allowed < self._limits.connections:
            _logger.info("the system allows %d open files, so there will be fewer connections than the limit", allowed)
        listener = listen(host, port, bound)
        where = address_of(listener.getsockname())
        self._acceptor = Acceptor(listener, self._pool, self._limits, self._tls, self._make)
        self._sweep_name = f"sweep of connections at port {where[1]}"
        self._tasks.every(self._limits.sweep_s, self._sweep_name, self._sweep)
        return where

    async def stop(self, grace_s: float) -> None:
        """Closes the port and all connections. Connections with pending replies get up to `grace_s` seconds."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        self._acceptor = None
        for connection in self.connections:
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.empty.wait(), grace_s)
        for connection in self.connections:
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.empty.wait(), self._limits.goodbye_s)
        await self._tasks.end(self._sweep_name)

    def _make(self) -> Connection:
        return Connection(
            self._handlers, self._limits, before=self._before, pool=self._pool, serve_frames=self.serve_frames
        )

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        self._pool.sweep(now)
        if self._acceptor is not None:
            self._acceptor.sweep(now)
