"""The processes that are measured: brokers of both sides, and Apache RocketMQ's store in a Java process.

Both brokers get the same settings. Ours runs with its embedded name server, its default. Java's runs without one, which
it does not need here: its memory and its start are those of the broker alone. It logs warnings only. Java gets `HEAP`
of heap and its own choice of everything else. Its programs are compiled with Maven if they are missing or older than
their source; otherwise nothing is fetched. Processes are ended by their ids.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import peers as java_peer
from support.loopback import free_port_pair
from support.peers import broker_command, broker_environment

from bench import PROJECT
from bench.load import BadReply, check, send_frame
from bench.run import NoPeer, Stopwatch
from bench.workspace import BenchFailed

HEAP = "2g"
JAVA_BROKER = java_peer.JAVA / "broker"
_UP_WITHIN_S = 60.0
_DOWN_WITHIN_S = 30.0
_POLL_S = 0.005


def end_child(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Terminates a process, and kills it if it does not end; does nothing if it has ended."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_DOWN_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process (VmRSS)."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def is_listening(port: int) -> bool:
    """Whether clients can connect to this port of the loopback interface."""
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


# -- Java ----------------------------------------------------------------------------------------------------


def class_path(project: Path = java_peer.PROJECT) -> list[Path]:
    """The class path of a Java program in `tests/`, compiled if need be. Raises NoPeer."""
    if shutil.which("java") is None:
        raise NoPeer("java is not installed")
    try:
        return _built(project) or java_peer.build(project)
    except java_peer.PeerError as reason:
        raise NoPeer(str(reason)) from reason


def _built(project: Path) -> list[Path]:
    """The class path of the last build; empty if there is none or the source is newer."""
    jars = list((project / "target").glob("*-peer-*.jar"))
    libraries = list((project / "target" / "lib").glob("*.jar"))
    programs = list((project / "src").rglob("*.java"))
    newest = max(source.stat().st_mtime for source in [project / "pom.xml", *programs])
    made = jars if programs else [project / "target" / "lib"]
    if not libraries or not made or min(each.stat().st_mtime for each in made) < newest:
        return []
    return [*jars, *libraries]


class JavaStore(java_peer.Peer):
    """Apache RocketMQ's store in a process of its own, for the whole suite."""

    def bench(self, what: str, **arguments: Any) -> tuple[dict[str, Any], float]:
        """Does one piece of work; returns the answer and the process's CPU seconds. Raises BenchFailed."""
        with Stopwatch(self._process.pid) as took:
            answer: dict[str, Any] = self.ask("bench", what=what, **arguments)
        if failed := answer.get("failed", 0):
            raise BenchFailed(f"{failed} of {arguments.get('count', 0)} puts were refused")
        return answer, took.cpu


@contextmanager
def java_store(jars: list[Path]) -> Iterator[JavaStore]:
    """The process; killed at once after an error, which may come in the middle of a round."""
    with JavaStore(jars, heap=HEAP) as peer:
        try:
            yield peer
        except BaseException:
            peer.kill()
            raise


# -- brokers -------------------------------------------------------------------------------------------------


class BrokerProcess:
    """One broker with its store in `folder`."""

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
    def pids(self) -> tuple[int, ...]:
        """The processes whose CPU time counts."""
        return () if self._process is None else (self._process.pid,)

    def start(self) -> float:
        """Starts it on a new store; returns the seconds until the first message is acknowledged."""
        self.make_new()
        return self.resume(self.takes_messages)

    def make_new(self) -> None:
        """Creates an empty store and chooses a free port."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.store.mkdir(parents=True)
        self.port = free_port_pair()

    def resume(self, is_up: Callable[[], bool]) -> float:
        """Starts it on the store it has; returns the seconds until `is_up`. Raises BenchFailed."""
        command, environment = self.command(), self.environment()
        started = time.perf_counter()
        with (self.folder / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=PROJECT)
        while not is_up():
            if self._process.poll() is not None or time.perf_counter() - started > _UP_WITHIN_S:
                said = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
                self.end()
                raise BenchFailed(f"{type(self).__name__} did not start: {said[-1] if said else 'it said nothing'}")
            time.sleep(_POLL_S)
        return time.perf_counter() - started

    def is_listening(self) -> bool:
        """Whether clients can connect."""
        return is_listening(self.port)

    def takes_messages(self) -> bool:
        """Sends one message; returns whether it was acknowledged."""
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

    def disk_bytes(self) -> int:
        """What its store takes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.store.rglob("*") if path.is_file())

    def stop(self) -> None:
        """Ends it and removes its store."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self) -> None:
        """Ends it, if it runs, and keeps its store."""
        if self._process is not None:
            end_child(self._process)
            self._process = None


class PenstockBroker(BrokerProcess):
    """`penstock serve`, of this tree unless `program` and `variables` of its environment name another."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, object],
        program: Sequence[str] = (sys.executable, "-m", "penstock.cli.main"),
        variables: dict[str, str] | None = None,
    ) -> None:
        super().__init__(folder, settings)
        self._program = program
        self._variables = variables or {}

    def command(self) -> Sequence[str]:
        pairs = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        order = [*self._program, "serve", "--store", str(self.store), "--console", "off", "--json"]
        return [*order, "--listen", f"127.0.0.1:{self.port}", "--namesrv", "127.0.0.1:0", *pairs]

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self._variables}

    @property
    def namesrv(self) -> str:
        """The address of its embedded name server, which it prints soon after it listens. Raises BenchFailed."""
        deadline = time.perf_counter() + _UP_WITHIN_S
        while time.perf_counter() < deadline:
            for line in (self.folder / "output.txt").read_text(encoding="utf-8").splitlines():
                if line.startswith("{") and line.endswith("}"):
                    return str(json.loads(line)["namesrv"])
            time.sleep(_POLL_S)
        raise BenchFailed("the broker did not print the address of its name server")


class JavaBroker(BrokerProcess):
    """Apache RocketMQ's broker."""

    def __init__(self, folder: Path, settings: dict[str, object], jars: list[Path]) -> None:
        super().__init__(folder, settings)
        self._jars = jars

    def command(self) -> Sequence[str]:
        own = {
            "brokerClusterName": "DefaultCluster",
            "autoCreateTopicEnable": "true",
            "defaultTopicQueueNums": 4,
            "waitTimeMillsInSendQueue": 60_000,
            "waitTimeMillsInPullQueue": 60_000,
        }
        return broker_command(self.folder, self.store, self.port, self._jars, {**own, **self.settings}, heap=HEAP)

    def environment(self) -> dict[str, str]:
        return broker_environment(self.folder)
