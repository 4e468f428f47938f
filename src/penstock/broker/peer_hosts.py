"""Peers in the form in which records hold hosts, made once for each connection."""

from __future__ import annotations

from penstock.remoting.connection import Connection


def host_text(host: str, port: int) -> str:
    """`ip:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PeerHosts(dict[Connection, str]):
    """By connection; a connection that closes is forgotten."""

    def __missing__(self, connection: Connection) -> str:
        text = self[connection] = host_text(*connection.peer)
        connection.on_close.append(self._forget)
        return text

    def _forget(self, connection: Connection) -> None:
        self.pop(connection, None)
