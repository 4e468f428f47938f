"""The soak: a broker under steady load for an hour, killed every minute, while retention deletes and Spark reads.

    python -m bench soak --minutes 60

Producers number their messages and note which were acknowledged. Two consumers of one group, and a streaming query of
Spark on the broker's files, note what they get. The broker dies by SIGKILL again and again, and starts on the store
that it left. The log has small files, of which only the newest stay: older ones, once everything in them is consumed
and read by Spark, are given an old date, and the broker is asked to delete what is old. (Retention does not wait for
readers; without that, a consumer that is late would look like a loss.)

At the end every acknowledged message must have been consumed, and read by Spark; what came twice is counted. The
broker's own memory (RssAnon: without mapped files) and its descriptors must not grow, neither from start to start nor
within a life; `LIMITS` are the figures. The result is a JSON file and a chart. This runs on one machine, over loopback:
it shows what stays and what grows, not how fast anything is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
from support.loopback import free_port, free_port_pair

from bench import PROJECT
from bench.processes import PenstockBroker
from bench.report import Machine, look_at, versions
from bench.workspace import GIB, MIB, BenchFailed, ended_politely, workspace
from penstock.client import Message, Producer, ProducerOptions, PushConsumer, PushOptions, ReceivedMessage
from penstock.errors import PenstockError
from penstock.protocol import Command, RequestCode, encode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON_FILE = PROJECT / "bench" / "results" / "soak.json"
CHART_FILE = PROJECT / "docs" / "explanation" / "soak.svg"
NEED = 1 * GIB
"""Disk: the log files that stay, queues, index, and Spark's checkpoints."""
TOPIC, GROUP = "soak", "soak-consumers"
PRODUCERS, CONSUMERS = 8, 2
_DRAIN_S = 180.0
_OLD_S = 4 * 3600
_MOST_FILES = 120
_TIMEOUT_S = 2.0
_EVERY = 100


class SoakPlan(msgspec.Struct, frozen=True):
    """How long, how much, and how often the broker dies."""

    minutes: float = 60.0
    rate: int = 800
    """Messages a second."""
    body: int = 1000
    kill_every_s: float = 60.0
    log_file: int = 4 * MIB
    keep_files: int = 24
    """Log files that stay; more than a minute and a half of messages."""
    spark: bool = True

    def settings(self) -> dict[str, object]:
        return {
            "mapedFileSizeCommitLog": self.log_file,
            "mapedFileSizeConsumeQueue": 20 * 20_000,
            "maxHashSlotNum": 50_000,
            "maxIndexNum": 200_000,
            "fileReservedTime": 2,
            "diskEnoughFreeBytes": GIB // 4,
        }


class SoakLimits(msgspec.Struct, frozen=True):
    """What may grow, and by how much."""

    own_memory: int = 160 * MIB
    """The broker's own memory at any time."""
    growth_between_lives: int = 16 * MIB
    """Own memory after a start: the last third of the lives against the first, by medians."""
    growth_in_a_life: int = 12 * MIB
    """Own memory from a third of a life to its end, median of all lives."""
    more_descriptors: int = 16
    """Descriptors besides those of the store's files: the last third of the samples against the first, by maxima."""
    store_descriptors: int = 128
    """Descriptors of the store's files at any time."""


LIMITS = SoakLimits()


class Sample(msgspec.Struct, frozen=True):
    """The broker's process at one moment."""

    second: float
    life: int
    own_memory: int
    """RssAnon."""
    resident: int
    """VmRSS: with the mapped files."""
    descriptors: int
    """Besides those of the store's files."""
    store_descriptors: int
    log_files: int


