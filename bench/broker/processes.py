"""The two brokers as processes, ours and Java's, with the same settings; ended by their ids, whatever happens.

Ours runs with its embedded name server, as it does by default. Java's runs without one, which it does not need for
this: its memory and its start are those of the broker alone. It logs warnings only.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from support.loopback import free_port_pair
from support.peers import broker_command, broker_environment

from bench import PROJECT
from bench.broker.frames import send_frame
from bench.broker.window import BadReply, check
from bench.children import end_child
from bench.harness import BenchFailed
from bench.java import HEAP

JAVA_PROJECT = PROJECT / "tests" / "peers" / "java" / "broker"
CLUSTER = "DefaultCluster"
_UP_WITHIN_S = 60.0


class BrokerProcess:
    """One broker on a store in `folder`, new unless it is resumed. Use it in a `with` block."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.settings = settings
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        """Starts it on a new store; returns the seconds from the start to the first message acknowledged."""
        self.make_new()
        return self.resume(self.takes_messages)

    def make_new(self) -> None:
        """An empty store, and a free port."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.store.mkdir(parents=True)
        self.port = free_port_pair()

    def resume(self, is_up: Callable[[], bool]) -> float:
        """Starts it on the store that it has; returns the seconds until `is_up`. Raises BenchFailed."""
        command, environment = self.command(), self.environment()
        started = time.perf_counter()
        with (self.folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=PROJECT)
        while not is_up():
            if self._process.poll() is not None or time.perf_counter() - started > _UP_WITHIN_S:
                said = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
                self.end()
                raise BenchFailed(f"{type(self).__name__} did not start: {said[-1] if said else 'it said nothing'}")
            time.sleep(0.005)
        return time.perf_counter() - started

    def is_listening(self) -> bool:
        """Whether clients can connect."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def takes_messages(self) -> bool:
        """Whether one message was acknowledged."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(send_frame("first", 0, b"first", 1))
                reply = bytearray()
                while len(reply) < 4 or len(reply) < 4 + int.from_bytes(reply[:4], "big"):
                    got = connection.recv(1 << 16)
                    if not got:
                        return False
                    reply += got
                check(bytes(reply))
        except (OSError, BadReply):
            return False
        return True

    def memory(self) -> int:
        """Bytes of memory that it holds just now."""
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BenchFailed("the memory of a broker cannot be read")

    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def disk_bytes(self) -> int:
        """What its store takes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.store.rglob("*") if path.is_file())

    def stop(self) -> None:
        """Ends it, and removes what it wrote."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """Ends it, if it runs, and keeps its store."""
        if self._process is not None:
            end_child(self._process)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Penstock(BrokerProcess):
    """`penstock serve`."""

    def command(self) -> Sequence[str]:
        pairs = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        order = [sys.executable, "-m", "penstock.cli.main", "serve", "--store", str(self.store), "--console", "off"]
        return [*order, "--listen", f"127.0.0.1:{self.port}", "--namesrv", "127.0.0.1:0", *pairs]


class JavaBroker(BrokerProcess):
    """Apache RocketMQ's broker."""

    def __init__(self, folder: Path, settings: dict[str, object], class_path: list[Path]) -> None:
        super().__init__(folder, settings)
        self._class_path = class_path

    def command(self) -> Sequence[str]:
        own = {
            "brokerClusterName": CLUSTER,
            "autoCreateTopicEnable": "true",
            "defaultTopicQueueNums": 4,
            "waitTimeMillsInSendQueue": 60_000,
            "waitTimeMillsInPullQueue": 60_000,
        }
        settings = {**own, **self.settings}
        return broker_command(self.folder, self.store, self.port, self._class_path, settings, heap=HEAP)

    def environment(self) -> dict[str, str]:
        return broker_environment(self.folder)
