"""Addresses as people write them: `host:port`, an IPv6 address in brackets.

Sockets before a loop takes them over: listening, and the options that all connections get.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final, Protocol

from penstock.errors import BadSettings, Unreachable


def parse_address(text: str, what: str) -> tuple[str, int]:
    """`host:port` as its two parts, an IPv6 address without its brackets; raises BadSettings naming `what`."""
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
    ("TCP_USER_TIMEOUT", 60_000),  # for what was sent and is not acknowledged, in milliseconds
)


class _HasOptions(Protocol):
    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def bind(host: str, port: int) -> socket.socket:
    """A socket that has an address, and does not listen yet; IPv4 if the name has both kinds. Raises Unreachable."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def listen(host: str, port: int, bound: socket.socket | None = None) -> socket.socket:
    """A socket that listens at one address, or the one that is `bound` there already. Raises Unreachable."""
    listener = bound or bind(host, port)
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> Unreachable:
    what = f"cannot listen at {host}:{port}: {error.strerror}"
    return Unreachable(f"{what}; choose another address, or stop what is there")


def keep_alive(connected: _HasOptions) -> None:
    """Has the system find out when the other side is gone without a word."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
