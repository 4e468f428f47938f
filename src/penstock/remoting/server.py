"""A listening port and the connections that came in through it.

    server = Server({RequestCode.GET_MAX_OFFSET: handle}, before=access.check)
    host, port = await server.start("127.0.0.1", 0)
    ...
    await server.stop(grace_s=5)

Plain and TLS connections share the port. `handlers` may be any mapping and is asked anew for every request, `before`
sees every request first. `stop` takes nothing new, lets replies under way go out, and is over within its time; what a
handler left to answer later with `send` must be answered before. Belongs to the thread of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

from penstock.remoting.admission import Admission
from penstock.remoting.connection import Address, Connection, address_of
from penstock.remoting.handlers import Before, Handlers
from penstock.remoting.limits import Limits, raise_open_files
from penstock.remoting.pool import Pool
from penstock.remoting.sockets import listen
from penstock.remoting.tls import PLAIN, ServerTls

_logger = logging.getLogger("penstock.remoting")


class Server:
    """Started once, stopped once."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        limits: Limits | None = None,
        tls: ServerTls = PLAIN,
        before: Before | None = None,
    ) -> None:
        self._handlers = handlers
        self._limits = limits or Limits()
        self._tls = tls
        self._before = before
        self._pool = Pool(self._limits)
        self._admission: Admission | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def pool(self) -> Pool:
        """The connections, and what they hold."""
        return self._pool

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._pool.connections)

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> Address:
        """Listens from now on; returns where, which tells the port if 0 was asked for. Raises Unreachable.

        Who had to know the port before gives a socket that is `bound` to it.
        """
        allowed = raise_open_files(self._limits.connections)
        if allowed < self._limits.connections:
            _logger.info("the system allows %d open files, so there will be fewer connections than the limit", allowed)
        listener = listen(host, port, bound)
        where = address_of(listener.getsockname())
        self._admission = Admission(listener, self._pool, self._limits, self._tls, self._make)
        self._sweep()
        return where

    async def stop(self, grace_s: float) -> None:
        """Closes the port and all connections; those that still owe a reply have `grace_s` for it."""
        if self._admission is None:
            return
        self._admission.close()
        self._admission = None
        for connection in self.connections:
            connection.finish()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.empty.wait(), grace_s)
        for connection in self.connections:
            connection.abort()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.empty.wait(), self._limits.goodbye_s)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()

    def _make(self) -> Connection:
        return Connection(self._handlers, self._limits, before=self._before, pool=self._pool)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._pool.sweep(now)
        if self._admission is not None:
            self._admission.sweep(now)
        self._sweep_timer = loop.call_later(self._limits.sweep_s, self._sweep)