class SoakResult(msgspec.Struct, kw_only=True):
    """What a soak leaves."""

    date: str
    command: str
    plan: SoakPlan
    limits: SoakLimits
    machine: Machine
    versions: dict[str, str]
    seconds: float = 0.0
    kills: int = 0
    sent: int = 0
    acknowledged: int = 0
    consumed: int = 0
    lost: int = 0
    """Acknowledged, and not consumed."""
    consumed_again: int = 0
    """Consumed more often than once, each counted once."""
    streamed: int = 0
    lost_in_spark: int = 0
    streamed_again: int = 0
    """In more than one row of Spark, each counted once: a producer that got no ack sends again."""
    spark_batches: int = 0
    spark_restarts: int = 0
    files_deleted: int = 0
    outages: list[tuple[float, float]] = []
    """From a kill until the broker listens again, in seconds since the begin."""
    samples: list[Sample] = []
    findings: list[str] = []


# -- judging -------------------------------------------------------------------------------------------------------


def findings(result: SoakResult) -> list[str]:
    """What is wrong, in sentences; empty if nothing is."""
    plan, limits, found = result.plan, result.limits, []
    if result.lost:
        found.append(f"{result.lost} acknowledged messages were not consumed")
    if plan.spark and result.lost_in_spark:
        found.append(f"{result.lost_in_spark} acknowledged messages were not read by Spark")
    if not result.acknowledged:
        found.append("no message was acknowledged")
    if not result.files_deleted:
        found.append("retention deleted no file; run it for longer")
    samples = result.samples
    if not samples:
        return [*found, "the broker's process was never looked at"]
    peak = max(sample.own_memory for sample in samples)
    if peak > limits.own_memory:
        found.append(f"the broker's own memory reached {_mib(peak)}; the limit is {_mib(limits.own_memory)}")
    lives = [list(life) for _, life in itertools.groupby(samples, key=lambda sample: sample.life)]
    begins = [life[0].own_memory for life in lives]
    if (grown := _growth(begins, median)) > limits.growth_between_lives:
        found.append(f"after a start the broker's own memory grew by {_mib(grown)} over the run")
    within = [life[-1].own_memory - life[len(life) // 3].own_memory for life in lives if len(life) >= 6]
    if within and (grown := median(within)) > limits.growth_in_a_life:
        found.append(f"within a life the broker's own memory grew by {_mib(grown)}")
    if (more := _growth([sample.descriptors for sample in samples], max)) > limits.more_descriptors:
        found.append(f"the broker's descriptors grew by {more:.0f} over the run")
    if (most := max(sample.store_descriptors for sample in samples)) > limits.store_descriptors:
        found.append(f"the broker had {most} descriptors of the store's files; the limit is {limits.store_descriptors}")
    return found


def _growth(values: Sequence[int], of: Callable[[Sequence[int]], float]) -> float:
    """How much the last third lies above the first; 0 with fewer than three values."""
    third = len(values) // 3
    return of(values[-third:]) - of(values[:third]) if third else 0.0


def _mib(size: float) -> str:
    return f"{size / MIB:.1f} MiB"


# -- the broker ----------------------------------------------------------------------------------------------------


class SoakBroker(PenstockBroker):
    """`penstock serve` at ports that stay the same over its lives."""

    def __init__(self, folder: Path, plan: SoakPlan) -> None:
        super().__init__(folder, plan.settings())
        self.store.mkdir(parents=True)
        self.port = free_port_pair()
        self.names = f"127.0.0.1:{free_port()}"
        self._seen: dict[str, float] = {}
        """By name of a log file, when it was first there."""

    def command(self) -> Sequence[str]:
        return [*(self.names if part == "127.0.0.1:0" else part for part in super().command())]

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def log_files(self) -> list[Path]:
        """Oldest first."""
        with contextlib.suppress(FileNotFoundError):
            return sorted((self.store / "commitlog").iterdir())
        return []

    def sample(self, second: float, life: int) -> Sample | None:
        """Its process now; None if it is dead."""
        process = Path(f"/proc/{self.pids[0]}")
        try:
            status = (process / "status").read_text(encoding="utf-8")
            kib = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.endswith(" kB")}
            targets = [path.readlink() for path in (process / "fd").iterdir()]
            inside = sum(target.is_relative_to(self.store) for target in targets)
            own, resident = kib["RssAnon"] << 10, kib["VmRSS"] << 10
        except (OSError, KeyError):
            return None
        return Sample(second, life, own, resident, len(targets) - inside, inside, len(self.log_files()))

    def delete_old_files(self, keep: int, done_before: float) -> None:
        """Dates log files as old, and asks the broker to delete what is old.

        The newest `keep` stay, and so does what may hold a message that was sent after the time `done_before`.
        """
        files = self.log_files()
        if len(files) > _MOST_FILES:
            raise BenchFailed(f"there are {len(files)} log files: consumers or Spark are too slow for this rate")
        for path in files:
            self._seen.setdefault(path.name, time.monotonic())
        # A file is made while the one before it is written, so a file is full once the second after it is there.
        full = [path for path, later in zip(files, files[2:], strict=False) if self._seen[later.name] < done_before]
        going = full[: max(len(files) - keep, 0)]
        old = time.time() - _OLD_S
        for path in going:
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (old, old))
        if going:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as connection:
                connection.sendall(encode(Command(RequestCode.DELETE_EXPIRED_COMMITLOG)))
                connection.recv(4096)


