"""How the console of a broker that has died gives way to the console of the broker that is started again.

A console that `penstock serve` started stays up when its broker dies, so that a person who looks sees what happened.
Then it keeps the console's port. The next `penstock serve` of the same store calls `take_over`, which connects to a
Unix socket of that console and returns when the console has ended. The socket has an abstract name made of the user and
the store, so nothing is left on disk. Only the same user or root can make a console end. Linux only; elsewhere the old
console has to be ended by hand.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_ALONE_S: Final = 24 * 3600.0
"""Seconds after which a console without a broker ends by itself."""
_LEAVE_S: Final = 8.0
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group of the other side of a Unix socket."""


def take_over(store: Path) -> bool:
    """Ends the console that a dead broker of this store left behind. Returns whether there was one.

    Returns when it has ended, or after eight seconds.
    """
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_LEAVE_S)
        connection.connect(_name(store))
        if not _is_of_this_user(connection):
            return False
        with suppress(OSError):
            connection.recv(1)  # the console sends nothing; its end closes the connection
        return True
    return False


async def wait_for_successor(store: Path | None, seconds: float = MAX_ALONE_S) -> None:
    """Returns when a successor calls `take_over`, or after so many seconds."""
    asked = asyncio.Event()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            if store is None:
                await asked.wait()
                return
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                with suppress(OSError):  # not Linux, or the name is taken: only the time limit ends this console
                    listener.bind(_name(store))
                    listener.listen(1)
                    listener.setblocking(False)
                    while True:
                        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                        if _is_of_this_user(connection):
                            connection.detach()  # stays open until this process ends, which tells the successor
                            return
                        connection.close()
                await asked.wait()


def _name(store: Path) -> str:
    place = hashlib.sha256(os.fsencode(store.absolute())).hexdigest()[:32]
    return f"\0penstock-console-{os.getuid()}-{place}"


def _is_of_this_user(connection: socket.socket) -> bool:
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return False
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    return user in (0, os.getuid())
