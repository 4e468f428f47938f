"""The suite `broker`: `penstock serve` beside Apache RocketMQ's broker, under the load of one generator.

All of it on loopback, the generator on one core, the broker on all of them. Brokers run for the whole suite. A broker
whose store has grown past a limit is restarted on an empty one, so that the disk that a run needs does not depend on
the number of rounds; it then warms up again. CPU time is that of the broker's process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from bench import PROJECT
from bench.load import PAGE, generate, send_frame
from bench.processes import JAVA_BROKER, BrokerProcess, JavaBroker, PenstockBroker, class_path, resident_bytes
from bench.report import java_versions
from bench.run import JAVA, OURS, SIZE_IDS, SIZE_NAMES, Goal, Row, Run, Stopwatch, Task, cpu_seconds
from bench.store import settings_of
from bench.workspace import GIB, MIB
from penstock.format.index_layout import IndexGeometry

AS_FAST = Goal("ratio at least", 1)
_QUARTER = Goal("ratio at least", 4)
"""Of Java's CPU time a message."""
_RATES = {128: Goal("ratio at least", 2), 1024: Goal("ratio at least", 1.5)}
"""By the size of bodies: sends of which several are in flight, and pulls."""
BODIES = (128, 1024)
WINDOWS = (1, 16, 64)
_BATCH = 32
_WINDOW = 16
_SETTLE_S = 1.0
_PULLED = 32 * 1_300
"""About the size of a page of 32 messages of 1 KB."""


class Sizes(msgspec.Struct, frozen=True):
    """How much is done in a round."""

    run_serially: int
    """Messages with one in flight."""
    many: int
    """Messages in all other rounds; a multiple of 32 pages of 4 queues."""
    passes: int
    """How often the consumer reads all of them."""
    rate: int
    seconds: float
    """Of the latency rows."""
    warm_up: int
    """Messages of each kind before anything counts; none if 0."""
    log_file: int
    store_limit: int
    """Bytes of a store at which it is replaced by an empty one."""

    @property
    def disk_need(self) -> int:
        """Two stores with the round that passes the limit, and the short-lived one of a start."""
        return 2 * (self.store_limit + 2 * self.log_file) + self.log_file + 512 * MIB

    def settings(self) -> dict[str, object]:
        """Settings by RocketMQ's names, for both sides: its defaults except for smaller index files."""
        return settings_of(self.log_file, IndexGeometry(1_000_000, 4_000_000), flushDiskType="ASYNC_FLUSH")


FULL = Sizes(
    run_serially=20_000,
    many=102_400,
    passes=4,
    rate=2_000,
    seconds=10,
    warm_up=204_800,
    log_file=GIB,
    store_limit=3 * GIB,
)
QUICK = Sizes(
    run_serially=200, many=1_280, passes=1, rate=500, seconds=0.4, warm_up=0, log_file=32 * MIB, store_limit=GIB
)


class Served(Protocol):
    """A broker, or a master and its slave that take messages as one."""

    port: int

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose CPU time counts."""

    def start(self) -> float:
        """Starts it on a new store."""

    def disk_bytes(self) -> int:
        """What it takes on disk."""

    def stop(self) -> None:
        """Ends it and removes its store."""


class Warm:
    """A broker of one side for the whole suite, started and warmed up when it is first needed."""

    def __init__(self, broker: Served, sizes: Sizes) -> None:
        self._broker = broker
        self._sizes = sizes
        self._topics = 0
        self._filled: dict[int, str] = {}
        self._is_up = False

    def broker(self) -> Served:
        """The running broker, with room for one more round."""
        if self._is_up and self._broker.disk_bytes() > self._sizes.store_limit:
            self.stop()
        if not self._is_up:
            self._broker.start()
            self._is_up = True
            if self._sizes.warm_up:
                self._warm_up(self._sizes.warm_up)
        return self._broker

    def _warm_up(self, count: int) -> None:
        for do, body, window in (("send", 128, 64), ("send", 1024, 16), ("batch", 128, 16)):
            self._generate(do=do, topic="sends", body=body, count=count, window=window, messages=_BATCH)
        self._generate(do="send", topic="sends", body=128, count=self._sizes.run_serially, window=1)
        self._generate(do="pull", topic=self.filled(1024), count=self._sizes.many, passes=2, window=16)

    def new_topic(self) -> str:
        self._topics += 1
        return f"bench-{self._topics}"

    def filled(self, body: int) -> str:
        """A topic with `many` messages of a size."""
        self.broker()
        if body not in self._filled:
            self._filled[body] = self.new_topic()
            self._generate(do="send", topic=self._filled[body], body=body, count=self._sizes.many, window=64)
        return self._filled[body]

    def ask(self, **job: Any) -> tuple[dict[str, float], float]:
        """The generator does a job with this broker: its answer, and the broker's CPU seconds."""
        with Stopwatch(*self.broker().pids) as took:
            done = self._generate(**job)
        return done, took.cpu

    def _generate(self, **job: Any) -> dict[str, float]:
        return generate(port=self._broker.port, **job)

    def stop(self) -> None:
        self._broker.stop()
        self._is_up = False
        self._filled.clear()


