"""Hosts in records: the IP (4 or 16 bytes), then the port as a 4-byte integer.

The text form is `ip:port`, with an IPv6 address in brackets: `127.0.0.1:10911`, `[1050::5:600:300c:326b]:10911`.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from typing import Final

from penstock.errors import BadMessage, CorruptData

IPV4_HOST_SIZE: Final = 8
IPV6_HOST_SIZE: Final = 20
MAX_PORT: Final = 0xFFFF
MAX_STORED_PORT: Final = 0xFFFFFFFF
"""The largest port in four bytes. A damaged record may have such a port, and must still be displayed."""


@lru_cache(maxsize=4096)
def encode_host(host: str, max_port: int = MAX_PORT) -> bytes:
    """Returns the 8 bytes of an IPv4 host or the 20 bytes of an IPv6 host.

    Raises BadMessage if the text is malformed or the port exceeds `max_port`.
    """
    address, colon, port_text = host.rpartition(":")
    if not (colon and port_text.isascii() and port_text.isdigit() and int(port_text) <= max_port):
        raise _bad_host(host)
    port = int(port_text).to_bytes(4, "big")
    try:
        if address.startswith("[") and address.endswith("]"):
            return socket.inet_pton(socket.AF_INET6, address[1:-1]) + port
        return socket.inet_pton(socket.AF_INET, address) + port
    except (OSError, ValueError):
        raise _bad_host(host) from None


@lru_cache(maxsize=4096)
def decode_host(data: bytes) -> str:
    """Returns the text form of a host of 8 or 20 bytes, even with an invalid port. Raises CorruptData otherwise."""
    if len(data) == IPV4_HOST_SIZE:
        address = socket.inet_ntop(socket.AF_INET, data[:4])
    elif len(data) == IPV6_HOST_SIZE:
        address = f"[{socket.inet_ntop(socket.AF_INET6, data[:16])}]"
    else:
        raise CorruptData("a host takes 8 bytes (IPv4) or 20 (IPv6)", expected="8 or 20", found=len(data))
    return f"{address}:{int.from_bytes(data[-4:], 'big')}"


def _bad_host(host: str) -> BadMessage:
    return BadMessage(f"'{host}' is not a host; write 'ip:port', with an IPv6 address in brackets")
