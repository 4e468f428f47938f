"""The suite `queues`: what a user of Python gets from Penstock, Redis streams, NATS JetStream and Kafka.

Each side is a server on loopback and its Python client, each a process of its own (`servers`, `client`). CPU time is
that of client and server together, for each message. The sides are what they are: an answer does not mean the same in
each, so its meaning stands below the figures (`servers.ACKS`). A side that is not here is skipped with the reason;
`python -m bench fetch` fetches all of them, and nothing else does.

Workloads: sends with 1, 64 and 1,000 in flight; a backlog consumed by a new group that acknowledges; sends that are on
disk before the answer; start, memory and disk. Only one server of a system runs at a time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from support.peers import PeerError, Talker

from bench.processes import resident_bytes
from bench.queues.fetch import PEERS
from bench.queues.servers import ACKS, SERVERS, AnyServer, Mode, missing, versions
from bench.run import OURS, SIZE_IDS, SIZE_NAMES, Row, Run, Stopwatch, Task, Unit, cpu_seconds, process_tree
from bench.workspace import GIB, BenchFailed

OTHERS = {"redis": "Redis", "nats": "NATS", "confluent": "Kafka, confluent-kafka", "aiokafka": "Kafka, aiokafka"}
"""Sides by their clients, as titles name them."""
_SYSTEMS = {OURS: "penstock", "redis": "redis", "nats": "nats", "confluent": "kafka", "aiokafka": "kafka"}
_CLIENT = Path(__file__).parent / "client.py"
_FILL = 1_000
"""Messages in flight while a backlog is written."""
_SETTLE_S = 1.0
_CONSUMED = (
    "Consumed means: Penstock: the handler has returned; offsets are committed every five seconds. Redis: XACK after "
    "each page. NATS: an ack for each message. Kafka: offsets committed after each page. A page has 100 messages, ours "
    "32."
)


class Sizes(msgspec.Struct, frozen=True):
    """How much is done in a round."""

    serial: int
    """Messages with one in flight."""
    many: int
    """Messages with more."""
    serial_on_disk: int
    many_on_disk: int
    backlog: int
    stored: int
    """Messages whose disk and memory are counted."""


FULL = Sizes(serial=4_000, many=40_000, serial_on_disk=400, many_on_disk=1_280, backlog=40_000, stored=40_000)
QUICK = Sizes(serial=20, many=1_000, serial_on_disk=4, many_on_disk=64, backlog=200, stored=200)


class QueuesSuite:
    """See the module."""

    name = "queues"
    summary = "From Python: Penstock beside Redis streams, NATS JetStream and Kafka."
    sides = ("Penstock", "Other side")

    def __init__(self) -> None:
        self._systems: dict[str, System] = {}
        self._clients: dict[str, ClientProcess] = {}

    def need(self, quick: bool) -> int:
        return GIB if quick else 4 * GIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = QUICK if quick else FULL
        systems = self._systems = {name: System(name, folder) for name in SERVERS}
        clients = self._clients = {side: ClientProcess(side) for side in _SYSTEMS}
        sides = {side: Side(clients[side], systems[system]) for side, system in _SYSTEMS.items()}
        absent = {side: reason for side in OTHERS if (reason := missing(_SYSTEMS[side]))}
        here = {name: side for name, side in sides.items() if name not in absent}
        found = []
        for body, window in ((128, 1), (128, 64), (128, 1_000), (1024, 64)):
            count = sizes.serial if window == 1 else sizes.many
            rows = rows_of(f"python-{SIZE_IDS[body]}-{window}", f"send, {SIZE_NAMES[body]}, {window:,} in flight")
            runs = {name: partial(side.send, "page-cache", body, window, count) for name, side in here.items()}
            found.append(Task("send", rows, runs, absent=absent, remarks=(ACKS["page-cache"],)))
        rows = rows_of("backlog-push", "consume a backlog, 128 B, one handler call a message")
        runs = {name: partial(side.drain, sizes.backlog, "push") for name, side in here.items()}
        found.append(Task("backlog", rows, runs, absent=absent, remarks=(_CONSUMED,)))
        for how, title in (("batch", "lists of up to 32"), ("sync", "the blocking client")):
            row = Row(f"backlog-{how}", f"consume a backlog, 128 B, {title}; beside one call a message", "messages/s")
            row = msgspec.structs.replace(row, beside="push")
            ours = {OURS: partial(sides[OURS].drain, sizes.backlog, how)}
            found.append(Task("backlog", (row,), {**ours, "push": partial(sides[OURS].drain, sizes.backlog, "push")}))
        for window, count in ((1, sizes.serial_on_disk), (64, sizes.many_on_disk)):
            rows = rows_of(f"on-disk-{window}", f"send, 128 B, {window} in flight, on disk before the answer")
            runs = {name: partial(side.send, "on-disk", 128, window, count) for name, side in here.items()}
            found.append(Task("on-disk", rows, runs, absent=absent, remarks=(ACKS["on-disk"],)))
        rows = footprint_rows(sizes.stored)
        runs = {name: partial(side.footprint, sizes.stored) for name, side in here.items() if name != "aiokafka"}
        return [*found, Task("footprint", rows, runs, absent=absent)]

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        """The others are started by the rows that need them."""
        yield versions()

    def close(self) -> None:
        """Ends clients and servers that a row has started."""
        for client in self._clients.values():
            client.stop()
        for system in self._systems.values():
            system.stop()


# -- rows ----------------------------------------------------------------------------------------------------


def rows_of(name: str, title: str) -> tuple[Row, ...]:
    """Our figure, and a row beside each of the others."""
    beside = (
        Row(f"{name}-{side}", f"{title}; beside {text}", "messages/s", beside=side) for side, text in OTHERS.items()
    )
    return Row(name, title, "messages/s", beside=""), *beside


def footprint_rows(stored: int) -> tuple[Row, ...]:
    """Start, memory and disk beside each of the other servers; Kafka has one server for two clients."""
    figures: tuple[tuple[str, str, Unit], ...] = (
        ("start", "start to first acknowledged message", "s"),
        ("memory", "memory of the server, idle", "bytes"),
        ("memory-filled", f"memory of the server with {stored:,} messages of 128 B", "bytes"),
        ("disk", f"disk of {stored:,} messages of 128 B", "bytes"),
    )
    return tuple(
        Row(
            f"{name}-{side}",
            f"{title}; beside {OTHERS[side].partition(',')[0]}",
            unit,
            None,
            True,
            beside=side,
            figure=name,
        )
        for name, title, unit in figures
        for side in OTHERS
        if side != "aiokafka"
    )


# -- sides ---------------------------------------------------------------------------------------------------


class ClientProcess:
    """The client of a side, started when it is first needed."""

    def __init__(self, side: str) -> None:
        self._kind = "penstock" if side == OURS else side
        self._process: _Client | None = None

    @property
    def pid(self) -> int:
        return self._started().pid

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Raises BenchFailed with what went wrong."""
        try:
            answer: dict[str, Any] = self._started().ask(do, **order)
        except PeerError as error:
            self.stop()
            raise BenchFailed(f"the client failed: {str(error).splitlines()[0]}") from error
        return answer

    @contextmanager
    def connected(self, topic: str, **address: object) -> Iterator[None]:
        self.ask("open", topic=topic, **address)
        yield
        self.ask("close")

    def _started(self) -> _Client:
        if self._process is None:
            python = sys.executable if self._kind == "penstock" else str(PEERS / "clients" / "bin" / "python")
            self._process = _Client([python, str(_CLIENT), self._kind])
        return self._process

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()


