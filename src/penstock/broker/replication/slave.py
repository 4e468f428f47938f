"""A slave's side of replication: connects to the master, checks that the logs agree, and appends the master's log.

`MasterFollower` runs in the loop's thread and keeps one connection. If the connection breaks, or is silent for
haHousekeepingInterval ms, the follower opens a new one, with growing pauses, after the old connection's thread has
ended. Logs that differ are never mixed. With epochs on both sides, the slave keeps the part of its log that the master
does not have, and has it cut at the next open (`joining`). Otherwise it reports the difference, serves the messages
that it has, and checks again once a minute.

`LogReceiver` is one connection, served by its own thread. Only this thread uses the socket, so the connection may be
encrypted. Any thread may call `report_soon` and `end`. Only whole records reach the store's log. Bytes that arrive in
one read are appended together, even if they came in several frames. Under SYNC_FLUSH the slave reports only bytes that
are on disk.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.broker.replication.config_sync import (
    LogMismatch,
    Master,
    MasterLink,
    ask_master,
    check_same_log,
)
from penstock.broker.replication.handshake import (
    EPOCH_FRAME,
    EPOCH_REPORT,
    LENGTH,
    NO_CONFIRM,
    SHAKE_HANDS,
    Hello,
    Welcome,
    decode,
    encode,
    length_of,
)
from penstock.broker.replication.joining import CutNeeded, Joining
from penstock.broker.replication.log_bytes_for_slaves import EVERYTHING, FRAME, REPORT
from penstock.errors import PenstockError, Unreachable
from penstock.remoting.sockets import keep_alive, parse_address
from penstock.store.encode_message import PutRefused
from penstock.store.message_store import MessageStore
from penstock.store.replication.replica_log import BytesRefused, DamagedOnTheWay, ReplicaLog
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.broker")
_READ_SIZE: Final = 2 << 20
_FULL_READ: Final = 16 << 10
"""Bytes. A shorter read has probably emptied the socket; a further read would cost as much as a report."""
_REPORT_EVERY: Final = 1 << 20
"""Bytes received between two reports while there is more to read."""
_HANDSHAKE_S: Final = 5.0
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class LogReceiver:
    """One connection to a master. It owns the connected socket: `run` closes it at its end, and so does `close`."""

    def __init__(
        self, store: MessageStore, connected: socket.socket, tls: ssl.SSLContext | None, master: Master
    ) -> None:
        assert store.replica_log is not None
        self._store = store
        self._socket = connected
        self._tls = tls
        self._master = master
        self._epoch = 0
        """The master's epoch; 0 without a handshake."""
        self._confirm = NO_CONFIRM
        self._log: ReplicaLog = store.replica_log
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._wake_lock = threading.Lock()
        """Guards the descriptors: once one is closed, its number may belong to another file."""
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._unsent = b""
        self._head = b""
        self._at = self._left = 0
        self._reported = 0
        self._wrote_at = self._heard_at = time.monotonic()
        self.has_begun = False
        """Whether the master's first frame has arrived."""
        self.refused: PenstockError | None = None
        """The error if received bytes could not be appended; None otherwise."""
        self.why = ""
        """Why `run` returned, or should return; empty while the connection is served."""
        self.master_end = 0
        """The end of the master's log, as far as the master has sent it."""
        self.received_ms = 0
        """When bytes last arrived, in epoch ms."""

    # -- from other threads ----------------------------------------------------------------------------------

    def report_soon(self) -> None:
        """Makes the thread report to the master, if there is something new.

        Without the check each confirm of the master would cost a round of the thread.
        """
        if self._position != self._reported:
            self._wake()

    def _wake(self) -> None:
        with self._wake_lock:
            if not self._is_closed:
                os.eventfd_write(self._wake_fd, 1)

    def end(self, why: str) -> None:
        """Makes `run` return. If it is called again, the first reason stays."""
        self.why = self.why or why
        with self._wake_lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()

    def close(self) -> None:
        """Closes the socket, if it is open. No other thread may use the connection."""
        with self._wake_lock:
            if not self._is_closed:
                self._is_closed = True
                self._socket.close()
                os.close(self._wake_fd)

    # -- the thread ------------------------------------------------------------------------------------------

    def shake_hands(self, hello: Hello) -> Welcome:
        """Shakes hands with the master, before `run`. Raises Unreachable, or BadFrame if the answer makes no sense."""
        self._encrypt()
        self._socket.settimeout(_HANDSHAKE_S)
        try:
            self._socket.sendall(REPORT.pack(SHAKE_HANDS) + encode(hello))
            answer = decode(self._read_exactly(length_of(self._read_exactly(LENGTH.size))), Welcome)
        except OSError as error:
            raise Unreachable(f"the master did not answer the handshake: {error or 'no answer'}") from None
        self._socket.setblocking(False)
        return answer

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise Unreachable(self.why or "the master closed the connection during the handshake")
            data += piece
        return bytes(data)

    def enter_epoch(self, epoch: int) -> None:
        """The master's frames are those of this epoch, and so are the reports. Call it before `run`."""
        self._epoch = epoch

    def run(self) -> None:
        """Serves the connection until it ends, and closes it. Raises Unreachable if it cannot be encrypted."""
        try:
            self._encrypt()
            self._report()
            self._serve()
        except OSError as error:
            self.why = self.why or f"the connection to the master broke: {error.strerror or error}"
        finally:
            self._log.drop_partial()
            self.close()

    def _encrypt(self) -> None:
        if self._tls is not None and not isinstance(self._socket, ssl.SSLSocket):
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
        ready.register(self._wake_fd, select.POLLIN)
        full = _FULL_READ if self._tls is None else 1  # poll does not report bytes that TLS has decrypted already
        while not self.why:
            got, now = self._receive(), self._heard_at
            if got < full and not self.why:
                if self._position != self._reported:
                    self._report()
                for descriptor, _ in ready.poll(max(self._wrote_at + beat_s - time.monotonic(), 0.0) * 1000):
                    if descriptor == self._wake_fd:
                        os.eventfd_read(self._wake_fd)
                now = time.monotonic()
            if self.why:
                return
            if now - self._heard_at > silence_s:
                self.why = f"the master was silent for {silence_s:g} s"
            elif now - self._wrote_at >= beat_s or self._position - self._reported >= _REPORT_EVERY:
                self._report()

    def _receive(self) -> int:
        """Reads and appends the bytes that have arrived; returns their number. Sets `why` if the connection ends."""
        try:
            count = self._socket.recv_into(self._buffer)
        except _WOULD_BLOCK:
            return 0
        if not count:
            self.why = self.why or "the master closed the connection"
            return 0
        self._heard_at = time.monotonic()
        self.received_ms = time.time_ns() // 1_000_000
        try:
            if self._store.watermarks.failure:
                raise BytesRefused(self._store.watermarks.failure)
            self._parse(self._buffer[:count])
        except DamagedOnTheWay as error:
            self.why = str(error)
        except (PenstockError, PutRefused) as error:
            self.refused = error if isinstance(error, PenstockError) else BytesRefused(str(error))
            self.why = str(error)
        return count

    # -- frames ----------------------------------------------------------------------------------------------

    def _parse(self, data: memoryview) -> None:
        """Parses frames. Appends the bytes of all frames of one log file together."""
        pieces: list[memoryview] = []
        head_size = EPOCH_FRAME.size if self._epoch else FRAME.size
        start, file_size = self._at, self._store.log.queue.file_size
        while data:
            if self._left:
                piece = data[: self._left]
                pieces.append(piece)
                data = data[len(piece) :]
                self._at += len(piece)
                self._left -= len(piece)
                if self._at % file_size == 0:
                    self._append(start, pieces)
                    pieces, start = [], self._at
                continue
            wanted = head_size - len(self._head)
            self._head += data[:wanted]
            data = data[wanted:]
            if len(self._head) == head_size:
                at = self._take_head()
                self._check(at)
                if at != self._at or not pieces:
                    self._append(start, pieces)
                    pieces, start = [], at
                self._at = at
        self._append(start, pieces)

    def _take_head(self) -> int:
        """Reads the header of a frame, all of which has arrived. Returns the offset of the frame. Raises BytesRefused.

        A frame of another epoch comes from a master that has been replaced since the handshake.
        """
        head, self._head = self._head, b""
        if not self._epoch:
            at, self._left = FRAME.unpack(head)
            return int(at)
        at, self._left, epoch, confirm = EPOCH_FRAME.unpack(head)
        if epoch != self._epoch:
            raise BytesRefused(f"the master sent a frame of epoch {epoch}, but it shook hands in epoch {self._epoch}")
        if confirm < NO_CONFIRM:
            raise BytesRefused(f"the master says that consumers see its log up to {confirm}")
        if confirm > self._confirm:  # before the bytes are appended, so that no consumer sees too many
            self._confirm = confirm
            self._store.watermarks.confirm(confirm)
        return int(at)

    def _check(self, at: int) -> None:
        file_size = self._store.log.queue.file_size
        if at < 0 or not 0 <= self._left <= file_size - at % file_size:
            raise BytesRefused(
                f"the master sent {self._left} bytes at {at}, across the end of a file; mappedFileSizeCommitLog must "
                "be the same on both sides"
            )
        if not self.has_begun and self._log.is_empty:
            self._check_begin(at)
        self.has_begun = True
        self.master_end = max(self.master_end, at + self._left)

    def _check_begin(self, at: int) -> None:
        """Checks where the first frame for an empty slave begins. Raises BytesRefused.

        A Penstock master must send its log from the start. A RocketMQ master sends only its last file, which is logged.
        """
        begins_at = self._master.begins_at
        if begins_at is None or at == begins_at:
            return
        if at < begins_at or self._master.is_penstock:
            raise BytesRefused(
                f"the log sent by haMasterAddress begins at {at}, but that of the broker at masterAddr at "
                f"{begins_at}; nothing is copied; check that both are addresses of the same master"
            )
        log.warning(
            "copying from offset %d, the master's last file, although the master's log begins at %d: RocketMQ's "
            "masters send no more to an empty slave; to have all of it, start the slave with a copy of their store",
            at,
            begins_at,
        )

    def _append(self, offset: int, pieces: list[memoryview]) -> None:
        if pieces:
            self._log.append(offset, *pieces)

    # -- reporting -------------------------------------------------------------------------------------------

    @property
    def _position(self) -> int:
        """The offset to report: the end of this slave's log, under SYNC_FLUSH only as far as it is on disk.

        A slave of a Penstock master whose log ends at 0 reports EVERYTHING until bytes arrive, also if its first file
        exists already. If it reported 0, the master would take that as a request for its last file only.
        """
        if self._master.is_penstock and not self._log.end:
            return EVERYTHING
        return min(self._store.watermarks.stored, self._log.end)

    def _report(self) -> None:
        """Reports the end of this slave's log to the master. The report is also the heartbeat."""
        if not self._unsent:
            self._reported = position = self._position
            self._unsent = EPOCH_REPORT.pack(self._epoch, position) if self._epoch else REPORT.pack(position)
        self._send()

    def _send(self) -> None:
        """Sends the report. If the master does not read, the rest goes out with the next heartbeat."""
        self._wrote_at = time.monotonic()
        with contextlib.suppress(*_WOULD_BLOCK):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]


