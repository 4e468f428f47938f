"""Addresses as people write them: `host:port`, an IPv6 address in brackets."""

from __future__ import annotations

from penstock.errors import BadSettings


def parse_address(text: str, what: str) -> tuple[str, int]:
    """`host:port` as its two parts, an IPv6 address without its brackets; raises BadSettings naming `what`."""
    host, colon, port = text.strip().rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadSettings(f"{what} is {text!r}; it must be HOST:PORT, as in 127.0.0.1:9876")
    return host, int(port)
