"""One slave, as its master sees it: an asyncio protocol that sends the log and takes reports.

Only what the store shows to consumers is sent: what is committed, and under SYNC_FLUSH what is on disk, so that a slave
is never ahead of what its master has after a crash. Bytes are sent as fast as the slave reads them. The loop sends what
was just written; to a slave that is further behind a thread sends (`catch_up`), or it reads for the loop where the
connection is encrypted. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, cast

from penstock.broker.replication.catch_up import Laggard
from penstock.broker.replication.frames import AT_ONCE, LogIsGone, frames
from penstock.broker.replication.wire import EVERYTHING, FRAME, REPORT
from penstock.remoting.connection import Address, address_of
from penstock.remoting.sockets import keep_alive
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

_NOT_STARTED: Final = -1
_ONE_TURN: Final = 64 << 20
"""So much a thread sends before the loop looks again."""


class SlaveConnection(asyncio.Protocol):
    """`admit` says why a host may not follow, or nothing; `gone` is called when the connection ends.

    `threads` has one for each slave.
    """

    def __init__(
        self,
        store: MessageStore,
        threads: Executor,
        admit: Callable[[str], str],
        gone: Callable[[SlaveConnection], object],
    ) -> None:
        self._store = store
        self._threads = threads
        self._admit = admit
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._half = b""
        self._paused = False
        self._next = _NOT_STARTED
        self._promised = 0
        """How far a thread may have sent the log already; 0 if none is at it."""
        self._laggard: Laggard | None = None
        self._is_encrypted = False
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
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        opened.set_write_buffer_limits(high=AT_ONCE if self._is_encrypted else 0)
        if why := self._admit(self.peer[0]):
            self.give_up(f"it may not follow: {why}")

    def data_received(self, data: bytes) -> None:
        """Reports; of those that came together the first may say where to begin, the newest how far the slave is."""
        self._half += data
        whole = len(self._half) // REPORT.size * REPORT.size
        if whole and self._is_open:
            (first,), (offset,) = REPORT.unpack_from(self._half), REPORT.unpack_from(self._half, whole - REPORT.size)
            self._half = self._half[whole:]
            self.heard_at = self._loop.time()
            if self.follows or self._begin(first):
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
        if self._laggard is not None:
            self._laggard.end()
            if not self._promised:
                self._laggard.close()
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
        if offset > max(self._next, self._promised):
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
        if self._paused or self._promised or not self.follows or not self._is_open:
            return
        end = self._store.log.confirmed_offset
        if end - self._next > AT_ONCE:
            self._start_thread(min(end, self._next + (AT_ONCE if self._is_encrypted else _ONE_TURN)))
            return
        try:
            while self._next < end and not self._paused:
                data, self._next = self._read(self._next, end)
                if not data:
                    return
                self._write(data)
        except LogIsGone as error:
            self.give_up(str(error))

    def _read(self, start: int, end: int) -> tuple[bytes, int]:
        """Frames, and where they end."""
        with frames(self._store.log.queue, start, end, self._store.settings.ha_transfer_batch_size) as (parts, reached):
            return b"".join(parts), reached

    def beat(self) -> None:
        """A heartbeat, as there was nothing to send for a while."""
        if self.follows and not self._paused and not self._promised:
            self._write(FRAME.pack(self._next, 0))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self.wrote_at = self._loop.time()
            self._transport.write(data)

    # -- catching up -----------------------------------------------------------------------------------------

    def _start_thread(self, end: int) -> None:
        """Has a thread send, or read, what lies before `end`; the loop sends nothing meanwhile."""
        assert self._transport is not None
        done: asyncio.Future[int] | asyncio.Future[tuple[bytes, int]]
        if self._is_encrypted:
            done = self._loop.run_in_executor(self._threads, self._read, self._next, end)
        elif self._transport.get_write_buffer_size():
            return  # looked at again when it is empty, or by the listener
        else:
            if self._laggard is None:
                batch = self._store.settings.ha_transfer_batch_size
                descriptor = self._transport.get_extra_info("socket").fileno()
                self._laggard = Laggard.of(self._store.log.queue, batch, descriptor)
            done = self._loop.run_in_executor(self._threads, self._laggard.send, self._next, end)
        self._promised = end
        done.add_done_callback(self._thread_is_done)

    def _thread_is_done(self, done: asyncio.Future[int] | asyncio.Future[tuple[bytes, int]]) -> None:
        self._promised = 0
        error = None if done.cancelled() else done.exception()
        if self._laggard is not None and not self.follows:
            self._laggard.close()
        if done.cancelled() or not self.follows or not self._is_open:
            return
        if error is not None:
            self.give_up(str(error))
            return
        result = done.result()
        if isinstance(result, int):
            self._next, self.wrote_at = result, self._loop.time()
        else:
            data, self._next = result
            self._write(data)
        self.send_more()
