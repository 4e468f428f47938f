"""A client's connections, one for each address, opened when they are needed and again when they are gone.

Who asks for an address while it is being dialled waits for that one connection. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.errors import Unreachable
from penstock.remoting.connection import Connection, connect
from penstock.remoting.handlers import Handlers
from penstock.remoting.sockets import parse_address

_GOODBYE_S: Final = 1.0

Greeting = Callable[[str, Connection], Awaitable[None]]
"""Called with every new connection before anybody else has it; whatever it raises is the dialler's error."""


class ConnectionPool:
    """`handlers` answer what the peers ask us."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 3.0,
        greet: Greeting | None = None,
    ) -> None:
        self._handlers = handlers
        self._tls = tls
        self._timeout_s = timeout_s
        self._greet = greet
        self._open: dict[str, Connection] = {}
        self._dialling: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False
        self.on_lost: list[Callable[[str], None]] = []
        """Called with the address whose connection is gone, unless we closed it."""

    async def get(self, address: str) -> Connection:
        """The connection to `host:port`. Raises Unreachable, or BadSettings if that is no address."""
        found = self.find(address)
        if found is not None:
            return found
        if self._closed:
            raise Unreachable(f"cannot connect to {address}: this client is closed; make a new one")
        task = self._dialling.get(address)
        if task is None:
            task = self._dialling[address] = asyncio.create_task(self._dial(address))
            task.add_done_callback(lambda done: self._dialled(address, done))
        return await asyncio.shield(task)

    def find(self, address: str) -> Connection | None:
        """The connection to an address, if there is one now."""
        found = self._open.get(address)
        return None if found is None or found.closed else found

    def addresses(self) -> list[str]:
        """Those with a connection now."""
        return [address for address in self._open if self.find(address) is not None]

    async def close(self) -> None:
        """Closes all; nothing is dialled any more."""
        self._closed = True
        tasks = list(self._dialling.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._open = list(self._open.values()), {}
        left, gone = len(connections), asyncio.Event()

        def lost(connection: Connection) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                gone.set()

        for connection in connections:
            connection.on_close.append(lost)
            connection.close()
        if connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):  # TLS says goodbye, which takes the loop a moment
                    await gone.wait()

    async def _dial(self, address: str) -> Connection:
        place = parse_address(address, "the address")
        connection = await connect(place, handlers=self._handlers, tls=self._tls, timeout_s=self._timeout_s)
        try:
            if self._greet is not None:
                await self._greet(address, connection)
        except BaseException:
            connection.close()
            raise
        self._open[address] = connection
        connection.on_close.append(lambda gone: self._forget(address, gone))
        return connection

    def _dialled(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._dialling.pop(address, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it; nobody may wait any more

    def _forget(self, address: str, gone: Connection) -> None:
        if self._open.get(address) is gone:
            del self._open[address]
            for lost in self.on_lost:
                lost(address)
