"""What a connection may take from us: places, time and memory. One frozen value, shared by a server's connections.

A limit that is passed closes the connection that passed it, and no other. `Limits()` suits a broker that serves a few
thousand clients; tests make them small.


The connections of one server: how many there are, what they hold, and which have outstayed their time.

A connection counts from its accept. `sweep` closes those that say nothing, send a frame too slowly, stay idle or do
not read; a sum of buffers above its limit closes the connection with the largest. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.protocol.frame import MAX_FRAME
from penstock.remoting.rate_limited_log import Seldom

if TYPE_CHECKING:
    from penstock.remoting.connection import Address, Connection

_SPARE_FILES = 512
"""Descriptors for everything that is not a connection: the store's files, logs, the loop itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
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


_logger = logging.getLogger("penstock.remoting")


class Pool:
    """Knows every connection, and nothing of what they carry."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._places: Counter[str] = Counter()
        self._taken = 0
        self._lines = Seldom(_logger)
        self.connections: set[Connection] = set()
        self.held_bytes = 0
        """Of unfinished frames."""
        self.unsent_bytes = 0
        """Of replies to peers that do not read them."""
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return self._taken

    # -- places ----------------------------------------------------------------------------------------------

    def take_place(self, host: str) -> bool:
        """Whether one more may come in from this host; if so, it counts from now on."""
        if self._taken >= self._limits.connections:
            self.refused((host, 0), f"there are {self._taken} connections already")
        elif self._places[host] >= self._limits.connections_per_peer:
            self.refused((host, 0), f"it has {self._places[host]} connections already")
        else:
            self._places[host] += 1
            self._taken += 1
            self.empty.clear()
            return True
        return False

    def leave_place(self, host: str) -> None:
        self._taken -= 1
        self._places[host] -= 1
        if self._places[host] <= 0:
            del self._places[host]
        if not self._taken:
            self.empty.set()

    def refused(self, peer: Address, why: str) -> None:
        """Says so, seldom enough for a log to survive it."""
        where = f"{peer[0]}:{peer[1]}" if peer[1] else peer[0]
        self._lines.warn(f"closed a connection from {where}: {why}")

    # -- connections -----------------------------------------------------------------------------------------

    def add(self, connection: Connection) -> None:
        self.connections.add(connection)

    def remove(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.forget_buffers(connection)

    def forget_buffers(self, connection: Connection) -> None:
        """What this connection holds is given back, or is about to be."""
        self.held_bytes -= connection.held_bytes
        self.unsent_bytes -= connection.unsent_bytes
        connection.held_bytes = connection.unsent_bytes = 0

    def set_held(self, connection: Connection, count: int) -> None:
        """So many bytes of an unfinished frame are held for this connection."""
        self.held_bytes += count - connection.held_bytes
        connection.held_bytes = count
        if self.held_bytes > self._limits.incoming_bytes:
            most = max(self.connections, key=lambda each: each.held_bytes)
            most.give_up(f"unfinished frames take {self.held_bytes} bytes, and its own is the largest")

    def set_unsent(self, connection: Connection, count: int) -> None:
        """So many bytes wait for this connection's peer."""
        self.unsent_bytes += count - connection.unsent_bytes
        connection.unsent_bytes = count
        if self.unsent_bytes > self._limits.outgoing_bytes:
            most = max(self.connections, key=lambda each: each.unsent_bytes)
            most.give_up(f"{self.unsent_bytes} bytes wait for peers that do not read, and it has most of them")

    # -- time ------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Closes those that are over time."""
        for connection in list(self.connections):
            if not connection.closed and (why := self._over_time(connection, now)):
                connection.give_up(why)

    def _over_time(self, connection: Connection, now: float) -> str:
        limits = self._limits
        if connection.congested:
            if now - connection.congested_at > limits.stalled_s:
                return f"it has not read its replies for {limits.stalled_s:g} s"
            return ""
        if connection.is_held_up:
            return ""  # neither its silence nor half a frame is its fault
        if not connection.has_spoken and now - connection.opened_at > limits.first_frame_s:
            return f"no whole frame came within {limits.first_frame_s:g} s"
        if connection.held_bytes and now - connection.frame_began_at > limits.slow_frame_s:
            return f"a frame took longer than {limits.slow_frame_s:g} s"
        if now - connection.active_at > limits.idle_s:
            return f"nothing was heard of it for {limits.idle_s:g} s"
        return ""
