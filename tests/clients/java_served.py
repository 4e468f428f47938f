"""Apache RocketMQ's own broker as a process, on a store of somebody else's; our name server tells clients of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from clients.served import free_port
from compat.java_peer import OPENED

_UP_WITHIN_S = 60
_NO_LOG = '<configuration><root level="OFF"/></configuration>'


class JavaServed:
    """A Java broker and `penstock namesrv`, with which it registers. Use it in a `with` block."""

    def __init__(self, home: Path, store: Path, class_path: list[Path], settings: dict[str, object]) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self._home = home
        self._store = store
        self._class_path = class_path
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        (self._home / "conf").mkdir(parents=True, exist_ok=True)
        (self._home / "conf" / "logback_broker.xml").write_text(_NO_LOG)
        own = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "listenPort": self.address.rpartition(":")[2],
            "haListenPort": free_port(),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self._store,
            "storePathCommitLog": self._store / "commitlog",
        }
        lines = [f"{name}={value}\n" for name, value in {**own, **self._settings}.items()]
        (self._home / "broker.conf").write_text("".join(lines))
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        path = ":".join(map(str, self._class_path))
        java = ["java", "-Xmx512m", f"-Duser.home={self._home}", *opens, "-cp", path]
        java += ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(self._home / "broker.conf")]
        ours = [sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", self.namesrv]
        for command, address in ((ours, self.namesrv), (java, self.address)):
            self._run(command, address)

    def _run(self, command: list[str], address: str) -> None:
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._home)}
        said = self._home / f"{len(self._processes)}.txt"
        with said.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
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

    def stop(self) -> None:
        """Ends the broker first, cleanly, then its name server."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(60)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
