"""A client's connections: one per address, opened on first use. After a lost connection, the next use opens a new one.

Concurrent callers of `get` share one connection attempt. The pool is not thread-safe: use it from the event loop's
thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.errors import Unreachable
from penstock.remoting.connection import Connection, connect
from penstock.remoting.handler_types_and_errors import Handlers
from penstock.remoting.sockets import parse_address

T = TypeVar("T")
_CLOSE_S: Final = 1.0

OnConnect = Callable[[str, Connection], Awaitable[None]]
"""Called with the address and each new connection, before `get` returns the connection. If it raises, `get` raises the
same error.
"""


class ConnectionPool:
    """The connections of one client. `handlers` handle the requests that brokers send over them."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 3.0,
        on_connect: OnConnect | None = None,
    ) -> None:
        self._handlers = handlers
        self._tls = tls
        self._timeout_s = timeout_s
        self._on_connect = on_connect
        self._open: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False
        self.on_lost: list[Callable[[str], None]] = []
        """Callbacks; each is called with the address of a connection that the peer or the network closed."""

    async def get(self, address: str) -> Connection:
        """Returns the connection to `address`, a `host:port`. Raises Unreachable, or BadSettings for an invalid
        address.
        """
        connection = self.find(address)
        if connection is not None:
            return connection
        if self._closed:
            raise _closed(address)
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = asyncio.create_task(self._connect(address))
            task.add_done_callback(lambda done: self._connected(address, done))
        return await shared(task, lambda: _closed(address))

    def find(self, address: str) -> Connection | None:
        """Returns the open connection to an address, or None."""
        connection = self._open.get(address)
        return None if connection is None or connection.closed else connection

    def addresses(self) -> list[str]:
        """Returns the addresses that have an open connection."""
        return [address for address in self._open if self.find(address) is not None]

    async def close(self) -> None:
        """Closes all connections. Afterwards `get` raises Unreachable."""
        self._closed = True
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._open = list(self._open.values()), {}
        left, gone = len(connections), asyncio.Event()

        def on_close(connection: Connection) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                gone.set()

        for connection in connections:
            connection.on_close.append(on_close)
            connection.close()
        if connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):  # TLS needs a moment for its close_notify
                    await gone.wait()

    async def _connect(self, address: str) -> Connection:
        host_port = parse_address(address, "the address")
        connection = await connect(host_port, handlers=self._handlers, tls=self._tls, timeout_s=self._timeout_s)
        try:
            if self._on_connect is not None:
                await self._on_connect(address, connection)
        except BaseException:
            connection.close()
            raise
        self._open[address] = connection
        connection.on_close.append(lambda gone: self._forget(address, gone))
        return connection

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, because all callers may have been cancelled

    def _forget(self, address: str, gone: Connection) -> None:
        if self._open.get(address) is gone:
            del self._open[address]
            for notify in self.on_lost:
                notify(address)


async def shared(task: asyncio.Task[T], closed: Callable[[], Unreachable]) -> T:
    """Returns the result of a task that several callers wait for. Raises what `closed` returns if the client that owns
    the task cancels it, so that a caller is not taken for cancelled.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise closed() from None
        raise


def _closed(address: str) -> Unreachable:
    return Unreachable(f"cannot connect to {address}: this client is closed; create a new one")
