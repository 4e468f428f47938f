"""What a connection may take from us: places, time and memory. One frozen value, shared by a server's connections.

A limit that is passed closes the connection that passed it, and no other. `Limits()` suits a broker that serves a few
thousand clients; tests make them small.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from penstock.protocol.frame import MAX_FRAME

_SPARE_FILES = 512
"""Descriptors for everything that is not a connection: the store's files, logs, the loop itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times are in seconds."""

    frame_bytes: int = MAX_FRAME

    connections: int = 16_384
    """At once, whoever they belong to; one too many is closed as soon as it is accepted."""
    connections_per_peer: int = 4_096
    """At once from one address."""

    first_frame_s: float = 30.0
    """From the accept to the first whole frame, a TLS handshake included."""
    handshake_s: float = 10.0
    """For the TLS handshake alone."""
    slow_frame_s: float = 60.0
    """From a frame's first byte to its last."""
    idle_s: float = 120.0
    """Without a byte in either direction; clients send a heartbeat every 30 s."""
    stalled_s: float = 60.0
    """For a peer that does not read what it asked for, from when its replies began to pile up."""
    goodbye_s: float = 5.0
    """For a peer that does not read what is still to be written when its connection is closed."""

    high_water: int = 1 << 20
    """Bytes that wait to be written to one peer; above it, no request of that peer is read or answered."""
    deferred: int = 4_096
    """Requests of one peer that are answered later; above it, no more of them are read."""

    incoming_bytes: int = 256 << 20
    """Of unfinished frames, over all connections; above it, the connection that holds most is closed."""
    outgoing_bytes: int = 256 << 20
    """Of what waits for peers that do not read, over all connections; above it, the one with most is closed."""

    @property
    def low_water(self) -> int:
        """Where we go on with a peer that was above the high water."""
        return self.high_water // 4

    @property
    def sweep_s(self) -> float:
        """How often the times are looked at: a limit is noticed at most a quarter late, and within a second."""
        shortest = min(self.first_frame_s, self.slow_frame_s, self.idle_s, self.stalled_s)
        return min(1.0, shortest / 4)


def raise_open_files(connections: int) -> int:
    """Lets this process open enough descriptors for so many connections, as far as it may; returns its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return target
