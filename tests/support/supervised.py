"""`penstock serve --brokers N` as a process: its addresses, its brokers' processes, and what it logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

WAIT_S = 120.0
ANYWHERE = ("--profile", "dev", "--listen", "127.0.0.1:0", "--namesrv", "127.0.0.1:0", "--console", "off")


class ServedBrokers:
    """A running `penstock serve --brokers`. Use it in a `with` block, whose end kills what still runs."""

    def __init__(self, folder: Path, count: int, *arguments: object) -> None:
        """With no `arguments`, it listens at free ports."""
        command = [sys.executable, "-m", "penstock.cli.main", "serve", "--store", str(folder), "--brokers", str(count)]
        self.folder = folder
        self.process = subprocess.Popen(
            [*command, *map(str, arguments or ANYWHERE), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._addresses: dict[str, Any] = {}

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    @property
    def said(self) -> str:
        return "".join(self._lines)

    @property
    def addresses(self) -> dict[str, Any]:
        """What `--json` prints when all brokers serve, or could not start."""
        if not self._addresses:
            assert self.process.stdout is not None
            text = self.process.stdout.readline()
            assert text, self.said
            self._addresses = json.loads(text)
        return self._addresses

    @property
    def namesrv(self) -> str:
        return str(self.addresses["namesrv"])

    def broker(self, number: int) -> str:
        """The address of one broker."""
        return str(self.addresses["brokers"][number]["broker"])

    def pids(self) -> list[int]:
        """The processes of its brokers, in the order of their names."""
        by_name = {option: pid for pid in children(self.process.pid) for option in command_of(pid)}
        return [pid for option, pid in sorted(by_name.items()) if option.startswith("--supervised=")]

    def wait_for(self, text: str, count: int = 1) -> None:
        """Returns when the log has a text so many times."""
        wait_until(lambda: self.said.count(text) >= count or self.process.poll() is not None, lambda: self.said)
        assert self.said.count(text) >= count, self.said

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            below = children(self.process.pid)
            self.process.kill()
            self.process.wait()
            for pid in below:
                wait_until(lambda pid=pid: not is_running(pid), lambda: self.said)  # type: ignore[misc]
        self._reader.join(WAIT_S)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(is_so: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(0.02)


def is_closed(store: Path) -> bool:
    """Whether a store was closed cleanly."""
    return (store / "config").is_dir() and not (store / "abort").exists()


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def stores_of(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.iterdir()) if (path / "config").is_dir())
