"""Limits on connections: their number, their time and the memory of their buffers.

`ConnectionLimits` is one frozen value for all connections of a server. Its defaults suit a broker with a few thousand
clients. `ServerConnections` counts connections and buffered bytes. It closes the connection that exceeds a limit, and
no other. A connection counts from the moment it is accepted. Use everything here from the thread of the event loop
only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import resource
import sys
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from penstock.protocol.codes import RequestCode
from penstock.protocol.frame import MAX_FRAME
from penstock.rate_limited_log import RateLimitedLog

if TYPE_CHECKING:
    from penstock.remoting.connection import Address, Connection

_SPARE_FILES = 512
"""File descriptors reserved for the store's files, the logs and the loop; a quarter of all if the system allows few."""

_TRIM_AT: Final = 64 << 20
"""Buffers that took at least so much, and are empty again, are given back to the system."""
_QUIET: Final = 1 << 20
"""Buffers with fewer bytes count as empty."""

FLUSH_AT: Final = 256 << 10
"""The replies to the commands of one read are written together, up to about this many bytes."""
SMALL_BODY: Final = 64 << 10
BODY_LIMITS: Final[Mapping[int, int]] = {
    **dict.fromkeys(RequestCode, SMALL_BODY),
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            RequestCode.CHECK_TRANSACTION_STATE,
        ),
        MAX_FRAME,  # messages: as much as a frame may have; the store has a limit of its own
    ),
    RequestCode.REGISTER_BROKER: 8 << 20,  # all topics of a broker
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: 1 << 20,  # all queues of a topic
    RequestCode.HEART_BEAT: 512 << 10,  # about 4,000 subscriptions
    RequestCode.LOCK_BATCH_MQ: 256 << 10,  # about 3,000 queues
    RequestCode.UNLOCK_BATCH_MQ: 256 << 10,
}
"""Limit of a request's body in bytes, by the request's code. No body of at most SMALL_BODY bytes exceeds it. A larger
body is refused before it is decoded, so that one request cannot occupy the event loop for long. MAX_FRAME stands for
the limit of the server's frames: see `ConnectionLimits.body_limit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of a server's connections. Times are in seconds, sizes in bytes."""

    frame_bytes: int = MAX_FRAME

    connections: int = 16_384
    """Limit of open connections from all peers. A connection above it is closed as soon as it is accepted, and so is
    one that would take a descriptor which is reserved for the store."""
    connections_per_peer: int = 4_096
    """Limit of open connections from one address; lower if the system allows few open files."""

    first_frame_s: float = 30.0
    """Limit from the accept to the first whole frame, including a TLS handshake."""
    handshake_s: float = 10.0
    """Limit of the TLS handshake alone."""
    slow_frame_s: float = 60.0
    """Limit from a frame's first byte to its last."""
    idle_s: float = 120.0
    """Limit without a byte in either direction. Clients send a heartbeat every 30 seconds."""
    stalled_s: float = 60.0
    """Limit for a peer that does not read its replies, from when the write buffer exceeded `high_water`."""
    goodbye_s: float = 5.0
    """Limit for a peer to read the rest of its replies after its connection was closed."""

    high_water: int = 1 << 20
    """Limit of unsent bytes for one peer. Above it, the peer's requests are neither read nor answered
    (back-pressure)."""
    deferred: int = 4_096
    """Limit of one peer's unanswered requests. At this number, no more of its requests are read."""

    turn_bytes: int = 4 << 20
    """Bytes of large frames that are handled in one turn of the loop, over all connections. Above it, the connections
    with large frames wait in line; small requests of others are served meanwhile."""
    turn_s: float = 0.02
    """Time for one connection's requests in one turn of the loop. Above it, the connection waits in line with the rest
    of them; the request that is being handled goes on."""
    in_line: int = 64
    """Limit of the connections that wait in line so, each with the decoded requests of one read. Others are served at
    once."""
    deferred_bytes: int = 16 << 20
    """Limit of the bytes of one peer's unanswered requests. At this number, no more of its requests are read."""

    waiting_bytes: int = 256 << 20
    """Limit of the bytes of unanswered requests, over all connections. Above it, the connection with the most is
    closed."""
    incoming_bytes: int = 256 << 20
    """Limit of the bytes of incomplete frames, over all connections. Above it, the connection with the most is
    closed."""
    outgoing_bytes: int = 256 << 20
    """Limit of unsent bytes, over all connections whose peers do not read. Above it, the connection with the most is
    closed."""

    def body_limit(self, code: int) -> int:
        """Returns the limit of a request's body in bytes, by the request's code."""
        limit = BODY_LIMITS.get(code, MAX_FRAME)
        return max(self.frame_bytes, limit) if limit == MAX_FRAME else limit

    @property
    def low_water(self) -> int:
        """The number of unsent bytes below which a blocked peer is served again."""
        return self.high_water // 4

    @property
    def sweep_s(self) -> float:
        """Seconds between two checks of the time limits. Connections over a limit are closed at the next check."""
        shortest = min(self.first_frame_s, self.slow_frame_s, self.idle_s, self.stalled_s)
        return min(1.0, shortest / 4)


