"""etcd's nodes with short election timeouts, on the loopback interface or on machines of their own.

Where etcd is missing, the test is skipped.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.loopback import SOON_S, free_port

BINARY = os.environ.get("ETCD") or shutil.which("etcd") or ""
HEARTBEAT_MS, ELECTION_MS = 50, 500


def need_etcd() -> None:
    if not BINARY:
        pytest.skip("there is no etcd here; install Debian's etcd-server, or name a binary with ETCD=")


class EtcdNode:
    """One process of etcd."""

    def __init__(
        self,
        name: str,
        folder: Path,
        client_port: int,
        peer_port: int,
        cluster: str,
        *options: str,
        host: str = "127.0.0.1",
        within: Sequence[str] = (),
    ) -> None:
        """`within` is a command that runs others, in a network of their own, say."""
        self.name = name
        self.address = (host, client_port)
        scheme = "https" if any(each.startswith("--cert-file") for each in options) else "http"
        client, peer = f"{scheme}://{host}:{client_port}", f"http://{host}:{peer_port}"
        self._command = [
            *within,
            BINARY,
            *("--name", name, "--data-dir", str(folder / name), "--log-level", "error", "--logger", "zap"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
            *("--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS)),
            *options,
        ]
        self._log = folder / f"{name}.log"
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

    def is_healthy(self) -> bool:
        """Whether the node serves linearizable reads."""
        return self._ask("/v3/kv/range", '{"key": "AA=="}')[0] in (200, 400)

    def is_leader(self) -> bool:
        """Whether the node says that it leads the others; asked through its gateway, as Debian has etcdctl apart."""
        code, said = self._ask("/v3/maintenance/status", "{}")
        status = json.loads(said) if code == 200 else {}
        return bool(status.get("leader")) and status["leader"] == status["header"]["member_id"]

    def _ask(self, path: str, order: str) -> tuple[int, bytes]:
        """Returns the code and the body of an answer; 0 if none came."""
        connection = http.client.HTTPConnection(*self.address, timeout=1.0)
        try:
            connection.request("POST", path, order)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


@contextmanager
def running_etcd(
    folder: Path,
    nodes: int = 1,
    *options: str,
    waits: bool = True,
    machines: Sequence[tuple[str, Sequence[str]]] = (),
) -> Iterator[list[EtcdNode]]:
    """Runs etcd's nodes until the end of the block; each on a machine, given by its host and its `within`, if any."""
    need_etcd()
    places = list(machines) or [("127.0.0.1", ())] * nodes
    ports = [(free_port(), free_port()) for _ in places]
    peers = [f"n{number}=http://{places[number][0]}:{peer}" for number, (_, peer) in enumerate(ports)]
    started: list[EtcdNode] = []
    try:
        for number, ((client, peer), (host, within)) in enumerate(zip(ports, places, strict=True)):
            name, cluster = f"n{number}", ",".join(peers)
            started.append(EtcdNode(name, folder, client, peer, cluster, *options, host=host, within=within))
        until = time.monotonic() + SOON_S
        while waits and not all(each.is_healthy() for each in started):
            assert time.monotonic() < until, "etcd did not start"
            assert all(each.process.poll() is None for each in started), "etcd ended"
            time.sleep(0.05)
        yield started
    finally:
        for each in started:
            each.end()
