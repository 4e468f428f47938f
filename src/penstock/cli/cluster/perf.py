"""The group `penstock perf`: measures sends and reads of a running cluster.

The figures are those of one client process in Python on this machine, together with the network and the brokers. A
client in another language, or several processes, can reach more.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import typer

from penstock.cli import exit_codes
from penstock.cli.cluster.produce import PRODUCER_GROUP
from penstock.cli.cluster_connection import Call, check_topic_exists, named, over_network
from penstock.cli.confirmation import Yes, confirm
from penstock.cli.options import Name, VerbGroup, help_if_alone, number
from penstock.cli.output import write, write_json, write_note
from penstock.cli.progress import ProgressLine
from penstock.client.message import Message
from penstock.client.producer import Producer
from penstock.client.pull_consumer import PullConsumer
from penstock.client.pull_requests import PullStatus
from penstock.errors import PenstockError, Refused
from penstock.human_units import format_size
from penstock.protocol.bodies.queues import MessageQueue

app = typer.Typer(cls=VerbGroup, rich_markup_mode=None)
_TOPIC: Final = "penstock-perf"
"""Not RocketMQ's BenchmarkTest, whose 1,024 queues would each get a file."""
_CONSUMER: Final = "TOOLS_CONSUMER"
_STEPS: Final = 20
"""Latency classes for each factor of e: a class is 5 percent wide."""
_PERCENTILES: Final = (50.0, 99.0, 99.9)

PerfTopic: TypeAlias = Annotated[
    str, named("--topic", "-t", metavar="T", meaning=f"The topic; default: {_TOPIC}."), Name("TOPIC")
]


@app.callback(invoke_without_command=True)
def perf(context: typer.Context) -> None:
    """Measure sends and reads of a running cluster.

    Examples:

    \b
      penstock perf produce --count 100000 --size 1024
      penstock perf consume
    """
    help_if_alone(context)


@dataclass
class Latencies:
    """How long requests took, in classes that are 5 percent wide: the memory does not grow with their number."""

    counts: dict[int, int] = field(default_factory=dict)
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        step = int(math.log(max(seconds * 1e6, 1.0)) * _STEPS)
        self.counts[step] = self.counts.get(step, 0) + 1
        self.longest_s = max(self.longest_s, seconds)

    def percentile_ms(self, percent: float) -> float:
        """Returns the upper bound of the class below or in which this share of the requests is; 0 if there are none."""
        wanted = math.ceil(sum(self.counts.values()) * percent / 100)
        for step in sorted(self.counts):
            wanted -= self.counts[step]
            if wanted <= 0:
                return min(math.exp((step + 1) / _STEPS) / 1000, self.longest_s * 1000)
        return 0.0


@dataclass
class _Run:
    """The counts of one measurement, and when it ends."""

    wanted: int
    seconds: float | None
    begin: float = field(default_factory=time.perf_counter)
    started: int = 0
    done: int = 0
    failed: int = 0
    bytes: int = 0

    def goes_on(self) -> bool:
        in_time = self.seconds is None or time.perf_counter() - self.begin < self.seconds
        return in_time and self.started < self.wanted

    def figures(self) -> dict[str, Any]:
        elapsed = max(time.perf_counter() - self.begin, 1e-9)
        return {
            "messages": self.done,
            "failed": self.failed,
            "seconds": round(elapsed, 3),
            "messages_per_second": round(self.done / elapsed, 1),
            "bytes_per_second": round(self.bytes / elapsed, 1),
        }


