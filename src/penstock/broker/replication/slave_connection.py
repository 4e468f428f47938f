"""One slave, as its master sees it: an asyncio protocol that sends the log and takes reports.

Only what the store shows to consumers is sent: what is committed, and under SYNC_FLUSH what is on disk, so that a slave
is never ahead of what its master has after a crash. Bytes are sent as fast as the slave reads them, and not more than a
megabyte in one go, so that clients are served in between. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, cast

from penstock.broker.replication.wire import EVERYTHING, FRAME, REPORT
from penstock.remoting.connection import Address, address_of
from penstock.remoting.sockets import keep_alive
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

_AT_ONCE: Final = 1 << 20
_NOT_STARTED: Final = -1


class SlaveConnection(asyncio.Protocol):
    """`admit` says why a host may not follow, or nothing; `gone` is called when the connection ends."""

    def __init__(
        self, store: MessageStore, admit: Callable[[str], str], gone: Callable[[SlaveConnection], object]
    ) -> None:
        self._store = store
        self._admit = admit
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._half = b""
        self._paused = False
        self._send_is_due = False
        self._next = _NOT_STARTED
        self.peer: Address = ("", 0)
        self.acknowledged = 0
        """The offset up to which this slave says that it has the log."""
        self.acknowledged_ms = 0
        """When it last said so, epoch ms."""
        self.heard_at = self.wrote_at = self._loop.time()

    @property
    def follows(self) -> bool:
        """Whether it has said where it is, and gets the log."""
        return self._next != _NOT_STARTED

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def sent(self) -> int:
        """How far the log was sent to it."""
        return max(self._next, 0)

    def __str__(self) -> str:
        return f"slave {self.peer[0]}:{self.peer[1]}"

    # -- as a protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = opened = cast(asyncio.Transport, transport)
        self.peer = address_of(transport.get_extra_info("peername"))
        keep_alive(transport.get_extra_info("socket"))
        opened.set_write_buffer_limits(high=_AT_ONCE)
        if why := self._admit(self.peer[0]):
            self.give_up(f"it may not follow: {why}")

    def data_received(self, data: bytes) -> None:
        """Reports; only the newest of those that came together counts."""
        self._half += data
        whole = len(self._half) // REPORT.size * REPORT.size
        if whole and self._is_open:
            (offset,) = REPORT.unpack_from(self._half, whole - REPORT.size)
            self._half = self._half[whole:]
            self.heard_at = self._loop.time()
            self._reported(offset)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.send_more()

    def connection_lost(self, error: Exception | None) -> None:
        if self.follows:
            self._store.replicas.left()
            log.info("%s has gone", self)
        self._next = _NOT_STARTED
        self._gone(self)

    def end(self) -> None:
        """Ends the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    def give_up(self, why: str) -> None:
        """Ends the connection, and says why."""
        log.warning("%s is cut off: %s", self, why)
        if self._transport is not None:
            self._transport.abort()

    # -- reports ---------------------------------------------------------------------------------------------

    def _reported(self, offset: int) -> None:
        if not self.follows and not self._begin(offset):
            return
        if offset > self._next:
            self.give_up(f"it says that it has {offset} bytes of the log, and only {self._next} were sent")
            return
        self.acknowledged_ms = time.time_ns() // 1_000_000
        if offset > self.acknowledged:
            self.acknowledged = offset
            self._store.replicas.acknowledge(offset)

    def _begin(self, offset: int) -> bool:
        """Where to begin, from a slave's first report; false if there is no such place."""
        queue, end = self._store.log.queue, self._store.log.confirmed_offset
        lowest = max(0, queue.min_offset)
        if offset == EVERYTHING:
            start = lowest
        elif offset == 0:
            start = max(end - end % queue.file_size, lowest)
        elif offset < lowest:
            self.give_up(
                f"it wants the log from {offset} on, which begins at {lowest}; start it with a copy of this one"
            )
            return False
        elif offset > end:
            self.give_up(
                f"it has {offset} bytes of a log, and this master only {end}: they are not the same; see its own log"
            )
            return False
        else:
            start = offset
        self._next = start
        self._store.replicas.joined()
        log.info("%s follows from %d on", self, start)
        self.send_more()
        return True

    # -- sending ---------------------------------------------------------------------------------------------

    def send_more(self) -> None:
        """Sends what there is, as far as the slave reads it."""
        if self._paused or not self.follows or not self._is_open:
            return
        pieces: list[bytes] = []
        size, end, most = 0, self._store.log.confirmed_offset, self._store.settings.ha_transfer_batch_size
        queue = self._store.log.queue
        while self._next < end and size < _AT_ONCE:
            at = self._next % queue.file_size
            count = min(most, end - self._next, queue.file_size - at)
            data = queue.read(self._next, count)
            if data is None:
                self.give_up(f"the log at {self._next}, which it needs next, was deleted")
                return
            pieces += (FRAME.pack(self._next, count), data)
            self._next += count
            size += count
        if pieces:
            self._write(b"".join(pieces))
        if self._next < end and not self._send_is_due:
            self._send_is_due = True
            self._loop.call_soon(self._send_again)

    def _send_again(self) -> None:
        self._send_is_due = False
        self.send_more()

    def beat(self) -> None:
        """A heartbeat, as there was nothing to send for a while."""
        if self.follows and not self._paused:
            self._write(FRAME.pack(self._next, 0))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self.wrote_at = self._loop.time()
            self._transport.write(data)
