"""Apache RocketMQ's own broker as a process, on a store of somebody else's; our name server tells clients of it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from java_broker import broker_command, broker_environment
from ports import free_port, free_port_pair

from penstock.client.sync import Admin, Producer

_UP_WITHIN_S = 60


class JavaServed:
    """A Java broker and `penstock namesrv`, with which it registers. Use it in a `with` block."""

    def __init__(self, home: Path, store: Path, class_path: list[Path], settings: dict[str, object]) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port_pair()}"
        self._home = home
        self._store = store
        self._class_path = class_path
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self._command: list[str] = []

    def start(self) -> None:
        port = int(self.address.rpartition(":")[2])
        settings = {"brokerName": "broker-a", "namesrvAddr": self.namesrv, **self._settings}
        java = self._command = broker_command(self._home, self._store, port, self._class_path, settings, heap="512m")
        ours = [sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", self.namesrv]
        for command, address in ((ours, self.namesrv), (java, self.address)):
            self._run(command, address)

    def _run(self, command: list[str], address: str) -> None:
        said = self._home / f"{len(self._processes)}.txt"
        with said.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=broker_environment(self._home))
        self._processes.append(process)
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + _UP_WITHIN_S
        while True:
            try:
                socket.create_connection((host, int(port)), 1).close()
                return
            except OSError:
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.1)

    def kill(self) -> None:
        """Ends the broker as a crash would; its name server stays."""
        broker = self._processes.pop()
        broker.kill()
        broker.wait()

    def start_again(self) -> None:
        """The broker on the same store and port, with the same settings."""
        self._run(self._command, self.address)

    def stop(self) -> None:
        """Ends the broker first, cleanly, then its name server."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def until_registered(admin: Admin) -> None:
    """Returns once the name server knows Java's broker."""
    _until(lambda: "broker-a" in admin.cluster.info().broker_addr_table, "Java's broker has not registered")


def make_orders(admin: Admin, producer: Producer) -> None:
    """The topic `orders` of four queues, once the broker is there."""
    until_registered(admin)
    admin.topics.create("orders", queues=4)
    _until(lambda: len(producer.queues("orders")) == 4, "the topic is not known")


def until_stored(admin: Admin, count: int) -> None:
    """Returns once the queues of `orders` have so many messages."""
    _until(
        lambda: sum(at.max_offset for at in admin.topics.stats("orders").values()) >= count,
        "the messages are not in their queues",
    )


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _UP_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