_FOLLOW: Final = "following the master"
_FIRST_RETRY_S: Final = 0.5
_MAX_RETRY_S: Final = 15.0
_DIFFERENT_S: Final = 60.0
_CONNECT_S: Final = 5.0
"""Seconds for each address of a host name."""


def _take_error(done: asyncio.Future[Any]) -> None:
    """Marks the error of a future as seen, since nobody may wait for it any more."""
    if not done.cancelled():
        done.exception()


async def resolve(host: str, port: int) -> list[Any]:
    """Returns the addresses of a host name, in the system's order."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class MasterFollower:
    """Follows a master from `start` to `stop`. The Supervisor resumes after an error that nothing here expects."""

    def __init__(self, store: MessageStore, link: MasterLink, tasks: Supervisor) -> None:
        assert store.replica_log is not None, "only a slave follows a master"
        self._store = store
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._supervisor = tasks
        self._thread = ThreadPoolExecutor(1, "penstock-follow")
        self._receiver: LogReceiver | None = None
        self._joining = Joining(store, link)
        self.on_cut: Callable[[str], object] | None = None
        """Called on the loop when a part of the log has to be cut, which the next open does, with a sentence."""
        self.problem = ""
        """Why the last attempt to follow failed, as a sentence; empty if none has."""
        self.on_lost: Callable[[], object] = lambda: None
        """Called when a connection to the master has ended, or could not be made."""
        store.watermarks.on_advance(self._on_flushed)

    def accept_loss(self, accepts: bool) -> None:
        """Whether the master may lack what was acknowledged here: an operator has decided so."""
        self._joining.accept_loss = accepts

    @property
    def follows(self) -> bool:
        """Whether the master's log is being received."""
        return self._receiver is not None and self._receiver.has_begun

    @property
    def connection(self) -> object | None:
        """What stands for the connection by which the master's log is being received; None if it is not."""
        return self._receiver if self.follows else None

    @property
    def received_ms(self) -> int:
        """When bytes last arrived from the master, in epoch ms; 0 if not connected."""
        return 0 if self._receiver is None else self._receiver.received_ms

    @property
    def master_end(self) -> int:
        """The end of the master's log, as far as the master has sent it; 0 if not connected."""
        return 0 if self._receiver is None else self._receiver.master_end

    def start(self) -> None:
        self._supervisor.run(_FOLLOW, self._run)

    async def pause(self) -> None:
        """Follows no more, until `start`. No byte is appended when this has returned."""
        await self._supervisor.end(_FOLLOW)
        self._link.close()

    async def stop(self) -> None:
        await self._supervisor.end(_FOLLOW)
        await asyncio.to_thread(self._thread.shutdown)
        self._link.close()

    # -- connecting ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                if not self._link.known.is_set():
                    self.problem = "the master's address is not known yet from any name server"
                    await self._link.known.wait()
                    self.problem = ""
                master = await ask_master(self._link)
                if not master.shakes_hands:
                    if self._link.expected_epoch is not None:
                        raise LogMismatch("the elected master knows no epochs: it must be a Penstock broker")
                    await check_same_log(self._store, self._link, master)
                began = await self._follow(master)
                retry_s = _FIRST_RETRY_S if began else retry_s
            except LogMismatch as error:
                self._set_problem(str(error), logging.ERROR)
                await asyncio.sleep(_DIFFERENT_S)
                continue
            except CutNeeded as needed:
                self._set_problem(str(needed), logging.WARNING)
                if self.on_cut is not None:
                    self.on_cut(str(needed))
                await asyncio.Event().wait()  # nothing may be appended before the store is opened again
            except PenstockError as error:
                self._set_problem(f"cannot follow the master: {error}", logging.WARNING)
            except Exception:
                self.problem = "cannot follow the master: see the broker's log"
                raise
            self.on_lost()
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _MAX_RETRY_S)

    def _set_problem(self, problem: str, level: int) -> None:
        if problem != self.problem:
            log.log(level, "%s", problem)
        self.problem = problem

    async def _follow(self, master: Master) -> bool:
        """Serves one connection until it ends. Returns whether the master sent any frame.

        Raises Unreachable, or the error for which received bytes were refused.
        """
        address = parse_address(self._link.log_address, "haMasterAddress")
        await asyncio.to_thread(self._store.flush)  # so that the first report covers the whole log
        connected = await self._connect(address)
        try:
            receiver = LogReceiver(self._store, connected, self._link.tls, master)
        except BaseException:
            connected.close()
            raise
        running: asyncio.Future[Any] | None = None
        try:
            if master.shakes_hands:
                hello = await asyncio.to_thread(self._joining.hello)
                running = self._loop.run_in_executor(self._thread, receiver.shake_hands, hello)
                await asyncio.wait([running])
                receiver.enter_epoch(await self._joining.join(await running, master))
            self._receiver = receiver
            log.info("following master %s:%d from offset %d", *address, self._store.log.queue.wrote_offset)
            running = self._loop.run_in_executor(self._thread, receiver.run)
            await asyncio.wait([running])
        finally:
            self._receiver = None
            receiver.end("this broker is stopping")
            closed = self._thread.submit(receiver.close)  # after what it does now, also if nobody waits any more
            if running is not None:
                running.add_done_callback(_take_error)
            await asyncio.wait([asyncio.wrap_future(closed)])
        await running
        if receiver.refused is not None:
            raise receiver.refused
        self._set_problem(receiver.why, logging.WARNING)
        return receiver.has_begun

    async def _connect(self, address: tuple[str, int]) -> socket.socket:
        """Connects to the first address of the host name that accepts. Raises Unreachable."""
        why = "it has no address"
        try:
            async with asyncio.timeout(_CONNECT_S):
                addresses = await resolve(*address)
        except OSError as error:
            addresses, why = [], str(error) or "no answer"
        for family, kind, protocol, _, where in addresses:
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
        if self._link.has_account:
            connected.bind(("::" if connected.family == socket.AF_INET6 else "0.0.0.0", 0))
            await self._link.ask_for_ticket(connected.getsockname()[1])
        async with asyncio.timeout(_CONNECT_S):
            await self._loop.sock_connect(connected, where)
        keep_alive(connected)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a put waits for each report

    def _on_flushed(self) -> None:
        """Makes the receiver report. The flush thread calls this."""
        receiver = self._receiver
        if receiver is not None:
            receiver.report_soon()
