"""Addresses as `host:port`, listening sockets, and the options that every connection gets."""

from __future__ import annotations

import contextlib
import socket
from typing import Final, Protocol

from penstock.errors import BadSettings, Unreachable


def parse_address(text: str, what: str) -> tuple[str, int]:
    """Splits `host:port`, with an IPv6 address in brackets. Raises BadSettings, whose text names the setting `what`."""
    host, colon, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadSettings(f"{what} is {text!r}; it must be HOST:PORT, as in 127.0.0.1:9876")
    return host, int(port)


_BACKLOG: Final = 4096
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 60_000),  # milliseconds that sent data may stay unacknowledged
)


class _HasOptions(Protocol):
    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def bind(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen yet. Prefers IPv4 if the host name has both. Raises Unreachable.

    A port that the system chose (`port` is 0) cannot be bound by others before it listens. A port with a number can,
    because a restart must not wait for old connections to be forgotten.
    """
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, port != 0)
        listener.setblocking(False)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def listen(host: str, port: int, bound: socket.socket | None = None) -> socket.socket:
    """Returns a listening socket: `bound` if given, else a new one. Raises Unreachable."""
    listener = bound or bind(host, port)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its connections do not block a restart
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> Unreachable:
    what = f"cannot listen at {host}:{port}: {error.strerror}"
    return Unreachable(f"{what}; choose another address, or stop the process that uses it")


def keep_alive(connected: _HasOptions) -> None:
    """Sets socket options by which the system notices a peer that disappeared without closing the connection."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
