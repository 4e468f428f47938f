"""The suite `producer`: Apache RocketMQ's own benchmark producer with `penstock serve` and with RocketMQ's broker.

`org.apache.rocketmq.example.benchmark.Producer` has a number of threads that each send one message and wait for its
answer, until it is ended. A round starts it, lets its compiler warm up, and then counts what the broker stores in some
seconds, by the offsets of its queues. CPU time is that of the broker. Its program is Java on the same cores, so the
rate is that of both together. Brokers run for the whole suite; one whose store has grown is restarted on an empty one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from support import peers as java_peer
from support.loopback import free_port

from bench import PROJECT
from bench.broker import AS_FAST
from bench.broker import FULL as LOAD
from bench.broker import QUICK as LOAD_QUICK
from bench.broker import Sizes as Load
from bench.processes import (
    JAVA_BROKER,
    JavaBroker,
    PenstockBroker,
    class_path,
    end_child,
    is_listening,
)
from bench.report import java_versions
from bench.run import JAVA, OURS, SIZE_IDS, SIZE_NAMES, Goal, NoPeer, Row, Run, Stopwatch, Task
from bench.workspace import BenchFailed
from penstock.client.sync import Admin
from penstock.errors import PenstockError

JAVA_PRODUCER = java_peer.JAVA / "producer"
_HALF = Goal("ratio at least", 2)
"""Of the CPU time of Java's broker."""
WORKLOADS = ((128, 64), (128, 16), (128, 1), (1024, 64))
"""Sizes of bodies, and threads."""
_MAIN = "org.apache.rocketmq.example.benchmark.Producer"
_TOPIC, _QUEUES = "bench", 4
_FIRST_WITHIN_S = 60.0
_POLL_S = 0.05


class Sizes(msgspec.Struct, frozen=True):
    """How long a round takes."""

    load: Load
    warm_up: float
    """Seconds from the first message on before anything counts."""
    seconds: float


FULL = Sizes(LOAD, warm_up=2, seconds=3)
QUICK = Sizes(LOAD_QUICK, warm_up=0.2, seconds=0.3)


class ProducerSuite:
    """See the module."""

    name = "producer"
    summary = "RocketMQ's own benchmark producer with penstock serve and with RocketMQ's broker."
    sides = ("Penstock", "Java")

    def __init__(self) -> None:
        self._jars: list[Path] = []
        self._targets: list[Target] = []

    def need(self, quick: bool) -> int:
        return (QUICK if quick else FULL).load.disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = QUICK if quick else FULL
        settings = sizes.load.settings()
        ours = Target(PenstockBroker(folder / "penstock", settings), sizes)
        java = Target(NamedJavaBroker(folder / "java", settings, self._jars), sizes)
        self._targets = [ours, java]
        found = []
        for body, threads in WORKLOADS:
            name = f"producer-{SIZE_IDS[body]}-{threads}"
            title = f"RocketMQ's Producer, {SIZE_NAMES[body]}, {threads} thread{'s' if threads > 1 else ''}"
            row = Row(name, title, "messages/s", AS_FAST, field="publishRate")
            sides = {OURS: partial(ours.sent_by, threads, body), JAVA: partial(java.sent_by, threads, body)}
            found.append(Task("producer", (row, row.cpu_row(_HALF)), sides, lacking()))
        return found

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        self._jars += class_path(JAVA_BROKER)
        yield java_versions(self._jars)

    def close(self) -> None:
        """Ends the brokers that a row has started."""
        for target in self._targets:
            target.stop()


def lacking() -> str:
    """Why the producer cannot run here; empty if it can, or could once Maven has fetched it."""
    return "" if shutil.which("java") else "java is not installed"


class NamedJavaBroker(JavaBroker):
    """Java's broker with a name server of ours, which clients ask for it."""

    def __init__(self, folder: Path, settings: dict[str, object], jars: list[Path]) -> None:
        super().__init__(folder, settings, jars)
        self._names: subprocess.Popen[bytes] | None = None
        self.namesrv = ""

    def start(self) -> float:
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        order = [sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", self.namesrv]
        output = subprocess.DEVNULL
        self._names = subprocess.Popen(order, stdout=output, stderr=output, cwd=PROJECT)
        deadline = time.perf_counter() + _FIRST_WITHIN_S
        while not is_listening(port):
            if self._names.poll() is not None or time.perf_counter() > deadline:
                self.end()
                raise BenchFailed("the name server did not start")
            time.sleep(_POLL_S)
        self.settings = {**self.settings, "namesrvAddr": self.namesrv}
        return super().start()

    def end(self) -> None:
        super().end()
        if self._names is not None:
            end_child(self._names)
            self._names = None


class Target:
    """A broker that the producer sends to, started when it is first needed."""

    def __init__(self, broker: PenstockBroker | NamedJavaBroker, sizes: Sizes) -> None:
        self._broker = broker
        self._sizes = sizes
        self._is_up = False

    def sent_by(self, threads: int, body: int) -> Run:
        """What so many threads have stored in some seconds. Raises BenchFailed."""
        broker = self._started()
        try:
            with Admin(broker.namesrv) as admin, running(broker, threads, body) as program:
                begin, deadline = stored(admin), time.perf_counter() + _FIRST_WITHIN_S
                while stored(admin) == begin:
                    if program.poll() is not None or time.perf_counter() > deadline:
                        raise BenchFailed("RocketMQ's producer sent nothing")
                    time.sleep(_POLL_S)
                time.sleep(self._sizes.warm_up)
                begin = stored(admin)
                with Stopwatch(*broker.pids) as took:
                    time.sleep(self._sizes.seconds)
                count = stored(admin) - begin
        except PenstockError as error:
            raise BenchFailed(f"the broker does not say what it has stored: {error}") from error
        if not count:
            raise BenchFailed("RocketMQ's producer stopped sending")
        return Run.of(count / took.seconds, {"threads": threads, "body": body}, took.cpu, count)

    def _started(self) -> PenstockBroker | NamedJavaBroker:
        broker = self._broker
        if self._is_up and broker.disk_bytes() > self._sizes.load.store_limit:
            self.stop()
        if not self._is_up:
            broker.start()
            self._is_up = True
            with Admin(broker.namesrv) as admin:
                admin.topics.create(_TOPIC, queues=_QUEUES)
        return broker

    def stop(self) -> None:
        self._broker.stop()
        self._is_up = False


def stored(admin: Admin) -> int:
    """Messages of the topic so far."""
    return sum(each.max_offset for each in admin.topics.stats(_TOPIC).values())


@contextmanager
def running(broker: PenstockBroker | NamedJavaBroker, threads: int, body: int) -> Iterator[subprocess.Popen[bytes]]:
    """The producer, until the block ends. Raises BenchFailed if it cannot be had."""
    try:
        jars = class_path(JAVA_PRODUCER)
    except NoPeer as reason:
        raise BenchFailed(str(reason)) from reason
    home = broker.folder / "producer"
    home.mkdir(exist_ok=True)
    how = ["-n", broker.namesrv, "-t", _TOPIC, "-w", str(threads), "-s", str(body)]
    order = ["java", "-Xmx512m", f"-Duser.home={home}", "-cp", ":".join(map(str, jars)), _MAIN, *how]
    with (home / "output.txt").open("wb") as output:
        program = subprocess.Popen(order, stdout=output, stderr=output, cwd=home)
    try:
        yield program
    finally:
        program.kill()
        program.wait()
