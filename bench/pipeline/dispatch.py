"""The suite `external-dispatch`: how long a message takes to a waiting consumer, with inline and external dispatch.

One broker, one producer that sends a message now and then, one consumer whose long poll waits for it, all in this
process over loopback; with external dispatch also `penstock pipeline dispatch`, as an application of its own, which is
started for each round. A message carries when it was sent; the consumer notes when it came. One row is the first
message, sent as the application starts. The application builds by itself until Spark's first batch arrives; only what
comes after that counts for the other rows. CPU time is that of all of it, the start of the application included.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from bench.run import OURS, Row, Run, Stopwatch, Task, no_peer
from bench.spark import lacking
from bench.workspace import GIB, BenchFailed
from penstock.client.message import Message
from penstock.client.sync import Producer, PullConsumer
from penstock.testing import broker

INLINE = "inline"
PERCENTILES = (50, 90, 99)
_START_S = 300.0
_DOWN_S = 60.0
_FIRST = 20


class Sizes(msgspec.Struct, frozen=True):
    """How many messages a round sends, and the seconds between two of them."""

    messages: int
    every_s: float


FULL = Sizes(messages=200, every_s=0.05)
QUICK = Sizes(messages=5, every_s=0.01)


class DispatchSuite:
    """See the module. `master`: Spark's."""

    name = "external-dispatch"
    summary = "From a producer to a waiting consumer, with external and inline dispatch."
    sides = ("External", "Inline")

    def __init__(self, master: str = "local[2]") -> None:
        self._master = master

    def need(self, quick: bool) -> int:
        return 4 * GIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = QUICK if quick else FULL
        percentiles = tuple(
            Row(
                f"external-p{percent}",
                f"to a waiting consumer: p{percent}",
                "ms",
                None,
                True,
                beside=INLINE,
                figure=f"p{percent}",
            )
            for percent in PERCENTILES
        )
        first = Row("external-first", "first message after the start", "ms", None, True, beside=INLINE, figure="first")
        rows = (*percentiles, first)
        sides = {
            OURS: partial(self._round, "external", folder, sizes),
            INLINE: partial(self._round, INLINE, folder, sizes),
        }
        return [Task("external", rows, sides, lacking())]

    def _round(self, kind: str, folder: Path, sizes: Sizes) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder) as fresh,  # the consumer must meet no messages of other rounds
            broker({"T": 1}, store_path=Path(fresh) / "store", settings={"dispatch": kind}) as served,
            Stopwatch(os.getpid()) as took,
        ):
            job = Job(served.store_path, self._master) if kind == "external" else None
            try:
                first, waited = latencies(served.namesrv, sizes, job)
            finally:
                if job is not None:
                    job.stop()
        figures = {f"p{percent}": percentile(waited, percent) for percent in PERCENTILES}
        figures["first"] = first
        return Run(figures, {"messages": len(waited)}, took.cpu)

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Every round ends what it has started."""


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


class Waiting:
    """A consumer in a thread: how many milliseconds each message took."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._stop = threading.Event()
        self.took: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with PullConsumer("bench", self._namesrv) as consumer:
            consumer.assign(consumer.queues("T"))
            while not self._stop.is_set():
                for message in consumer.poll(1.0):
                    self.took.append((time.monotonic_ns() - int(message.body)) / 1e6)

    def wait_for(self, count: int) -> None:
        """Raises BenchFailed if so many messages do not come."""
        deadline = time.monotonic() + _START_S
        while len(self.took) < count:
            if time.monotonic() > deadline:
                raise BenchFailed(f"only {len(self.took)} of {count} messages came")
            time.sleep(0.005)


class Job:
    """`penstock pipeline dispatch` as an application of its own."""

    def __init__(self, store: Path, master: str) -> None:
        command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "dispatch", "--store", str(store)]
        self._process = subprocess.Popen(
            [*command, "--master", master], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        self.is_on_spark = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        from penstock.pipeline.jobs.dispatch import SPARK_BUILDS

        assert self._process.stderr is not None
        for line in self._process.stderr:
            if SPARK_BUILDS.encode() in line:
                self.is_on_spark.set()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_DOWN_S)
        self._thread.join()


def latencies(namesrv: str, sizes: Sizes, job: Job | None) -> tuple[float, list[float]]:
    """That of the first message, and those of the others, sorted; in milliseconds."""
    with Waiting(namesrv) as waiting, Producer("bench", namesrv) as producer:
        deadline, number = time.monotonic() + _START_S, 0
        while number < _FIRST or (job is not None and not job.is_on_spark.is_set()):  # each waits for the one before
            if time.monotonic() > deadline:
                raise BenchFailed("Spark built nothing")
            producer.send(Message("T", b"%d" % time.monotonic_ns()))
            number += 1
            waiting.wait_for(number)
        first = waiting.took[0]
        waiting.took.clear()
        for _ in range(sizes.messages):
            producer.send(Message("T", b"%d" % time.monotonic_ns()))
            time.sleep(sizes.every_s)
        waiting.wait_for(sizes.messages)
        return first, sorted(waiting.took)