class _Client(Talker):
    @property
    def pid(self) -> int:
        return self._process.pid


class System:
    """The server of a system, in one of its modes at a time, started when it is first needed."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._server: AnyServer | None = None
        self._mode: Mode = "page-cache"
        self._topics = 0
        self.filled: dict[str, str] = {}
        """Topics with a backlog, by the number of messages."""

    def make(self, mode: Mode) -> AnyServer:
        """A server that was not started."""
        return SERVERS[self._name](self._folder / f"{self._name}-{mode}", mode)

    def server(self, mode: Mode) -> AnyServer:
        if self._server is not None and self._mode != mode:
            self.stop()
        if self._server is None:
            server, self._mode = self.make(mode), mode
            server.make_new()
            server.resume(server.is_listening)
            self._server = server
        return self._server

    def new_name(self) -> str:
        """For a topic or a group."""
        self._topics += 1
        return f"bench-{self._topics}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
            self.filled.clear()


class Side:
    """A client with the server of its system: each method is one round."""

    def __init__(self, client: ClientProcess, system: System) -> None:
        self._client = client
        self._system = system

    def send(self, mode: Mode, body: int, window: int, count: int) -> Run:
        """To a new topic."""
        server, topic = self._system.server(mode), self._system.new_name()
        with self._client.connected(topic, **server.address()):
            return self._timed("send", server, topic=topic, body=body, window=window, count=count)

    def drain(self, count: int, how: str) -> Run:
        """A topic that was filled before, with a new group."""
        system = self._system
        server, group = system.server("page-cache"), system.new_name()
        topic = system.filled.get(str(count))
        if topic is None:
            topic = system.filled[str(count)] = system.new_name()
            with self._client.connected(topic, **server.address()):
                self._client.ask("send", topic=topic, body=128, window=_FILL, count=count)
        with self._client.connected(topic, **server.address()):
            return self._timed("drain", server, topic=topic, group=group, how=how, count=count)

    def _timed(self, do: str, server: AnyServer, **order: Any) -> Run:
        with Stopwatch(self._client.pid, *server.pids) as took:
            done = self._client.ask(do, **order)
        count = int(done["messages"])
        return Run.of(count / done["seconds"], {"messages": count}, took.cpu, count)

    def footprint(self, count: int) -> Run:
        """A new server: until its first answer, a second later, and with some messages; CPU time from its start on."""
        self._system.stop()
        server, order = self._system.make("page-cache"), {"topic": "footprint", "body": 128}
        try:
            server.make_new()
            begin = time.perf_counter()
            server.resume(server.is_listening)
            with self._client.connected("footprint", **server.address()):
                self._client.ask("send", **order, window=1, count=1)
                started = time.perf_counter() - begin
                time.sleep(_SETTLE_S)
                idle = memory_of(server)
                self._client.ask("send", **order, window=_FILL, count=count)
            cpu = cpu_seconds(*server.pids)
            figures = {"start": started, "memory": idle, "memory-filled": memory_of(server)}
            return Run({**figures, "disk": float(server.disk_bytes())}, {"messages": count}, cpu)
        finally:
            server.stop()


def memory_of(server: AnyServer) -> float:
    """Resident memory of a server's processes."""
    return float(sum(resident_bytes(pid) for root in server.pids for pid, _ in process_tree(root)))
