"""Sends the log to a slave that is far behind, from a thread: its pages may have to come from the disk first.

A broker's loop must not wait for that. While a slave is this far behind the thread has its socket to itself, and the
loop only hears what the slave reports. One thread at a time calls `send`; `end` may be called from the loop meanwhile,
and has it return.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Final, Self

from penstock.broker.replication.frames import AT_ONCE, Buffer, frames, read_ahead
from penstock.store.file_queue import FileQueue

_LOOK_MS: Final = 1000
_READ_AHEAD_EVERY: Final = 4 * AT_ONCE


class Laggard:
    """The socket of a slave that is behind; its own name for it, so that it stays as long as a thread uses it."""

    def __init__(self, queue: FileQueue, batch: int, connected: socket.socket) -> None:
        self._queue = queue
        self._batch = batch
        self._socket = connected
        self._ended = False

    @classmethod
    def of(cls, queue: FileQueue, batch: int, descriptor: int) -> Self:
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
