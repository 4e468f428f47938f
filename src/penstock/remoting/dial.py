"""Connections that we open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from penstock.errors import Unreachable
from penstock.remoting.connection import Address, Connection
from penstock.remoting.handlers import Handler
from penstock.remoting.limits import Limits
from penstock.remoting.sockets import keep_alive


async def connect(
    address: Address,
    *,
    handlers: Mapping[int, Handler] | None = None,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 3.0,
    limits: Limits | None = None,
) -> Connection:
    """A connection to (host, port); `handlers` answer what the peer asks us. Raises Unreachable."""
    host, port = address
    loop = asyncio.get_running_loop()
    connection = Connection(handlers or {}, limits or Limits())
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
