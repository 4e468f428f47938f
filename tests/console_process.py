"""`penstock console` as a process on a free port, and a client that talks to it; for its tests and its benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import httpx

TOKEN = "a-token-for-tests-0123456789"
_UP_WITHIN_S = 60.0


class ConsoleProcess:
    """One console. Use it in a `with` block."""

    def __init__(self, namesrv: str, *options: str, folder: Path) -> None:
        self._said = folder / "console.txt"
        order = [sys.executable, "-m", "penstock.cli.main", "console", "--namesrv", namesrv, "--listen", "127.0.0.1:0"]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [*order, "--token", TOKEN, "--json", *options], stdout=subprocess.PIPE, stderr=said, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said
        self.link: str = json.loads(line)["console"]
        self.address = self.link.partition("/?")[0]
        self._until_up()

    @property
    def said(self) -> str:
        return self._said.read_text()

    def client(self, **headers: str) -> httpx.Client:
        """Somebody with the token, to be closed."""
        return httpx.Client(
            base_url=self.address, headers={"authorization": f"Bearer {TOKEN}", **headers}, timeout=30, verify=False
        )

    def stranger(self, **headers: str) -> httpx.Client:
        """Somebody without one."""
        return httpx.Client(base_url=self.address, headers=headers, timeout=30, verify=False)

    def _until_up(self) -> None:
        deadline = time.monotonic() + _UP_WITHIN_S
        with self.client() as client:
            while True:
                try:
                    client.get("/healthz").raise_for_status()
                    return
                except httpx.TransportError:
                    assert self.process.poll() is None, self.said
                    assert time.monotonic() < deadline, self.said
                    time.sleep(0.05)

    def stop(self) -> int:
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.stop()
