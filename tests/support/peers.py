"""Other implementations as processes: Apache RocketMQ's store and broker, and programs that answer JSON line by line.

The Java programs are built once per session with Maven; where Maven, Java or the artifacts are missing, the tests that
need them are skipped with the reason. Everything that RocketMQ's broker writes stays in two folders: its `home`
(broker.conf, a log of warnings) and its store. It takes the port that it is given, the one two below, and a free one
for replicas.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.client.sync import Admin, Producer
from support import TESTS
from support.loopback import free_port, free_port_pair


class PeerError(Exception):
    """The other program refused or failed; the text is its own."""


class Talker:
    """One process. Use it in a `with` block."""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **how,
        )
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Sends one request and returns the answer. Raises PeerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(10)
            raise PeerError(f"the process ended with {self._process.returncode}: {''.join(self._said[-20:])}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise PeerError(f"{answer['error']}: {''.join(self._said[-20:])}")
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


JAVA = TESTS / "peers" / "java"
"""Programs in Java, each a project for Maven: `store`, `broker`, `client`."""
PROJECT = JAVA / "store"
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")


def build(project: Path = PROJECT) -> list[Path]:
    """Compiles a program and fetches what it needs; returns the class path. Raises PeerError with the reason."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise PeerError(f"{tool} is not installed")
    with (project / "pom.xml").open() as held:  # two workers of pytest would write the same jar
        fcntl.flock(held, fcntl.LOCK_EX)
        done = subprocess.run(
            ["mvn", "-q", "-B", "-Dstyle.color=never", "package"],
            cwd=project,
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise PeerError(f"Maven failed: {lines[0] if lines else done.returncode}")
    target = project / "target"
    return [*target.glob("*-peer-*.jar"), *target.glob("lib/*.jar")]


def built(project: Path) -> list[Path]:
    """As `build`, but skips the test where the program cannot be had."""
    try:
        return build(project)
    except PeerError as reason:
        pytest.skip(str(reason))


class Peer(Talker):
    """Java's store in a process of its own. Use it in a `with` block."""

    def __init__(self, class_path: list[Path], heap: str = "1g") -> None:
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        super().__init__(["java", f"-Xmx{heap}", *opens, "-cp", ":".join(map(str, class_path)), "penstock.Peer"])

    def open(self, path: Path, settings: dict[str, Any]) -> Any:
        return self.ask("open", path=str(path), settings=settings)


def message_json(**fields: Any) -> dict[str, Any]:
    """A message for Java to put, with the defaults of Penstock's Message."""
    body = fields.pop("body", b"")
    return {
        "queue_id": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": "127.0.0.1:0",
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": {},
        **fields,
        "body": base64.b64encode(body).decode(),
    }


_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/broker.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


def broker_command(
    home: Path, store: Path, port: int, class_path: list[Path], settings: Mapping[str, object], *, heap: str
) -> list[str]:
    """The command that runs the broker on a store; its configuration is in `home` then."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "logback_broker.xml").write_text(_LOGBACK, encoding="utf-8")
    own = {
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "haListenPort": free_port_pair(),
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
    }
    lines = [f"{name}={value}\n" for name, value in {**own, **settings}.items()]
    (home / "broker.conf").write_text("".join(lines), encoding="utf-8")
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(home / "broker.conf")]
    path = ":".join(map(str, class_path))
    return ["java", f"-Xmx{heap}", f"-Duser.home={home}", *opens, "-cp", path, *main]


def broker_environment(home: Path) -> dict[str, str]:
    return {**os.environ, "ROCKETMQ_HOME": str(home)}


_JAVA_UP_WITHIN_S = 60
_ATTEMPTS = 3
_IN_USE = "Address already in use"


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
        self._home.mkdir(parents=True, exist_ok=True)
        self._run([sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", self.namesrv], self.namesrv)
        for left in reversed(range(_ATTEMPTS)):
            self._command = broker_command(self._home, self._store, port, self._class_path, settings, heap="512m")
            try:
                self._run(self._command, self.address)
                return
            except AssertionError as error:  # a connection of some program has the port for slaves meanwhile
                if not left or _IN_USE not in str(error) or "haListenPort" in self._settings:
                    raise
                self._processes.pop()

    def _run(self, command: list[str], address: str) -> None:
        said = self._home / f"{len(self._processes)}.txt"
        with said.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=broker_environment(self._home))
        self._processes.append(process)
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + _JAVA_UP_WITHIN_S
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
    deadline = time.monotonic() + _JAVA_UP_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)
