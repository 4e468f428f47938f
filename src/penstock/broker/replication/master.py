"""What goes over a replication connection, as RocketMQ has it; big-endian, and nothing else is sent.

    slave to master     OFFSET  SIZE  DESCRIPTION
                             0     8  the offset up to which the slave has the log; also its heartbeat

    master to slave     OFFSET  SIZE  DESCRIPTION
                             0     8  where the bytes lie in the log
                             8     4  how many there are; 0: a heartbeat
                            12     n  the bytes, which never cross the end of a log file

A slave's first report says where it wants to begin; 0 means the beginning of the master's last file, and -1, which only
Penstock's masters know and RocketMQ's ignore, the beginning of all that the master has. Nothing here is
protected: neither side says who it is, and there is no checksum besides that of the records.


A part of a master's log as frames, in place: nothing is copied before it goes out.

The bytes lie in the map of a log file, which stays as long as somebody holds it. Whoever reads pages that are not in
memory any more waits for the disk: the loop only does so close to the log's end. Any thread may call.


Sends the log to a slave that is far behind, from a thread: its pages may have to come from the disk first.

A broker's loop must not wait for that. While a slave is this far behind the thread has its socket to itself, and the
loop only hears what the slave reports. One thread at a time calls `send`; `end` may be called from the loop meanwhile,
and has it return.


One slave, as its master sees it: an asyncio protocol that sends the log and takes reports.

Only what the store shows to consumers is sent: what is committed, and under SYNC_FLUSH what is on disk, so that a slave
is never ahead of what its master has after a crash. Bytes are sent as fast as the slave reads them. The loop sends what
was just written; to a slave that is further behind a thread sends (`catch_up`), or it reads for the loop where the
connection is encrypted. Belongs to the loop's thread.


The port on which a master waits for its slaves, and all of them.

Slaves are sent what is new at once when a put waits for them; else what comes within a few milliseconds after it was
dispatched or synced goes together, and ten times a second in any case. A slave that is silent for
haHousekeepingInterval is cut off. Who may follow is decided by address, and where access is controlled by the access
file too: see `_refusal`. Belongs to the loop's thread, but for `hurry` and `gather`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final, Self, cast

from penstock.broker.access import Access
from penstock.errors import PenstockError
from penstock.namesrv.access import networks
from penstock.remoting.connection import Address, address_of
from penstock.remoting.sockets import keep_alive, listen
from penstock.remoting.tls import ServerTls, TlsMode
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.settings import BrokerRole
from penstock.store.store import MessageStore

REPORT: Final = struct.Struct(">q")
FRAME: Final = struct.Struct(">qi")
EVERYTHING: Final = -1
AT_ONCE: Final = 1 << 20
"""So many bytes of the log are sent in one go, so that others have their turn in between."""
_MAX_FRAMES: Final = 256
"""Each is two buffers, and the system takes 1024 in one call."""
_AHEAD: Final = 8 << 20
Buffer = bytes | memoryview


class LogIsGone(PenstockError):
    """What a slave needs next was deleted."""


@contextlib.contextmanager
def frames(queue: MappedFileQueue, start: int, end: int, batch: int) -> Iterator[tuple[list[Buffer], int]]:
    """Headers and bytes in turn, from `start` on and not beyond `end` or one file; and where they end.

    The buffers may be used inside only. No frame has more than `batch` bytes. Raises LogIsGone.
    """
    file = queue.find(start)
    if file is None or not file.acquire():
        raise LogIsGone(f"the log at {start}, which it needs next, was deleted")
    parts: list[Buffer] = []
    try:
        at = start - file.from_offset
        stop = min(at + AT_ONCE, at + batch * _MAX_FRAMES, end - file.from_offset, file.readable)
        while at < stop:
            count = min(batch, stop - at)
            parts += (FRAME.pack(file.from_offset + at, count), file.map.view[at : at + count])
            at += count
        yield parts, file.from_offset + at
    finally:
        for part in parts:
            if isinstance(part, memoryview):
                part.release()
        file.release()


def read_ahead(queue: MappedFileQueue, start: int) -> None:
    """Has the system read what is sent soon, where it is not in memory."""
    file = queue.find(start)
    if file is not None and file.acquire():
        try:
            file.map.will_need(start - file.from_offset, _AHEAD)
        finally:
            file.release()


_LOOK_MS: Final = 1000
_READ_AHEAD_EVERY: Final = 4 * AT_ONCE


class Laggard:
    """The socket of a slave that is behind; its own name for it, so that it stays as long as a thread uses it."""

    def __init__(self, queue: MappedFileQueue, batch: int, connected: socket.socket) -> None:
        self._queue = queue
        self._batch = batch
        self._socket = connected
        self._ended = False

    @classmethod
    def of(cls, queue: MappedFileQueue, batch: int, descriptor: int) -> Self:
        return cls(queue, batch, socket.socket(fileno=os.dup(descriptor)))

    def send(self, start: int, end: int) -> int:
        """Sends the log from one place to another; returns how far it came.

        That is less than `end` if there is less, or once it is ended. Raises OSError, or LogIsGone.
        """
        at = looked = start
        while at < end and not self._ended:
            if at >= looked:
                read_ahead(self._queue, at)
                looked = at + _READ_AHEAD_EVERY
            with frames(self._queue, at, end, self._batch) as (parts, reached):
                self._send_all(parts)
            if at == reached:
                break
            at = reached
        return at

    def _send_all(self, parts: list[Buffer]) -> None:
        """All of them, or until it is ended."""
        while parts and not self._ended:
            try:
                sent = self._socket.sendmsg(parts)
            except BlockingIOError:
                self._wait()
                continue
            whole = 0
            while whole < len(parts) and sent >= len(parts[whole]):
                sent -= len(parts[whole])
                whole += 1
            parts = parts[whole:]
            if sent:
                parts[0] = parts[0][sent:]

    def _wait(self) -> None:
        """Until the slave reads on."""
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        while not self._ended and not room.poll(_LOOK_MS):
            pass

    def end(self) -> None:
        """The connection is gone."""
        self._ended = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of the socket; no thread may use it."""
        self._socket.close()


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
            self._store.slave_acks.slave_disconnected()
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
            self._store.slave_acks.acknowledge(offset)

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
        self._store.slave_acks.slave_connected()
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


