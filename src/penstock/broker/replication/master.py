"""A master's side of replication: accepts slaves and sends them the log.

The protocol is RocketMQ's. All numbers are big-endian, and nothing else is sent:

    slave to master     OFFSET  SIZE  DESCRIPTION
                             0     8  the offset up to which the slave has the log; also its heartbeat

    master to slave     OFFSET  SIZE  DESCRIPTION
                             0     8  physical offset of the bytes
                             8     4  number of bytes; 0: a heartbeat
                            12     n  the bytes, which never cross the end of a log file

A slave's first report says where the master begins to send. 0 means the start of the master's last file. -1 means the
start of the master's log; only Penstock's masters know it, RocketMQ's ignore it. Nothing is authenticated here (see
`tickets`), and there is no checksum but that of the records.

The master sends only bytes that consumers may see: committed bytes, and under SYNC_FLUSH only bytes on disk. So a slave
is never ahead of its master after a crash. The loop sends bytes that were just written. For a slave that is further
behind, a thread sends (`CatchUpSender`), because the bytes may have to come from disk; on an encrypted connection the
thread reads and the loop sends. When a put waits for slaves, new bytes are sent at once. Otherwise they are collected
for a few milliseconds. In any case, the master looks for unsent bytes ten times a second. It drops a slave that is
silent for haHousekeepingInterval ms. The slave's address and, with access control, the access file decide who may
follow: see `_refusal`. Use everything from the loop's thread only, except `send_now`, `send_soon`, `frames`,
`read_ahead` and `CatchUpSender`.
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
from penstock.broker.replication.follow_tickets import FollowTickets
from penstock.errors import PenstockError
from penstock.namesrv.access import networks
from penstock.rate_limited_log import RateLimitedLog
from penstock.remoting.connection import Address, address_of
from penstock.remoting.sockets import keep_alive, listen
from penstock.remoting.tls import ServerTls, TlsMode
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.message_store import MessageStore
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.broker")

# -- frames --------------------------------------------------------------------------------------------------

REPORT: Final = struct.Struct(">q")
FRAME: Final = struct.Struct(">qi")
EVERYTHING: Final = -1
_CHUNK: Final = 1 << 20
"""Bytes of the log that one call of `frames` returns at most. The loop itself sends to a slave that is behind by no
more than this."""
_MAX_FRAMES: Final = 256
"""Limit of the frames in one `sendmsg`: a frame is two buffers, and `sendmsg` takes 1024 buffers."""
_AHEAD: Final = 8 << 20
Buffer = bytes | memoryview


class LogDeleted(PenstockError):
    """The part of the log that a slave needs next was deleted."""


@contextlib.contextmanager
def frames(queue: MappedFileQueue, start: int, end: int, batch: int) -> Iterator[tuple[list[Buffer], int]]:
    """Yields the frames from `start` on as a list of buffers, and the offset where they end.

    Headers and log bytes alternate in the list. The frames stop at `end`, at the end of the log file, or after _CHUNK
    bytes. No frame has more than `batch` bytes of the log. Nothing is copied: the bytes are views of the mapped file,
    valid only inside the context, and reading them may wait for the disk. Any thread may call this. Raises LogDeleted.
    """
    file = queue.find(start)
    if file is None or not file.acquire():
        raise LogDeleted(f"it needs the log from {start}, which was deleted")
    parts: list[Buffer] = []
    try:
        at = start - file.from_offset
        stop = min(at + _CHUNK, at + batch * _MAX_FRAMES, end - file.from_offset, file.readable)
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
    """Asks the operating system to prefetch _AHEAD bytes of the log from `start` on. Any thread may call this."""
    file = queue.find(start)
    if file is not None and file.acquire():
        try:
            file.map.will_need(start - file.from_offset, _AHEAD)
        finally:
            file.release()


# -- catching up ---------------------------------------------------------------------------------------------

_POLL_MS: Final = 1000
_READ_AHEAD_EVERY: Final = 4 * _CHUNK


class CatchUpSender:
    """Sends the log, from a thread, to a slave that is far behind.

    It has its own duplicate of the socket, which stays valid while the thread uses it. The loop must write nothing to
    the connection meanwhile. Only one thread at a time may call `send`. Any thread may call `end`, once or more: it
    makes `send` return, and the last of the two to finish closes the socket, so that no callback of the loop has to.
    """

    def __init__(self, queue: MappedFileQueue, batch: int, connected: socket.socket) -> None:
        self._queue = queue
        self._batch = batch
        self._socket = connected
        self._gate = threading.Lock()
        """Guards `_is_sending`, `_ended` and the end of the socket."""
        self._is_sending = False
        self._ended = False

    @classmethod
    def of(cls, queue: MappedFileQueue, batch: int, descriptor: int) -> Self:
        return cls(queue, batch, socket.socket(fileno=os.dup(descriptor)))

    def send(self, start: int, end: int) -> int:
        """Sends the log from `start` to `end`. Returns the offset reached.

        The offset is less than `end` if the log is shorter, or after `end()`. Raises OSError or LogDeleted.
        """
        with self._gate:
            if self._ended:
                return start
            self._is_sending = True
        try:
            return self._send_log(start, end)
        finally:
            with self._gate:
                self._is_sending = False
                if self._ended:
                    self._socket.close()

    def _send_log(self, start: int, end: int) -> int:
        at = prefetch_at = start
        while at < end and not self._ended:
            if at >= prefetch_at:
                read_ahead(self._queue, at)
                prefetch_at = at + _READ_AHEAD_EVERY
            with frames(self._queue, at, end, self._batch) as (parts, reached):
                self._send_all(parts)
            if at == reached:
                break
            at = reached
        return at

    def _send_all(self, parts: list[Buffer]) -> None:
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
        """Waits until the socket accepts more bytes, or until `end()`."""
        room = select.poll()
        room.register(self._socket, select.POLLOUT)
        while not self._ended and not room.poll(_POLL_MS):
            pass

    def end(self) -> None:
        """Makes `send` return, because the connection is closed, and closes the socket."""
        with self._gate:
            self._ended = True
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if not self._is_sending:
                self._socket.close()


# -- one slave -----------------------------------------------------------------------------------------------

_NOT_STARTED: Final = -1
_ONE_TURN: Final = 64 << 20
"""Bytes that a thread sends at most before it returns to the loop."""


class SlaveConnection(asyncio.Protocol):
    """A master's connection to one slave: sends the log and reads the slave's reports.

    `admit` is called when the connection is established, and returns whether the slave may follow. `on_close` is called
    when an established connection ends. `threads` has at least one thread per slave.
    """

    def __init__(
        self,
        store: MessageStore,
        threads: Executor,
        admit: Callable[[SlaveConnection], bool],
        on_close: Callable[[SlaveConnection], object],
    ) -> None:
        self._store = store
        self._threads = threads
        self._admit = admit
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._partial = b""
        self._paused = False
        self._next = _NOT_STARTED
        self._sending_to = 0
        """The offset up to which a running thread may have sent the log; 0 if no thread runs."""
        self._catch_up: CatchUpSender | None = None
        self._is_encrypted = False
        self.peer: Address = ("", 0)
        self.acknowledged = 0
        """The offset up to which this slave has the log, by its own report."""
        self.acknowledged_ms = 0
        """When the slave last reported, in epoch ms."""
        self.heard_at = self.wrote_at = self._loop.time()

    @property
    def follows(self) -> bool:
        """Whether the slave has sent its first report, and so receives the log."""
        return self._next != _NOT_STARTED

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def sent(self) -> int:
        """The offset up to which the log was sent to this slave."""
        return max(self._next, 0)

    def __str__(self) -> str:
        return f"slave {self.peer[0]}:{self.peer[1]}"

    # -- asyncio.Protocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = opened = cast(asyncio.Transport, transport)
        self.peer = address_of(transport.get_extra_info("peername"))
        keep_alive(transport.get_extra_info("socket"))
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        opened.set_write_buffer_limits(high=_CHUNK if self._is_encrypted else 0)
        if not self._admit(self):
            opened.abort()

    def data_received(self, data: bytes) -> None:
        """Reads reports. Of several, the first may say where to begin, and the last says how far the slave is."""
        self._partial += data
        whole = len(self._partial) // REPORT.size * REPORT.size
        if whole and self._is_open:
            (first,), (offset,) = (
                REPORT.unpack_from(self._partial),
                REPORT.unpack_from(self._partial, whole - REPORT.size),
            )
            self._partial = self._partial[whole:]
            self.heard_at = self._loop.time()
            if self.follows or self._begin(first):
                self._on_report(offset)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.send_more()

    def connection_lost(self, error: Exception | None) -> None:
        if self.follows:
            self._store.watermarks.slave_disconnected()
            log.info("%s disconnected", self)
        self._next = _NOT_STARTED
        if self._catch_up is not None:
            self._catch_up.end()
        self._on_close(self)

    def end(self) -> None:
        """Closes the connection once all bytes written so far are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once. Does not depend on the loop, which may end before its next turn."""
        if self._catch_up is not None:
            self._catch_up.end()
        if self._transport is not None:
            self._transport.abort()

    def drop(self, why: str) -> None:
        """Aborts the connection, and logs why."""
        log.warning("dropped %s: %s", self, why)
        self.abort()

    # -- reports ---------------------------------------------------------------------------------------------

    def _on_report(self, offset: int) -> None:
        if offset > max(self._next, self._sending_to):
            self.drop(f"it reports {offset} bytes of the log, but only {self._next} were sent")
            return
        self.acknowledged_ms = time.time_ns() // 1_000_000
        if offset > self.acknowledged:
            self.acknowledged = offset
            self._store.watermarks.acknowledge(offset)

    def _begin(self, offset: int) -> bool:
        """Starts sending at the offset of the first report. If that is impossible, drops the slave; returns False."""
        queue, end = self._store.log.queue, self._store.watermarks.visible
        lowest = max(0, queue.min_offset)
        if offset == EVERYTHING:
            start = lowest
        elif offset == 0:
            start = max(end - end % queue.file_size, lowest)
        elif offset < lowest:
            self.drop(
                f"it needs the log from {offset}, but this log begins at {lowest}; start it with a copy of this store"
            )
            return False
        elif offset > end:
            self.drop(
                f"it has {offset} bytes of log, but this master only {end}: the logs differ; see the slave's log file"
            )
            return False
        else:
            start = offset
        self._next = start
        self._store.watermarks.slave_connected()
        log.info("%s follows from offset %d", self, start)
        self.send_more()
        return True

    # -- sending ---------------------------------------------------------------------------------------------

    def send_more(self) -> None:
        """Sends the new bytes of the log, until the slave stops reading."""
        if self._paused or self._sending_to or not self.follows or not self._is_open:
            return
        end = self._store.watermarks.visible
        if end - self._next > _CHUNK:
            self._start_thread(min(end, self._next + (_CHUNK if self._is_encrypted else _ONE_TURN)))
            return
        try:
            while self._next < end and not self._paused:
                data, self._next = self._read(self._next, end)
                if not data:
                    return
                self._write(data)
        except LogDeleted as error:
            self.drop(str(error))

    def _read(self, start: int, end: int) -> tuple[bytes, int]:
        """Returns the frames of the log from `start` on as one copy, and the offset where they end."""
        with frames(self._store.log.queue, start, end, self._store.settings.ha_transfer_batch_size) as (parts, reached):
            return b"".join(parts), reached

    def send_heartbeat(self) -> None:
        if self.follows and not self._paused and not self._sending_to:
            self._write(FRAME.pack(self._next, 0))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self.wrote_at = self._loop.time()
            self._transport.write(data)

    # -- catching up -----------------------------------------------------------------------------------------

    def _start_thread(self, end: int) -> None:
        """Lets a thread send the log up to `end`, or only read it if encrypted. The loop sends nothing meanwhile."""
        assert self._transport is not None
        done: asyncio.Future[int] | asyncio.Future[tuple[bytes, int]]
        if self._is_encrypted:
            done = self._loop.run_in_executor(self._threads, self._read, self._next, end)
        elif self._transport.get_write_buffer_size():
            return  # retried when the buffer is empty, or by the listener's poll
        else:
            if self._catch_up is None:
                batch = self._store.settings.ha_transfer_batch_size
                descriptor = self._transport.get_extra_info("socket").fileno()
                self._catch_up = CatchUpSender.of(self._store.log.queue, batch, descriptor)
            done = self._loop.run_in_executor(self._threads, self._catch_up.send, self._next, end)
        self._sending_to = end
        done.add_done_callback(self._on_thread_done)

    def _on_thread_done(self, done: asyncio.Future[int] | asyncio.Future[tuple[bytes, int]]) -> None:
        self._sending_to = 0
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or not self.follows or not self._is_open:
            return
        if error is not None:
            self.drop(str(error) if isinstance(error, PenstockError) else repr(error))
            return
        result = done.result()
        if isinstance(result, int):
            self._next, self.wrote_at = result, self._loop.time()
        else:
            data, self._next = result
            self._write(data)
        self.send_more()


# -- all slaves ----------------------------------------------------------------------------------------------

_POLL: Final = "poll of slaves"
_POLL_S: Final = 0.1
_GATHER_S: Final = 0.005
"""Seconds that new bytes are collected if no put waits for them. Sending each message alone costs more than its put."""
_MAX_SLAVES: Final = 32
_HANDSHAKE_S: Final = 5.0
"""Limit of the TLS handshake, so that strangers do not keep descriptors."""
_GOODBYE_S: Final = 1.0
"""Limit for slaves to read what was sent to them before the listener stopped."""


class SlaveListener:
    """The port on which a master accepts slaves, and the connections to all slaves. Start and stop it once."""

    def __init__(
        self,
        store: MessageStore,
        allow_from: str,
        access: Access | None,
        tickets: FollowTickets,
        tls: ServerTls,
        tasks: Supervisor,
    ) -> None:
        """Raises BadSettings if `allow_from` is not a list of networks."""
        self._store = store
        self._allowed = networks(allow_from, "haAllowFrom")
        self._access = access
        self._tickets = tickets
        self._tls = tls
        self._supervisor = tasks
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_MAX_SLAVES + 1, "penstock-catch-up")
        self._server: asyncio.Server | None = None
        self._thread = threading.get_ident()
        self._send_scheduled = False
        self._gather_scheduled = False
        self._sent_to = 0
        """The log's end at the last send. All bytes before it are sent or being sent."""
        self._refusals = RateLimitedLog(log)
        self.slaves: set[SlaveConnection] = set()
        self._no_slaves = asyncio.Event()
        self._no_slaves.set()

    async def start(self, host: str, port: int) -> Address:
        """Starts to listen. Returns the address. Raises Unreachable."""
        listener = listen(host, port)
        where: Address = listener.getsockname()[:2]
        tls = self._tls.context if self._tls.mode is TlsMode.ENFORCING else None
        limit = None if tls is None else _HANDSHAKE_S
        self._server = await self._loop.create_server(self._accept, sock=listener, ssl=tls, ssl_handshake_timeout=limit)
        self._store.watermarks.on_slave_wait(self.send_now)
        self._store.watermarks.on_advance(self._on_advance)
        self._store.dispatcher.on_advance(self.send_soon)
        self._supervisor.every(_POLL_S, _POLL, self._poll)
        return where

    async def stop(self) -> None:
        """Stops listening and closes all connections, also those of slaves that do not read."""
        self._store.watermarks.remove_slave_wait_listener(self.send_now)
        self._store.watermarks.remove_advance_listener(self._on_advance)
        self._store.dispatcher.remove_advance_listener(self.send_soon)
        await self._supervisor.end(_POLL)
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.end()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._no_slaves.wait(), _GOODBYE_S)
        finally:  # also if the broker's own limit has passed
            for slave in list(self.slaves):
                slave.abort()
        await asyncio.to_thread(self._threads.shutdown)

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self) -> SlaveConnection:
        return SlaveConnection(self._store, self._threads, self._admit, self._forget)

    def _admit(self, slave: SlaveConnection) -> bool:
        """Takes an established connection over, unless the slave may not follow. That is logged, a line a second."""
        if why := self._refusal(slave.peer):
            self._refusals.warn(f"dropped {slave}: it may not follow: {why}")
            return False
        self.slaves.add(slave)
        self._no_slaves.clear()
        return True

    def _forget(self, slave: SlaveConnection) -> None:
        self.slaves.discard(slave)
        if not self.slaves:
            self._no_slaves.set()

    def allows(self, host: str) -> bool:
        """Whether slaves may connect from the address `host`: it is in haAllowFrom, or it is a loopback address."""
        address = ipaddress.ip_address(host)
        return address.is_loopback or any(address in network for network in self._allowed)

    def _refusal(self, peer: Address) -> str:
        """Returns why a slave at this host and port may not follow; an empty string if it may.

        RocketMQ's slaves do not authenticate, so the host must be in haAllowFrom. With access control, the access file
        must also list the host as white, or the slave must have a ticket, for which Penstock's slaves ask before they
        connect.
        """
        host = peer[0]
        if len(self.slaves) >= _MAX_SLAVES:
            return f"{_MAX_SLAVES} slaves are connected already"
        if not self.allows(host):
            return "its address is not in haAllowFrom"
        if self._access is None or self._access.accounts.is_white(host):
            return ""
        if not self._tickets.take(*peer):
            return "with access control, it must first ask for a ticket with an administrator's account (haAccountFile)"
        return ""

    # -- sending ---------------------------------------------------------------------------------------------

    def send_now(self) -> None:
        """Sends the new bytes at once, because a put waits for slaves. Many calls cause one send.

        Any thread may call this.
        """
        if not self._send_scheduled and self._has_more:
            self._send_scheduled = self._schedule(self._send)

    def _on_advance(self) -> None:
        (self.send_now if self._store.watermarks.needs.replicated else self.send_soon)()

    def send_soon(self) -> None:
        """Sends the new bytes, and those that follow, in a few milliseconds. Any thread may call this."""
        if not self._gather_scheduled and self._has_more:
            self._gather_scheduled = self._schedule(self._start_gathering)

    @property
    def _has_more(self) -> bool:
        return bool(self.slaves) and self._store.watermarks.visible > self._sent_to

    def _schedule(self, callback: Callable[[], None]) -> bool:
        """Schedules a callback on the loop. Returns False if the loop is closed. Any thread may call this."""
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(callback)
            else:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _start_gathering(self) -> None:
        self._loop.call_later(_GATHER_S, self._send_gathered)

    def _send_gathered(self) -> None:
        self._gather_scheduled = False
        if self._has_more:
            self._send()

    def _send(self) -> None:
        self._send_scheduled = False
        self._sent_to = self._store.watermarks.visible
        for slave in list(self.slaves):
            self._send_to(slave)

    def _send_to(self, slave: SlaveConnection) -> None:
        """Sends new bytes to one slave. After an unexpected error it is dropped, and the others are served."""
        try:
            slave.send_more()
        except Exception as error:
            log.exception("cannot send the log to %s", slave)
            slave.drop(repr(error))

    def _poll(self) -> None:
        settings, now = self._store.settings, self._loop.time()
        for slave in list(self.slaves):
            self._send_to(slave)
            if now - slave.heard_at > settings.ha_housekeeping_interval / 1000:
                slave.drop(f"it was silent for {settings.ha_housekeeping_interval} ms")
            elif now - slave.wrote_at >= settings.ha_send_heartbeat_interval / 1000:
                slave.send_heartbeat()
