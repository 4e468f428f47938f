"""One connection to a master, served by a thread of its own: takes frames apart, hands their bytes on, and reports.

Whole records only reach the store's log (`store.master_bytes`); under SYNC_FLUSH what is reported as taken is on disk.
What came together is appended together, however many frames it came in. The thread that calls `run` does all that is
done with the socket, so that it may be an encrypted one; `wake` and `end` may be called from any other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import threading
import time
from typing import Final

from penstock.broker.replication.same_log import Master
from penstock.broker.replication.wire import EVERYTHING, FRAME, REPORT
from penstock.errors import PenstockError, Unreachable
from penstock.store.master_bytes import BytesRefused, DamagedOnTheWay, MasterBytes
from penstock.store.prepare import PutRefused
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
        assert store.master_bytes is not None
        self._store = store
        self._socket = connected
        self._tls = tls
        self._master = master
        self._taken: MasterBytes = store.master_bytes
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
            self._taken.forget_rest()

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
            self._taken.take(offset, *pieces)

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