# -- messages ------------------------------------------------------------------------------------------------------


class Counts:
    """How often each number was met; up to 255 times."""

    def __init__(self) -> None:
        self._of = bytearray(1 << 20)

    def add(self, number: int) -> None:
        if number >= len(self._of):
            self._of.extend(bytes(max(len(self._of), number + 1 - len(self._of))))
        self._of[number] = min(self._of[number] + 1, 255)

    def total(self) -> int:
        """Numbers that were met."""
        return len(self._of) - self._of.count(0)

    def again(self) -> int:
        """Numbers that were met more than once."""
        return self.total() - self._of.count(1)

    def missing(self, wanted: Counts) -> int:
        """How many numbers `wanted` has met and this has not."""
        return len(self._missing(wanted))

    def first_missing(self, wanted: Counts) -> int | None:
        """The lowest of them."""
        found = self._missing(wanted)
        return int(found[0]) if len(found) else None

    def _missing(self, wanted: Counts) -> npt.NDArray[np.int64]:
        mine, theirs = (np.frombuffer(bytes(counts._of), np.uint8) > 0 for counts in (self, wanted))
        theirs[: len(mine)] &= ~mine[: len(theirs)]
        return np.flatnonzero(theirs)


class Traffic:
    """Producers and consumers on an event loop in a thread of its own, until `end`."""

    def __init__(self, namesrv: str, plan: SoakPlan) -> None:
        self._namesrv = namesrv
        self._plan = plan
        self._numbers = itertools.count()
        self._ending = threading.Event()
        self._all_sent = threading.Event()
        self._ended = threading.Event()
        self._sent_at: list[float] = []
        """When each `_EVERY`-th message was sent."""
        self.sent = 0
        self.acknowledged, self.consumed = Counts(), Counts()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="soak-traffic")
        self._thread.start()

    def stop_sending(self) -> None:
        """Returns once the last message is acknowledged, or is not."""
        self._ending.set()
        self._all_sent.wait(_DRAIN_S)

    def end(self) -> None:
        self._ending.set()
        self._ended.set()
        self._thread.join()

    def done_before(self, *readers: Counts) -> float:
        """The time before which every message was sent that all of `readers` have got."""
        late = [number for each in readers if (number := each.first_missing(self.acknowledged)) is not None]
        at = self._sent_at[min(late) // _EVERY] if late else time.monotonic()
        return at - 2 * _TIMEOUT_S  # one that is in flight is not acknowledged yet

    def _run(self) -> None:
        try:
            asyncio.run(self._traffic())
        except BaseException as error:
            self.failure = error

    async def _traffic(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            options = PushOptions(consume_from="first")
            for _ in range(CONSUMERS):
                consumer = PushConsumer(
                    GROUP, self._consume, self._namesrv, subscriptions={TOPIC: "*"}, options=options
                )
                await stack.enter_async_context(consumer)
            producer = Producer("soak-producers", self._namesrv, options=ProducerOptions(timeout_s=_TIMEOUT_S))
            await stack.enter_async_context(producer)
            await asyncio.gather(*(self._produce(producer) for _ in range(PRODUCERS)))
            self._all_sent.set()
            while not self._ended.is_set():
                await asyncio.sleep(0.1)

    async def _produce(self, producer: Producer) -> None:
        pause = PRODUCERS / self._plan.rate
        due = time.monotonic()
        while not self._ending.is_set():
            number = next(self._numbers)
            self.sent += 1
            if number % _EVERY == 0:
                self._sent_at.append(time.monotonic())
            body = number.to_bytes(8, "big").ljust(self._plan.body, b".")
            try:
                await producer.send(Message(TOPIC, body, keys=f"k{number}"))
            except PenstockError:
                await asyncio.sleep(0.1)  # not acknowledged, so nothing is promised
            else:
                self.acknowledged.add(number)
            due = max(due + pause, time.monotonic() - 1.0)
            await asyncio.sleep(max(due - time.monotonic(), 0))

    async def _consume(self, message: ReceivedMessage) -> None:
        self.consumed.add(int.from_bytes(message.body[:8], "big"))


class SparkReader:
    """A streaming query on the broker's files in micro-batches; a query that fails is started again."""

    def __init__(self, store: Path, folder: Path) -> None:
        from penstock.pipeline.session import start_session

        places = {"spark.local.dir": folder / "local", "spark.sql.warehouse.dir": folder / "warehouse"}
        conf = {
            "spark.driver.memory": "700m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            **{name: str(place) for name, place in places.items()},
        }
        self._spark: SparkSession = start_session("penstock soak", "local[1]", conf)
        self._store = store
        self._checkpoint = folder / "checkpoint"
        self.streamed = Counts()
        self.batches = self.restarts = 0
        self._query: Any = None

    def keep_running(self) -> None:
        """Starts the query, again if it has ended."""
        if self._query is not None and self._query.isActive:
            return
        self.restarts += self._query is not None
        stream = self._spark.readStream.format("rocketmq").options(
            subscribe=TOPIC,
            startingOffsets="earliest",
            columns="queue_id,queue_offset,body",
            maxOffsetsPerTrigger=20_000,
        )
        writer = stream.load(str(self._store)).writeStream.option("checkpointLocation", str(self._checkpoint))
        self._query = writer.trigger(processingTime="5 seconds").foreachBatch(self._take).start()

    def _take(self, frame: DataFrame, number: int) -> None:
        for body in frame.selectExpr("substring(body, 1, 8) AS head").toArrow().column(0).to_pylist():
            self.streamed.add(int.from_bytes(body, "big"))
        self.batches += 1

    def stop(self) -> None:
        if self._query is not None and self._query.isActive:
            self._query.stop()
        self._spark.stop()


# -- the run -------------------------------------------------------------------------------------------------------


class Soak:
    """One run in `folder`."""

    def __init__(self, folder: Path, plan: SoakPlan, result: SoakResult, tell: Callable[[str], object]) -> None:
        self._plan = plan
        self._result = result
        self._tell = tell
        self._broker = SoakBroker(folder / "broker", plan)
        self._folder = folder
        self._life = 0
        self._begun = time.monotonic()

    def run(self) -> None:
        """Runs to the end and fills the result, except its findings. Raises BenchFailed."""
        plan, result = self._plan, self._result
        with contextlib.ExitStack() as stack:
            stack.callback(self._broker.end)
            self._broker.resume(self._broker.takes_messages)
            traffic = Traffic(self._broker.names, plan)
            stack.callback(traffic.end)
            spark = None
            if plan.spark:
                self._wait_for_files()
                spark = SparkReader(self._broker.store, self._folder / "spark")
                stack.callback(spark.stop)
            self._begun = time.monotonic()
            self._live(traffic, spark)
            traffic.stop_sending()
            self._drain(traffic, spark)
            result.seconds = round(self._now(), 1)
            result.sent, result.acknowledged = traffic.sent, traffic.acknowledged.total()
            result.consumed, result.consumed_again = traffic.consumed.total(), traffic.consumed.again()
            result.lost = traffic.consumed.missing(traffic.acknowledged)
            if spark is not None:
                result.streamed, result.streamed_again = spark.streamed.total(), spark.streamed.again()
                result.lost_in_spark = spark.streamed.missing(traffic.acknowledged)
                result.spark_batches, result.spark_restarts = spark.batches, spark.restarts
            first = self._broker.log_files()[:1]
            result.files_deleted = sum(int(path.name) // plan.log_file for path in first)

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _wait_for_files(self) -> None:
        """Spark reads a store that has a queue of its topic."""
        deadline = time.monotonic() + 60
        while not (self._broker.store / "consumequeue" / TOPIC).is_dir():
            if time.monotonic() > deadline:
                raise BenchFailed("no message arrived in the first minute")
            time.sleep(0.1)

    def _live(self, traffic: Traffic, spark: SparkReader | None) -> None:
        end, next_kill = self._plan.minutes * 60, self._plan.kill_every_s
        every = 5.0 if self._plan.minutes > 10 else 1.0
        while True:
            time.sleep(every - self._now() % every)
            if self._now() >= end:
                return
            if traffic.failure is not None:
                raise BenchFailed(f"the clients ended: {traffic.failure!r}")
            self._look(traffic, spark)
            if self._now() >= next_kill and end - self._now() > 5:
                self._kill()
                next_kill += self._plan.kill_every_s
                self._tell(self._progress(traffic, spark))

    def _readers(self, traffic: Traffic, spark: SparkReader | None) -> list[Counts]:
        return [traffic.consumed] if spark is None else [traffic.consumed, spark.streamed]

    def _look(self, traffic: Traffic, spark: SparkReader | None) -> None:
        sample = self._broker.sample(round(self._now(), 1), self._life)
        if sample is None:
            raise BenchFailed("the broker ended by itself; its output is above")
        self._result.samples.append(sample)
        done_before = traffic.done_before(*self._readers(traffic, spark))
        self._broker.delete_old_files(self._plan.keep_files, done_before)
        if spark is not None:
            spark.keep_running()

    def _kill(self) -> None:
        begun = self._now()
        self._broker.kill()
        self._broker.resume(self._broker.is_listening)
        self._life += 1
        self._result.kills += 1
        self._result.outages.append((round(begun, 1), round(self._now(), 1)))

    def _progress(self, traffic: Traffic, spark: SparkReader | None) -> str:
        sample = self._result.samples[-1]
        streamed = "" if spark is None else f", {spark.streamed.total():,} read by Spark"
        return (
            f"{self._now() / 60:.1f} of {self._plan.minutes:g} minutes, {self._result.kills} kills, "
            f"{traffic.acknowledged.total():,} acknowledged, {traffic.consumed.total():,} consumed{streamed}, "
            f"own memory {_mib(sample.own_memory)}, {sample.log_files} log files"
        )

    def _drain(self, traffic: Traffic, spark: SparkReader | None) -> None:
        """Waits until consumers and Spark have everything, or the time is over."""
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            self._look(traffic, spark)
            if not any(each.missing(traffic.acknowledged) for each in self._readers(traffic, spark)):
                return
            time.sleep(1)


def soak(plan: SoakPlan, parent: Path | None, command: str, tell: Callable[[str], object]) -> SoakResult:
    """Runs the soak in a temporary folder below `parent`. Raises BenchFailed if it cannot run to its end."""
    with ended_politely(), workspace(parent, NEED) as folder:
        result = SoakResult(
            date=datetime.now().isoformat(timespec="seconds"),
            command=command,
            plan=plan,
            limits=LIMITS,
            machine=look_at(folder),
            versions=versions(),
        )
        logging.getLogger("penstock.client").setLevel(logging.ERROR)  # that the broker is dead is expected
        Soak(folder, plan, result, tell).run()
    result.findings = findings(result)
    return result


def save(result: SoakResult, json: Path, chart: Path) -> None:
    """Writes the result, and its chart."""
    for path, text in ((json, msgspec.json.format(msgspec.json.encode(result)).decode()), (chart, draw(result))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip() + "\n", encoding="utf-8")


def summary(result: SoakResult) -> Iterator[str]:
    """The result in sentences."""
    own = [sample.own_memory for sample in result.samples] or [0]
    yield (
        f"{result.seconds / 60:.1f} minutes, {result.kills} kills: {result.acknowledged:,} messages acknowledged, "
        f"{result.lost:,} of them not consumed; {result.consumed_again:,} consumed again"
    )
    if result.plan.spark:
        yield (
            f"Spark: {result.streamed:,} messages in {result.spark_batches:,} micro-batches, {result.lost_in_spark:,} "
            f"acknowledged ones missing, {result.streamed_again:,} more than once, {result.spark_restarts} restarts"
        )
    yield f"{result.files_deleted:,} log files deleted; own memory {_mib(min(own))} to {_mib(max(own))}"
    yield from result.findings


# -- the chart -----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 300, 60, 40
_OWN, _FILES, _INK = "#2f7ea6", "#c4662a", "#7b8794"


def draw(result: SoakResult) -> str:
    """An SVG: the broker's own memory over time, one line for each life, and the store's log files; kills are ticks."""
    samples = result.samples or [Sample(0.0, 0, 0, 0, 0, 0, 0)]
    last = max(sample.second for sample in samples) or 1.0
    most = max(*(sample.own_memory for sample in samples), 1) * 1.15
    files = max(*(sample.log_files for sample in samples), 1) * 2.0
    across, down = (_WIDTH - _LEFT - 40) / last, _HEIGHT - _TOP - 40

    def path(points: list[tuple[float, float]]) -> str:
        return " ".join(f"{_LEFT + second * across:.1f},{_TOP + down * (1 - share):.1f}" for second, share in points)

    marks = []
    for begin, _ in result.outages:
        at = f"{_LEFT + begin * across:.1f}"
        marks.append(f"<line x1='{at}' x2='{at}' y1='{_TOP}' y2='{_TOP + down}' stroke='#7b8794' opacity='.3'/>")
    for _, life in itertools.groupby(samples, key=lambda sample: sample.life):
        points = [(sample.second, sample.own_memory / most) for sample in life]
        marks.append(f"<polyline points='{path(points)}' fill='none' stroke='{_OWN}' stroke-width='1.5'/>")
    points = [(sample.second, sample.log_files / files) for sample in samples]
    marks.append(f"<polyline points='{path(points)}' fill='none' stroke='{_FILES}' stroke-width='1' opacity='.7'/>")
    bottom, peak = _TOP + down, max(sample.log_files for sample in samples)
    texts = [
        (_LEFT, 16, "start", _OWN, "the broker's own memory; grey lines: SIGKILL"),
        (_LEFT + 330, 16, "start", _FILES, f"log files, at most {peak}"),
        *((_LEFT - 6, bottom - down * at + 4, "end", _INK, f"{most * at / MIB:.0f} MiB") for at in (0.0, 0.5, 1.0)),
        (_WIDTH - 40, bottom + 18, "end", _INK, f"{last / 60:.1f} minutes"),
        (_LEFT, _HEIGHT - 4, "start", _INK, next(summary(result))),
    ]
    marks += [
        f"<text x='{x}' y='{y:.0f}' text-anchor='{anchor}' fill='{fill}'>{escape(text)}</text>"
        for x, y, anchor, fill, text in texts
    ]
    style = "<style>text { font: 12px system-ui, sans-serif }</style>"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' role='img' viewBox='0 0 {_WIDTH} {_HEIGHT}'>"
    return "\n".join([head, style, *marks, "</svg>"])
