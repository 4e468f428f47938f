"""One connection to a master, served by a thread of its own: takes frames apart, hands their bytes on, and reports.

Whole records only reach the store's log (`store.replica_log`); under SYNC_FLUSH what is reported as taken is on disk.
What came together is appended together, however many frames it came in. The thread that calls `run` does all that is
done with the socket, so that it may be an encrypted one; `wake` and `end` may be called from any other.


A slave's side of replication: finds its master, makes sure that their logs agree, and has what comes taken over.

A thread does that (`incoming`). A connection that breaks, or is silent for haHousekeepingInterval, is made anew: after
a second, then less and less often, and never before the thread of the old one has ended. Logs that differ are never
mixed: the slave says what differs, serves what it has, and looks again once a minute. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.broker.replication.config_sync import Master, MasterLink, NotTheSameLog, check_same_log
from penstock.broker.replication.master import EVERYTHING, FRAME, REPORT
from penstock.errors import PenstockError, Unreachable
from penstock.remoting.sockets import keep_alive, parse_address
from penstock.store.prepare import PutRefused
from penstock.store.replication.replica_log import BytesRefused, DamagedOnTheWay, ReplicaLog
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")
_AT_ONCE: Final = 2 << 20
_MUCH: Final = 16 << 10
"""Who got less has read all that there was, most likely; one look for more costs as much as a report."""
_REPORT_EVERY: Final = 1 << 20
"""While more is waiting to be read, only so many bytes are worth a report."""
_HANDSHAKE_S: Final = 5.0
_NOTHING_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Incoming:
    """Made for a connected socket, which is closed by `close`."""

    def __init__(
        self, store: MessageStore, connected: socket.socket, tls: ssl.SSLContext | None, master: Master
    ) -> None:
        """`master` is as the one that is asked as clients do has told of itself."""
        assert store.replica_log is not None
        self._store = store
        self._socket = connected
        self._tls = tls
        self._master = master
        self._taken: ReplicaLog = store.replica_log
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._gate = threading.Lock()
        """So that nobody rings a bell whose number somebody else has by then."""
        self._room = memoryview(bytearray(_AT_ONCE))
        self._unsent = b""
        self._head = b""
        self._at = self._left = 0
        self._reported = 0
        self._wrote_at = self._heard_at = time.monotonic()
        self.has_begun = False
        """Whether the log comes in."""
        self.refused: PenstockError | None = None
        """Why what came cannot be taken."""
        self.why = ""
        """Why it ended."""
        self.master_end = 0
        """How far the master's log goes, as far as it has sent it."""
        self.received_ms = 0
        """When something last came, epoch ms."""

    # -- from other threads ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to report."""
        with self._gate:
            if not self._is_closed:
                os.eventfd_write(self._bell, 1)

    def end(self, why: str) -> None:
        """Has `run` return; the first reason counts."""
        self.why = self.why or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.wake()

    def close(self) -> None:
        """Once `run` has returned."""
        self._socket.close()
        with self._gate:
            self._is_closed = True
            os.close(self._bell)

    # -- the thread ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the connection is gone. Raises Unreachable if it cannot be encrypted."""
        try:
            self._encrypt()
            self._report()
            self._serve()
        except OSError as error:
            self.why = self.why or f"the connection to the master broke: {error.strerror or error}"
        finally:
            self._taken.drop_partial()

    def _encrypt(self) -> None:
        if self._tls is not None:
            self._socket.settimeout(_HANDSHAKE_S)
            try:
                self._socket = self._tls.wrap_socket(self._socket)
            except OSError as error:
                raise Unreachable(f"the connection to the master cannot be encrypted: {error}") from None
            self._socket.setblocking(False)

    def _serve(self) -> None:
        settings = self._store.settings
        silence_s = settings.ha_housekeeping_interval / 1000
        beat_s = min(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval / 4) / 1000
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        ready.register(self._bell, select.POLLIN)
        much = _MUCH if self._tls is None else 1  # what is decrypted already is not seen by who waits for the socket
        while not self.why:
            got, now = self._receive(), self._heard_at
            if got < much and not self.why:
                if self._position != self._reported:
                    self._report()
                for descriptor, _ in ready.poll(max(self._wrote_at + beat_s - time.monotonic(), 0.0) * 1000):
                    if descriptor == self._bell:
                        os.eventfd_read(self._bell)
                now = time.monotonic()
            if self.why:
                return
            if now - self._heard_at > silence_s:
                self.why = f"the master was silent for {silence_s:g} s"
            elif now - self._wrote_at >= beat_s or self._position - self._reported >= _REPORT_EVERY:
                self._report()

    def _receive(self) -> int:
        """Takes what has come; says how many bytes that were."""
        try:
            count = self._socket.recv_into(self._room)
        except _NOTHING_NOW:
            return 0
        if not count:
            self.why = self.why or "the master closed the connection"
            return 0
        self._heard_at = time.monotonic()
        self.received_ms = time.time_ns() // 1_000_000
        try:
            if self._store.flush_failure:
                raise BytesRefused(self._store.flush_failure)
            self._take_apart(self._room[:count])
        except DamagedOnTheWay as error:
            self.why = str(error)
        except (PenstockError, PutRefused) as error:
            self.refused = error if isinstance(error, PenstockError) else BytesRefused(str(error))
            self.why = str(error)
        return count

    # -- frames ----------------------------------------------------------------------------------------------

    def _take_apart(self, data: memoryview) -> None:
        """Bytes of one file that came together are handed on together, however many frames they came in."""
        pieces: list[memoryview] = []
        start, file_size = self._at, self._store.log.queue.file_size
        while data:
            if self._left:
                piece = data[: self._left]
                pieces.append(piece)
                data = data[len(piece) :]
                self._at += len(piece)
                self._left -= len(piece)
                if self._at % file_size == 0:
                    self._hand_on(start, pieces)
                    pieces, start = [], self._at
                continue
            wanted = FRAME.size - len(self._head)
            self._head += data[:wanted]
            data = data[wanted:]
            if len(self._head) == FRAME.size:
                at, self._left = FRAME.unpack(self._head)
                self._head = b""
                self._check(at)
                if at != self._at or not pieces:
                    self._hand_on(start, pieces)
                    pieces, start = [], at
                self._at = at
        self._hand_on(start, pieces)

    def _check(self, at: int) -> None:
        file_size = self._store.log.queue.file_size
        if at < 0 or not 0 <= self._left <= file_size - at % file_size:
            raise BytesRefused(
                f"the master sent {self._left} bytes at {at}, across the end of a file; mappedFileSizeCommitLog must "
                "be the same on both sides"
            )
        if not self.has_begun and self._taken.is_empty:
            self._check_begin(at)
        self.has_begun = True
        self.master_end = max(self.master_end, at + self._left)

    def _check_begin(self, at: int) -> None:
        """A slave that has nothing gets all of the log, or of a RocketMQ's last file: nothing else may come first."""
        begins_at = self._master.begins_at
        if begins_at is None or at == begins_at:
            return
        if at < begins_at or self._master.is_penstock:
            raise BytesRefused(
                f"the log that comes from haMasterAddress begins at {at}, and that of the broker at masterAddr at "
                f"{begins_at}; nothing is copied; check that both are addresses of the same master"
            )
        log.warning(
            "begins at %d, with the master's last file, and the master's log at %d: RocketMQ's masters send no more to "
            "a slave that has nothing; start it with a copy of the master's store if it is to have all of it",
            at,
            begins_at,
        )

    def _hand_on(self, offset: int, pieces: list[memoryview]) -> None:
        if pieces:
            self._taken.append(offset, *pieces)

    # -- reporting -------------------------------------------------------------------------------------------

    @property
    def _position(self) -> int:
        """What may be reported: under SYNC_FLUSH what is on disk.

        Who has nothing says so until something comes: a master that is slow may read the first report and those behind
        it at once, and would take a 0 for the wish to get its last file only.
        """
        if self._master.is_penstock and self._taken.is_empty:
            return EVERYTHING
        return min(self._store.log.confirmed_offset, self._taken.end)

    def _report(self) -> None:
        """Tells the master how far the log is here; also the heartbeat."""
        if not self._unsent:
            self._reported = self._position
            self._unsent = REPORT.pack(self._reported)
        self._send()

    def _send(self) -> None:
        """A master that does not read gets the rest of a report with the next heartbeat."""
        self._wrote_at = time.monotonic()
        with contextlib.suppress(*_NOTHING_NOW):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]