def raise_open_files(connections: int) -> int:
    """Raises this process's limit of open files to fit this many connections, as far as the system allows.

    Returns the limit now in force.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    if soft >= wanted:
        return soft
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return target


_logger = logging.getLogger("penstock.remoting")


class ServerConnections:
    """All connections of one server, with their buffered bytes."""

    def __init__(self, limits: ConnectionLimits, on_refused: Callable[[int], object] | None = None) -> None:
        """`on_refused` is called with the code of each request that is refused or fails; -1 for an unknown code."""
        self._limits = limits
        self._on_refused = on_refused
        self._most_of_one = limits.connections_per_peer
        self._last_descriptor = sys.maxsize
        self._places: Counter[str] = Counter()
        self._taken = 0
        self._lines = RateLimitedLog(_logger)
        self.connections: set[Connection] = set()
        self.held_bytes = 0
        """Bytes of incomplete frames, over all connections."""
        self.unsent_bytes = 0
        """Bytes of replies to peers that do not read, over all connections."""
        self.deferred_bytes = 0
        """Bytes of unanswered requests, over all connections, also those that are closed."""
        self._most_buffered = 0
        """The most bytes that the three above had together since memory was given back to the system."""
        self._turn_bytes = 0
        """Bytes of large frames that were handled in this turn of the loop."""
        self._turn_is_due = False
        self._in_line: deque[tuple[Connection, int]] = deque()
        """Connections that wait for their turn, each with the bytes that it is going to handle."""
        self.empty = asyncio.Event()
        self.empty.set()

    def __len__(self) -> int:
        return self._taken

    # -- admission -------------------------------------------------------------------------------------------

    def keep_reserve(self, open_files: int) -> None:
        """Reserves descriptors for the store, of the `open_files` that this process may have.

        A host gets at most three quarters of the others, so that one host cannot keep all others out.
        """
        for_connections = open_files - min(_SPARE_FILES, open_files // 4)
        self._last_descriptor = for_connections - 1
        self._most_of_one = min(self._limits.connections_per_peer, for_connections * 3 // 4)

    def admit(self, host: str, descriptor: int) -> bool:
        """Returns whether one more connection from this host is allowed. If so, it counts from now on.

        The system gives out the lowest free `descriptor`, so it tells how many the whole process has.
        """
        if self._taken >= self._limits.connections:
            self.refused((host, 0), f"there are {self._taken} connections already")
        elif descriptor > self._last_descriptor:
            self.refused((host, 0), "the other open files that the system allows are reserved for the store")
        elif self._places[host] >= self._most_of_one:
            self.refused((host, 0), f"it has {self._places[host]} connections already")
        else:
            self._places[host] += 1
            self._taken += 1
            self.empty.clear()
            return True
        return False

    def release(self, host: str) -> None:
        self._taken -= 1
        self._places[host] -= 1
        if self._places[host] <= 0:
            del self._places[host]
        if not self._taken:
            self.empty.set()

    def refused(self, peer: Address, why: str) -> None:
        """Logs that a connection was refused or closed. The lines are rate-limited."""
        where = f"{peer[0]}:{peer[1]}" if peer[1] else peer[0]
        self._lines.warn(f"closed a connection from {where}: {why}")

    def request_refused(self, code: int) -> None:
        """Counts a request that was refused or failed."""
        if self._on_refused is not None:
            self._on_refused(code)

    # -- connections -----------------------------------------------------------------------------------------

    def add(self, connection: Connection) -> None:
        self.connections.add(connection)
        _logger.debug("connection from %s:%d opened", *connection.peer)

    def remove(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.forget_buffers(connection)
        _logger.debug("connection from %s:%d closed", *connection.peer)

    def forget_buffers(self, connection: Connection) -> None:
        """Stops counting the buffers of a connection that is closing. Its unanswered requests are still there."""
        self.held_bytes -= connection.held_bytes
        self.unsent_bytes -= connection.unsent_bytes
        connection.held_bytes = connection.unsent_bytes = 0

    def set_held(self, connection: Connection, count: int) -> None:
        """Records that the connection's incomplete frame has `count` bytes. May close one: see `incoming_bytes`."""
        self.held_bytes += count - connection.held_bytes
        connection.held_bytes = count
        self._note_most()
        if self.held_bytes > self._limits.incoming_bytes:
            most = max(self.connections, key=lambda each: each.held_bytes)
            most.drop_peer(f"incomplete frames take {self.held_bytes} bytes, and its own is the largest")

    def set_unsent(self, connection: Connection, count: int) -> None:
        """Records that the connection has `count` unsent bytes. May close one: see `outgoing_bytes`."""
        self.unsent_bytes += count - connection.unsent_bytes
        connection.unsent_bytes = count
        self._note_most()
        if self.unsent_bytes > self._limits.outgoing_bytes:
            most = max(self.connections, key=lambda each: each.unsent_bytes)
            most.drop_peer(f"{self.unsent_bytes} bytes wait for peers that do not read, and it has most of them")

    def add_deferred(self, connection: Connection, count: int) -> None:
        """Records that the connection's unanswered requests have `count` more bytes. May close one: see
        `waiting_bytes`."""
        self.deferred_bytes += count
        connection.deferred_bytes += count
        self._note_most()
        if count > 0 and self.deferred_bytes > self._limits.waiting_bytes:
            most = max(self.connections, key=lambda each: each.deferred_bytes)
            most.drop_peer(f"unanswered requests take {self.deferred_bytes} bytes, and it has most of them")

    @property
    def _buffered(self) -> int:
        return self.held_bytes + self.unsent_bytes + self.deferred_bytes

    def _note_most(self) -> None:
        if (buffered := self._buffered) > self._most_buffered:
            self._most_buffered = buffered

    def _give_back_memory(self) -> None:
        """Returns the memory of buffers that are gone to the system. C's allocator may keep all of it for later."""
        if self._most_buffered >= _TRIM_AT and self._buffered < _QUIET:
            self._most_buffered = 0
            with contextlib.suppress(AttributeError, OSError):  # glibc has this function, other C libraries do not
                ctypes.CDLL(None).malloc_trim(0)

    # -- turns -----------------------------------------------------------------------------------------------

    def take_turn(self, connection: Connection, size: int) -> bool:
        """Whether the connection may handle `size` bytes of a large frame in this turn of the loop. If not, it gets in
        line, and `Connection.go_on` is called when its turn has come.
        """
        self._plan_next_turn()
        if self._turn_bytes >= self._limits.turn_bytes:
            self._in_line.append((connection, size))
            return False
        self._turn_bytes += size
        return True

    def wait_in_line(self, connection: Connection) -> bool:
        """Puts a connection in line that has used up its time in this turn of the loop. See `take_turn`.

        Returns False if too many are in line already.
        """
        if len(self._in_line) >= self._limits.in_line:
            return False
        self._plan_next_turn()
        self._in_line.append((connection, 0))
        return True

    def _plan_next_turn(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        ends_at = monotonic() + self._limits.turn_s
        while self._in_line and self._turn_bytes < self._limits.turn_bytes:
            connection, size = self._in_line.popleft()
            self._turn_bytes += size
            try:
                connection.go_on()
            except Exception:  # the line must move on
                _logger.exception("%r failed", connection)
                connection.abort()
            if monotonic() >= ends_at:
                break
        self._turn_is_due = bool(self._in_line or self._turn_bytes)
        if self._turn_is_due:
            asyncio.get_running_loop().call_soon(self._next_turn)

    # -- time ------------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Closes connections that exceed a time limit, and gives back memory that they no longer need.

        `now` is the loop's time in seconds.
        """
        self._give_back_memory()
        for connection in list(self.connections):
            if not connection.closed and (why := self._over_time(connection, now)):
                connection.drop_peer(why)

    def _over_time(self, connection: Connection, now: float) -> str:
        limits = self._limits
        if connection.congested:
            if now - connection.congested_at > limits.stalled_s:
                return f"it has not read its replies for {limits.stalled_s:g} s"
            return ""
        if connection.is_held_up:
            return ""  # we stopped reading, so the peer is not late
        if not connection.has_spoken and now - connection.opened_at > limits.first_frame_s:
            return f"no complete frame arrived within {limits.first_frame_s:g} s"
        if connection.held_bytes and now - connection.frame_began_at > limits.slow_frame_s:
            return f"a frame took longer than {limits.slow_frame_s:g} s"
        if now - connection.active_at > limits.idle_s:
            return f"it sent nothing for {limits.idle_s:g} s"
        return ""