_LOOK_S: Final = 0.1
_GATHER_S: Final = 0.005
"""So long messages come together for which nobody waits: sending each one costs master and slave more than a put."""
_MAX_SLAVES: Final = 32
_PROOF_S: Final = 60.0
"""So long after an administrator's signed request from its host a slave may connect."""


class SlaveListener:
    """Started once, stopped once."""

    def __init__(self, store: MessageStore, allow_from: str, access: Access | None, tls: ServerTls) -> None:
        """Raises BadSettings if `allow_from` names no networks."""
        self._store = store
        self._allowed = networks(allow_from, "haAllowFrom")
        self._access = access
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_MAX_SLAVES + 1, "penstock-catch-up")
        self._server: asyncio.Server | None = None
        self._thread = threading.get_ident()
        self._hurry_is_due = False
        self._gathers = False
        self._looked_at = 0
        """How far the log was when it was last sent: what lies before is sent, or is by who is still at it."""
        self._timer: asyncio.TimerHandle | None = None
        self.slaves: set[SlaveConnection] = set()

    async def start(self, host: str, port: int) -> Address:
        """Waits for slaves from now on; returns where. Raises Unreachable."""
        listener = listen(host, port)
        where: Address = listener.getsockname()[:2]
        tls = self._tls.context if self._tls.mode is TlsMode.ENFORCING else None
        self._server = await self._loop.create_server(self._slave, sock=listener, ssl=tls)
        self._store.slave_acks.on_wait(self.hurry)
        puts_wait = self._store.settings.broker_role is BrokerRole.SYNC_MASTER
        self._store.on_flush(self.hurry if puts_wait else self.gather)
        self._store.dispatcher.on_advance(self.gather)
        return where

    async def stop(self) -> None:
        """Takes no more slaves, and lets go of those that are there."""
        self._store.slave_acks.remove_wait_listener(self.hurry)
        self._store.dispatcher.remove_advance_listener(self.gather)
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.end()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)
        await asyncio.to_thread(self._threads.shutdown)

    # -- slaves come and go ----------------------------------------------------------------------------------

    def _slave(self) -> SlaveConnection:
        slave = SlaveConnection(self._store, self._threads, self._refusal, self._gone)
        self.slaves.add(slave)
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        return slave

    def _gone(self, slave: SlaveConnection) -> None:
        self.slaves.discard(slave)

    def knows(self, host: str) -> bool:
        """Whether slaves may be at `host`: haAllowFrom, or this machine."""
        address = ipaddress.ip_address(host)
        return address.is_loopback or any(address in network for network in self._allowed)

    def _refusal(self, host: str) -> str:
        """Why a slave at `host` may not follow; empty if it may.

        RocketMQ's slaves cannot say who they are. So their address must be one of haAllowFrom, and where access is
        controlled the access file must name it as white, or somebody there must just have made a request that an
        administrator signed, as our slaves do before they connect.
        """
        if len(self.slaves) > _MAX_SLAVES:
            return f"there are {_MAX_SLAVES} connections already"
        if not self.knows(host):
            return "its address is not among haAllowFrom"
        if self._access is None or self._access.accounts.is_white(host):
            return ""
        proved_at = self._access.administered_from.get(host)
        if proved_at is None or time.monotonic() - proved_at > _PROOF_S:
            return "access is controlled, and nobody there has just signed a request as administrator (haAccountFile)"
        return ""

    # -- sending ---------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Somebody waits for slaves to have what is new. From any thread; many calls are one look."""
        if not self._hurry_is_due and self._has_news:
            self._hurry_is_due = self._call(self._send)

    def gather(self) -> None:
        """There may be something new. From any thread; what follows soon goes with it."""
        if not self._gathers and self._has_news:
            self._gathers = self._call(self._send_later)

    @property
    def _has_news(self) -> bool:
        return bool(self.slaves) and self._store.log.confirmed_offset > self._looked_at

    def _call(self, act: Callable[[], None]) -> bool:
        """Has the loop do something soon, and wakes it only if it is not this thread's. False if it is gone."""
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(act)
            else:
                self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # and the slaves with it
            return False
        return True

    def _send_later(self) -> None:
        self._loop.call_later(_GATHER_S, self._send_gathered)

    def _send_gathered(self) -> None:
        self._gathers = False
        if self._has_news:
            self._send()

    def _send(self) -> None:
        self._hurry_is_due = False
        self._looked_at = self._store.log.confirmed_offset
        for slave in list(self.slaves):
            slave.send_more()

    def _look(self) -> None:
        settings, now = self._store.settings, self._loop.time()
        for slave in list(self.slaves):
            slave.send_more()
            if now - slave.heard_at > settings.ha_housekeeping_interval / 1000:
                slave.give_up(f"nothing was heard of it for {settings.ha_housekeeping_interval} ms")
            elif now - slave.wrote_at >= settings.ha_send_heartbeat_interval / 1000:
                slave.beat()
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self.slaves else None