class BrokerSuite:
    """See the module."""

    name = "broker"
    summary = "penstock serve under load: sending, consuming, latency, start and memory."
    sides = ("Penstock", "Java")

    def __init__(self) -> None:
        self._jars: list[Path] = []
        self._ours: Warm | None = None
        self._java: Warm | None = None

    def need(self, quick: bool) -> int:
        return _sizes(quick).disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = _sizes(quick)
        ours = self._ours = Warm(PenstockBroker(folder / "penstock", sizes.settings()), sizes)
        java = self._java = Warm(self._java_broker(folder / "java", sizes), sizes)
        ceilings = [(f"generator-{window}", f"{window} in flight", window, 0) for window in WINDOWS]
        ceilings.append(("generator-pull", "pages of 32", _WINDOW, _PULLED))
        found = [
            Task(
                "generator",
                (Row(name, f"the generator alone, {title}", "messages/s"),),
                {OURS: partial(generator_alone, sizes, window, reply)},
            )
            for name, title, window, reply in ceilings
        ]
        both: dict[str, Warm] = {OURS: ours, JAVA: java}

        def task(group: str, rows: tuple[Row, ...], run: Callable[[Warm], Run]) -> Task:
            return Task(group, rows, {name: partial(run, side) for name, side in both.items()})

        for body in BODIES:
            for window in WINDOWS:
                row = send_row(body, window)
                found.append(
                    task(
                        "send", (row, row.cpu_row(_QUARTER if window > 1 else None)), partial(send, sizes, body, window)
                    )
                )
        title = "send batches of 32, 128 B, 16 in flight"
        row = Row("batch-128b", title, "messages/s", Goal("ratio at least", 1.5), field="publishRate")
        found.append(task("batch", (row,), partial(send_batches, sizes)))
        for body in BODIES:
            title = f"consume, {SIZE_NAMES[body]}, pulls of 32, 16 in flight"
            row = Row(f"consume-{SIZE_IDS[body]}", title, "messages/s", _RATES[body], field="consumeRate")
            found.append(task("consume", (row, row.cpu_row(_QUARTER)), partial(consume, sizes, body)))
        rows = latency_rows("endToEndLatency", "end to end", sizes.rate, goal=AS_FAST)
        rows += latency_rows("publishLatency", "send to answer", sizes.rate)
        found.append(task("latency", rows, partial(latency, sizes)))
        rows = (
            Row("start", "start to first acknowledged message", "s", Goal("at most", 1.5), less_is_better=True),
            Row("idle-memory", "idle memory", "bytes", Goal("at most", 200e6), less_is_better=True, figure="memory"),
        )
        starts = {
            OURS: lambda: start(PenstockBroker(folder / "penstock-start", sizes.settings())),
            JAVA: lambda: start(self._java_broker(folder / "java-start", sizes)),
        }
        return [*found, Task("start", rows, starts)]

    def _java_broker(self, folder: Path, sizes: Sizes) -> JavaBroker:
        return JavaBroker(folder, sizes.settings(), self._jars)

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        self._jars += class_path(JAVA_BROKER)
        assert self._java is not None
        self._java.broker()
        yield java_versions(self._jars)

    def close(self) -> None:
        """Ends the brokers that a row has started."""
        for side in (self._ours, self._java):
            if side is not None:
                side.stop()


