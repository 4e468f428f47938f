"""The log as frames: buffers for a socket, without copies, and the thread that sends them to a slave far behind.

`frames`, `read_ahead` and `CatchUpSender.send` may run in any thread. The frames are RocketMQ's (see `master`), or
those of a connection that began with a handshake (see `handshake`): a `Header` makes either.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final, Self

from penstock.errors import PenstockError
from penstock.store.files.mapped_file_queue import MappedFileQueue

REPORT: Final = struct.Struct(">q")
FRAME: Final = struct.Struct(">qi")
EVERYTHING: Final = -1
CHUNK: Final = 1 << 20
"""Bytes of the log that one call of `frames` returns at most. The loop itself sends to a slave that is behind by no
more than this."""
_MAX_FRAMES: Final = 256
"""Limit of the frames in one `sendmsg`: a frame is two buffers, and `sendmsg` takes 1024 buffers."""
_AHEAD: Final = 8 << 20
Buffer = bytes | memoryview
Header = Callable[[int, int], bytes]
"""Makes the header of a frame from the physical offset and the number of its bytes."""


class LogDeleted(PenstockError):
    """The part of the log that a slave needs next was deleted."""


@contextlib.contextmanager
def frames(
    queue: MappedFileQueue, start: int, end: int, batch: int, header: Header = FRAME.pack
) -> Iterator[tuple[list[Buffer], int]]:
    """Yields the frames from `start` on as a list of buffers, and the offset where they end.

    Headers and log bytes alternate in the list. The frames stop at `end`, at the end of the log file, or after CHUNK
    bytes. No frame has more than `batch` bytes of the log. Nothing is copied: the bytes are views of the mapped file,
    valid only inside the context, and reading them may wait for the disk. Any thread may call this. Raises LogDeleted.
    """
    file = queue.find(start)
    if file is None or not file.acquire():
        raise LogDeleted(f"it needs the log from {start}, which was deleted")
    parts: list[Buffer] = []
    try:
        at = start - file.from_offset
        stop = min(at + CHUNK, at + batch * _MAX_FRAMES, end - file.from_offset, file.readable)
        while at < stop:
            count = min(batch, stop - at)
            parts += (header(file.from_offset + at, count), file.map.view[at : at + count])
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
_READ_AHEAD_EVERY: Final = 4 * CHUNK


class CatchUpSender:
    """Sends the log, from a thread, to a slave that is far behind.

    It has its own duplicate of the socket, which stays valid while the thread uses it. The loop must write nothing to
    the connection meanwhile. Only one thread at a time may call `send`. Any thread may call `end`, once or more: it
    makes `send` return, and the last of the two to finish closes the socket, so that no callback of the loop has to.
    """

    def __init__(self, queue: MappedFileQueue, batch: int, connected: socket.socket, header: Header) -> None:
        self._queue = queue
        self._batch = batch
        self._header = header
        self._socket = connected
        self._gate = threading.Lock()
        """Guards `_is_sending`, `_ended` and the end of the socket."""
        self._is_sending = False
        self._ended = False

    @classmethod
    def of(cls, queue: MappedFileQueue, batch: int, descriptor: int, header: Header = FRAME.pack) -> Self:
        return cls(queue, batch, socket.socket(fileno=os.dup(descriptor)), header)

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
            with frames(self._queue, at, end, self._batch, self._header) as (parts, reached):
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
