"""`penstock serve` as a process of its own, on free ports that stay the same when it is killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ports import free_port

_UP_WITHIN_S = 90


class Served:
    """A broker with its name server. Use it in a `with` block."""

    def __init__(self, folder: Path, *settings: str, host: str = "127.0.0.1", within: Sequence[str] = ()) -> None:
        """`within` is a command that runs others, in a network of their own, say."""
        self.folder = folder
        self._host = host
        self._within = within
        self.port, self.namesrv_port = free_port(), free_port()
        self._settings = settings
        self._log = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def namesrv(self) -> str:
        return f"{self._host}:{self.namesrv_port}"

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def said(self) -> str:
        """All that it printed and logged so far."""
        return self._log.read_text()

    def start(self) -> None:
        command = [*self._within, sys.executable, "-m", "penstock.cli.main", "serve", "--store", str(self.folder)]
        command += ["--profile", "dev"]
        command += ["--listen", self.address, "--namesrv", self.namesrv, "--console", "off"]
        for setting in self._settings:
            command += ["--set", setting]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _UP_WITHIN_S
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        for port in (self.port, self.namesrv_port):
            try:
                socket.create_connection((self._host, port), 1).close()
            except OSError:
                return False
        return True

    def kill(self) -> None:
        """As a crash would end it."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """Ends it cleanly; returns its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