_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 15.0
_DIFFERENT_S: Final = 60.0
_CONNECT_S: Final = 5.0
"""For each of the addresses that a name has."""


async def look_up(host: str, port: int) -> list[Any]:
    """The addresses of a name, in the system's order."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class MasterFollower:
    """Follows a master as long as it runs."""

    def __init__(self, store: MessageStore, link: MasterLink) -> None:
        assert store.replica_log is not None, "only a slave follows"
        self._store = store
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-follow")
        self._incoming: Incoming | None = None
        self.problem = ""
        """Why it did not follow when that was last tried, in a sentence."""
        store.on_flush(self._flushed)

    @property
    def follows(self) -> bool:
        """Whether the master's log comes in."""
        return self._incoming is not None and self._incoming.has_begun

    @property
    def received_ms(self) -> int:
        """When something last came from the master, epoch ms; 0 if nothing ever did."""
        return 0 if self._incoming is None else self._incoming.received_ms

    @property
    def master_end(self) -> int:
        """How far the master's log goes, as far as it has sent it."""
        return 0 if self._incoming is None else self._incoming.master_end

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()
        self._link.close()

    # -- connecting ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                if not self._link.known.is_set():
                    self.problem = "no name server has told yet where the master is"
                    await self._link.known.wait()
                    self.problem = ""
                master = await check_same_log(self._store, self._link)
                began = await self._follow(master)
                retry_s = _FIRST_RETRY_S if began else retry_s
            except NotTheSameLog as error:
                self._say(str(error), logging.ERROR)
                await asyncio.sleep(_DIFFERENT_S)
                continue
            except PenstockError as error:
                self._say(f"the master cannot be followed now: {error}", logging.WARNING)
            except Exception:
                log.exception("the master cannot be followed now")
                self.problem = "the master cannot be followed now: see the log"
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)

    def _say(self, problem: str, level: int) -> None:
        if problem != self.problem:
            log.log(level, "%s", problem)
        self.problem = problem

    async def _follow(self, master: Master) -> bool:
        """Until the connection is gone; says whether the log came in. Raises Unreachable or BytesRefused."""
        address = parse_address(self._link.log_address, "haMasterAddress")
        await asyncio.to_thread(self._store.flush)  # what is reported and what is here are the same then
        connected = await self._connect(address)
        incoming = Incoming(self._store, connected, self._link.tls, master)
        self._incoming = incoming
        log.info("follows the master at %s:%d from %d on", *address, self._store.log.queue.wrote_offset)
        running = self._loop.run_in_executor(self._thread, incoming.run)
        try:
            await asyncio.wait([running])
        finally:
            incoming.end("this broker stops")
            await asyncio.wait([running])
            incoming.close()
            self._incoming = None
        await running
        if incoming.refused is not None:
            raise incoming.refused
        self._say(incoming.why, logging.WARNING)
        return incoming.has_begun

    async def _connect(self, address: tuple[str, int]) -> socket.socket:
        """To the first of a name's addresses that answers. Raises Unreachable."""
        why = "it has no address"
        try:
            async with asyncio.timeout(_CONNECT_S):
                found = await look_up(*address)
        except OSError as error:
            found, why = [], str(error) or "no answer"
        for family, kind, protocol, _, where in found:
            connected = socket.socket(family, kind, protocol)
            try:
                await self._connect_to(connected, where)
            except OSError as error:
                connected.close()
                why = str(error) or "no answer"
            except BaseException:
                connected.close()
                raise
            else:
                return connected
        raise Unreachable(f"cannot connect to {address[0]}:{address[1]}: {why}")

    async def _connect_to(self, connected: socket.socket, where: Any) -> None:
        connected.setblocking(False)
        async with asyncio.timeout(_CONNECT_S):
            await self._loop.sock_connect(connected, where)
        keep_alive(connected)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a put waits for each report

    def _flushed(self) -> None:
        """On the thread that syncs."""
        incoming = self._incoming
        if incoming is not None:
            incoming.wake()
