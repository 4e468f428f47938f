"""ZooKeeper's nodes with short ticks, on the loopback interface, from the jars that Maven fetches.

Where Java, Maven, the jars or kazoo are missing, the test is skipped with the reason.
"""

from __future__ import annotations

import functools
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.loopback import SOON_S, free_port
from support.peers import JAVA, PeerError, build

TICK_MS = 500


@functools.cache
def _class_path() -> str:
    try:
        return ":".join(map(str, build(JAVA / "zookeeper")))
    except (PeerError, subprocess.TimeoutExpired) as error:
        return f"!{error}"


def need_zookeeper() -> str:
    """Returns the class path of ZooKeeper's server."""
    pytest.importorskip("kazoo", reason="kazoo is not installed; pip install 'penstock[zookeeper]'")
    found = _class_path()
    if found.startswith("!"):
        pytest.skip(f"there is no ZooKeeper here: {found[1:]}")
    return found


class ZookeeperNode:
    """One process of ZooKeeper."""

    def __init__(
        self, name: str, folder: Path, settings: Mapping[str, object], properties: Mapping[str, object]
    ) -> None:
        self.name = name
        self.data = folder / name
        self.address = ("127.0.0.1", int(str(settings.get("secureClientPort", settings.get("clientPort")))))
        self._log = folder / f"{name}.log"
        file = folder / f"{name}.cfg"
        file.write_text("".join(f"{key}={value}\n" for key, value in {**settings, "dataDir": self.data}.items()))
        self._command = [
            *("java", "-Xmx128m", "-XX:+UseSerialGC", "-Dzookeeper.preAllocSize=256"),
            *(f"-D{key}={value}" for key, value in properties.items()),
            *("-cp", need_zookeeper(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(file)),
        ]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)

    def restart(self) -> None:
        self.process = self._start()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()

    def mode(self) -> str:
        """Returns `standalone`, `leader` or `follower`; empty if the node does not serve."""
        try:
            with socket.create_connection(self.address, 1.0) as connection:
                connection.sendall(b"srvr")
                connection.settimeout(1.0)
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), "")


@contextmanager
def running_zookeeper(
    folder: Path,
    nodes: int = 1,
    *,
    settings: Mapping[str, object] | None = None,
    properties: Mapping[str, object] | None = None,
    waits: bool = True,
) -> Iterator[list[ZookeeperNode]]:
    """Runs ZooKeeper's nodes until the end of the block."""
    need_zookeeper()
    ports = [(free_port(), free_port(), free_port()) for _ in range(nodes)]
    common: dict[str, object] = {
        "tickTime": TICK_MS,
        "initLimit": 20,
        "syncLimit": 4,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr",
    }
    if nodes > 1:
        common |= {
            f"server.{number}": f"127.0.0.1:{peer}:{election}" for number, (_, peer, election) in enumerate(ports, 1)
        }
    started: list[ZookeeperNode] = []
    try:
        for number, (client, _, _) in enumerate(ports, 1):
            name = f"z{number}"
            (folder / name).mkdir(parents=True)
            (folder / name / "myid").write_text(str(number))
            own = {**common, "clientPort": client, "clientPortAddress": "127.0.0.1", **(settings or {})}
            started.append(ZookeeperNode(name, folder, own, properties or {}))
        until = time.monotonic() + SOON_S
        while waits and not all(each.mode() for each in started):
            assert time.monotonic() < until, "ZooKeeper did not start"
            assert all(each.process.poll() is None for each in started), "ZooKeeper ended"
            time.sleep(0.05)
        yield started
    finally:
        for each in started:
            each.end()