@over_network
async def produce(
    call: Call,
    topic: PerfTopic = _TOPIC,
    count: Annotated[int, number("--count", "N", "Send N messages.", low=1, default=True)] = 10_000,
    size: Annotated[int, number("--size", "BYTES", "Size of a body.", low=1, default=True)] = 128,
    in_flight: Annotated[int, number("--in-flight", "N", "Sends at a time.", low=1, default=True)] = 64,
    rate: Annotated[float | None, named("--rate", metavar="N", meaning="At most N messages per second.")] = None,
    seconds: Annotated[float | None, named("--seconds", metavar="S", meaning="End after S seconds.")] = None,
    yes: Yes = False,
) -> None:
    """Send test messages, and print rate and latency.

    Asks at a terminal if a consumer group would get the test messages. Exit status: 0 all were sent; 1 some failed; 2
    could not run.

    Examples:

    \b
      penstock perf produce
      penstock perf produce perf-test --count 100000 --size 1024 --in-flight 256 --json
    """
    if rate is not None and not rate > 0:
        raise typer.BadParameter(f"--rate {rate:g}: it must be above 0")
    message = Message(topic, os.urandom(size))
    if topic in await call.admin.topics.names():
        groups = await _groups_of(call, topic)
        if groups:
            await confirm(f"Groups {', '.join(groups)} of topic {topic} would get the test messages. Send them?", yes)
    latencies = Latencies()
    async with Producer(PRODUCER_GROUP, call.config) as producer:
        await producer.send(message)  # finds the route and connects; an error here is not a measurement
        run = _Run(count, seconds)
        with ProgressLine(str) as line:

            async def send_in_turn() -> None:
                while run.goes_on():
                    turn, run.started = run.started, run.started + 1
                    if rate is not None:
                        await asyncio.sleep(run.begin + turn / rate - time.perf_counter())
                    begin = time.perf_counter()
                    try:
                        await producer.send(message)
                    except PenstockError as error:
                        if not run.failed:
                            write_note(f"a send failed: {error}.")
                        run.failed += 1
                        continue
                    latencies.add(time.perf_counter() - begin)
                    run.done += 1
                    run.bytes += size
                    line("sending", run.done, count)

            await _together(send_in_turn() for _ in range(min(in_flight, count)))
        figures = run.figures()
    shown = {f"p{percent:g}": round(latencies.percentile_ms(percent), 3) for percent in _PERCENTILES}
    shown["max"] = round(latencies.longest_s * 1000, 3)
    if call.as_json:
        write_json({"topic": topic, "size": size, "in_flight": in_flight, **figures, "latency_ms": shown})
    else:
        _write_figures("sent", figures)
        write("latency " + ", ".join(f"{name} {value:.2f} ms" for name, value in shown.items()) + "\n")
    if run.failed:
        raise typer.Exit(exit_codes.PROBLEM)


async def _groups_of(call: Call, topic: str) -> list[str]:
    """Returns the groups that consume a topic; none if the account may not ask, because it may send all the same."""
    try:
        return await call.admin.topics.groups(topic)
    except Refused:
        return []


@over_network
async def consume(
    call: Call,
    topic: PerfTopic = _TOPIC,
    count: Annotated[int | None, number("--count", "N", "End after about N messages; default: all.", low=1)] = None,
    batch: Annotated[int, number("--batch", "N", "Messages per request.", low=1, default=True)] = 32,
    in_flight: Annotated[int, number("--in-flight", "N", "Queues read at a time.", low=1, default=True)] = 16,
    seconds: Annotated[float | None, named("--seconds", metavar="S", meaning="End after S seconds.")] = None,
) -> None:
    """Read the stored messages of a topic, several queues at a time, and print the rate.

    No group's offsets change.

    Examples:

    \b
      penstock perf consume
      penstock perf consume orders --count 100000 --json
    """
    await check_topic_exists(call, topic)
    async with PullConsumer(_CONSUMER, call.config) as consumer:
        await consumer.queues(topic)  # so that the consumer knows the brokers
        stats = await call.admin.topics.stats(topic)
        stored = sum(at.max_offset - at.min_offset for at in stats.values())
        waiting = iter(stats.items())
        run = _Run(min(stored, count or stored), seconds)
        with ProgressLine(str) as line:

            async def read(queue: MessageQueue, at: int, end: int) -> None:
                while at < end and run.goes_on():
                    page = await consumer.pull(queue, at, max_messages=batch)
                    if page.status is PullStatus.NO_NEW_MSG or page.next_offset <= at:
                        return
                    run.started += len(page.messages)
                    run.done += len(page.messages)
                    run.bytes += sum(each.size for each in page.messages)
                    at = page.next_offset
                    line("reading", run.done, run.wanted)

            async def read_in_turn() -> None:
                for queue, at in waiting:
                    await read(queue, at.min_offset, at.max_offset)

            await _together(read_in_turn() for _ in range(in_flight))
        figures = run.figures()
    if call.as_json:
        write_json({"topic": topic, "queues": len(stats), **figures})
    else:
        _write_figures("read", figures)


async def _together(jobs: Any) -> None:
    """Runs all jobs. Raises the error of the first that fails."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for job in jobs:
                tasks.create_task(job)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _write_figures(verb: str, figures: dict[str, Any]) -> None:
    write(
        f"{verb} {figures['messages']} messages in {figures['seconds']:.2f} s: "
        f"{figures['messages_per_second']:.0f} messages/s, {format_size(figures['bytes_per_second'])}/s, "
        f"{figures['failed']} failed\n"
    )


for verb in (produce, consume):
    app.command()(verb)
