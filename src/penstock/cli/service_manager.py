"""What a service manager such as systemd is told: ready, still alive, stopping, and the status in a sentence.

The protocol is sd_notify's: datagrams of `NAME=value` lines to the Unix socket that NOTIFY_SOCKET names. Without that
variable nothing is sent. A message that cannot be delivered is dropped: serving messages comes first. The variables
leave the environment, so that child processes do not speak for the broker. Any thread may call; messages are small, and
the socket does not block.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

_MICROSECONDS: Final = 1_000_000


class ServiceManager:
    """The service manager that started this process, if any. Close it at the end."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """`environment` is the process's by default."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", "")
        period, process = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        is_ours = not process or process == str(os.getpid())
        self.alive_every_s: float | None = None
        """How often `alive` has to be called: twice within the time after which the manager gives up; None: never."""
        if address and is_ours and period.isascii() and period.isdigit() and int(period) > 0:
            self.alive_every_s = int(period) / _MICROSECONDS / 2
        self._status = ""
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket: socket.socket | None = None
        if address.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    def starting(self, status: str) -> None:
        """Says how far the start is, if that has changed."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={_one_line(status)}")

    def ready(self, status: str) -> None:
        """Says that clients are served."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def alive(self) -> None:
        """Says that the process still works. Call it on the event loop every `alive_every_s` seconds."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, text: str) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto(text.encode(), self._address)


def _one_line(text: str) -> str:
    return " ".join(text.split())
