"""Ports for processes that a test starts, and starts again: each is kept for its process, however often that dies.

A port that was only looked up could be given to somebody else before the process listens, or between its death and
its next life. So this process keeps a socket bound there that does not listen: the system gives the port to nobody
who asks for a free one, whoever connects is refused, and whoever names the port may listen, as servers do that reuse
addresses. Java's do, and ours. The sockets are kept until the tests end.
"""

from __future__ import annotations

import socket


def free_port() -> int:
    return _keep(0)


def free_port_pair() -> int:
    """A free port whose neighbour two below is free as well: Java's broker takes both."""
    while True:
        port = free_port()
        try:
            _keep(port - 2)
        except OSError:
            continue
        return port


def _keep(port: int) -> int:
    """Keeps that port, or one that the system chooses if it is 0, and returns it; OSError if somebody has it."""
    with socket.socket() as keeper:
        keeper.bind(("127.0.0.1", port))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: nobody else's is to be shared
        chosen = int(keeper.getsockname()[1])
        keeper.detach()  # so that nothing closes it
    return chosen