def _sizes(quick: bool) -> Sizes:
    return QUICK if quick else FULL


# -- the rows ------------------------------------------------------------------------------------------------


def send_row(body: int, window: int) -> Row:
    name, title = f"send-{SIZE_IDS[body]}-{window}", f"send, {SIZE_NAMES[body]}, {window} in flight"
    return Row(name, title, "messages/s", _RATES[body] if window > 1 else AS_FAST, field="publishRate")


def send(sizes: Sizes, body: int, window: int, side: Warm) -> Run:
    """Single messages on one connection."""
    count = sizes.run_serially if window == 1 else sizes.many
    done, cpu = side.ask(do="send", topic="sends", body=body, count=count, window=window)
    return Run.of(count / done["seconds"], {"messages": int(done["replies"])}, cpu, count)


def send_batches(sizes: Sizes, side: Warm) -> Run:
    """Code 320: 32 messages in one request."""
    done, cpu = side.ask(do="batch", topic="sends", body=128, count=sizes.many, messages=_BATCH, window=_WINDOW)
    return Run.of(sizes.many / done["seconds"], {"batches": int(done["replies"])}, cpu, sizes.many)


def consume(sizes: Sizes, body: int, side: Warm) -> Run:
    """Pulls of 32 from a topic that was filled before, its four queues in turns."""
    count, passes = sizes.many, sizes.passes
    done, cpu = side.ask(do="pull", topic=side.filled(body), count=count, passes=passes, window=_WINDOW)
    work = {"pulls": int(done["replies"]), "body bytes": int(done["body_bytes"])}
    return Run.of(count * passes / done["seconds"], work, cpu, count * passes)


def latency_rows(field: str, title: str, rate: int, *, goal: Goal | None = None) -> tuple[Row, ...]:
    parts = {"50pct": "p50", "99pct": "p99", "999pct": "p99.9"}
    return tuple(
        Row(
            f"{field}{part}",
            f"{title}, 1 KB, {rate:,}/s: {text}",
            "ms",
            goal,
            less_is_better=True,
            field=f"{field}{part}",
            figure=f"{field}{part}",
        )
        for part, text in parts.items()
    )


def latency(sizes: Sizes, side: Warm) -> Run:
    """A producer at a fixed rate, and a consumer that waits."""
    rate, seconds = sizes.rate, sizes.seconds
    done, cpu = side.ask(do="paced", topic=side.new_topic(), body=1024, rate=rate, seconds=seconds)
    return Run(done, {"messages": int(rate * seconds)}, cpu)


def start(broker: BrokerProcess) -> Run:
    """A new process on a new store, up to its first answer; and the memory that it holds a second later."""
    try:
        took = broker.start()
        time.sleep(_SETTLE_S)
        (pid,) = broker.pids
        return Run({"value": took, "memory": float(resident_bytes(pid))}, {"messages": 1}, cpu_seconds(pid))
    finally:
        broker.stop()


def generator_alone(sizes: Sizes, window: int, reply: int) -> Run:
    """The generator with a server that only answers: no broker could be seen to be faster than this."""
    request = len(send_frame("sink", 0, bytes(128), 100_000))
    order = [sys.executable, "-m", "bench.load", json.dumps({"do": "sink", "request": request, "reply": reply})]
    count = sizes.run_serially if window == 1 else sizes.many
    with subprocess.Popen(order, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            port = int(sink.stdout.readline())
            done = generate(do="send", topic="sink", port=port, body=128, count=count, window=window)
            cpu = cpu_seconds(sink.pid)
        finally:
            sink.kill()
    return Run.of(count * (PAGE if reply else 1) / done["seconds"], {"replies": int(done["replies"])}, cpu)
