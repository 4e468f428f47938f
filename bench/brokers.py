"""The suite `brokers`: `penstock serve --brokers 2` beside one broker, under the load of two generators.

The load is the same on both sides: two generators, each on a core of its own if there are two, with a connection and a
topic of its own. One broker serves both; of two brokers each serves one, as clients that spread over queues would have
it. A figure is what both generators did, by the clock of the slower one. CPU time is that of all broker processes, with
the process that started them. Generators and brokers share the machine: a second broker can only help where a core is
free, so on two cores the CPU time for each message is the figure to read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.load import Answer, generate
from bench.processes import PenstockBroker
from bench.run import OURS, Row, Run, Stopwatch, Task, no_peer
from bench.store import settings_of
from bench.workspace import GIB, MIB
from penstock.cli.brokers.names_and_ports import STRIDE
from penstock.format.index_layout import IndexGeometry

ONE = "one"
BODY = 1024
WINDOW = 64
_GENERATORS = 2


class Sizes(msgspec.Struct, frozen=True):
    """How much each generator does in a round."""

    sent: int
    """Messages; a multiple of a page of each queue, and at least 64 pages."""
    passes: int
    """How often a generator reads all of its messages."""
    log_file: int


FULL = Sizes(sent=51_200, passes=4, log_file=256 * MIB)
QUICK = Sizes(sent=2_048, passes=1, log_file=32 * MIB)


class ServedBrokers(PenstockBroker):
    """`penstock serve --brokers`: all brokers as one."""

    def __init__(self, folder: Path, settings: dict[str, object], count: int) -> None:
        super().__init__(folder, settings)
        self._count = count
        self._is_up = False
        self.filled = False
        """Whether the generators' topics have messages."""

    def command(self) -> Sequence[str]:
        return [*super().command(), "--brokers", str(self._count)]

    @property
    def ports(self) -> list[int]:
        return [self.port + STRIDE * number for number in range(self._count)]

    @property
    def pids(self) -> tuple[int, ...]:
        own = super().pids
        below = [Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split() for pid in own]
        return (*own, *(int(pid) for pids in below for pid in pids))

    def takes_messages(self) -> bool:
        for port in self.ports[1:]:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
            except OSError:
                return False
        return super().takes_messages()

    def up(self) -> ServedBrokers:
        """Starts them if they do not run yet."""
        if not self._is_up:
            self.start()
            self._is_up = True
        return self

    def load(self, **job: Any) -> list[Answer]:
        """What the generators did at the same time, each with a broker and a topic of its own as far as there are."""
        ports = self.ports
        cores = sorted(os.sched_getaffinity(0))

        def work(number: int) -> Answer:
            os.sched_setaffinity(0, {cores[-1 - number % len(cores)]})  # of this thread, and of what it starts
            return generate(port=ports[number % len(ports)], topic=f"bench-{number}", window=WINDOW, **job)

        with ThreadPoolExecutor(_GENERATORS) as threads:
            return list(threads.map(work, range(_GENERATORS)))


class BrokersSuite:
    """See the module."""

    name = "brokers"
    summary = "penstock serve --brokers 2 beside one broker: sending and consuming."
    sides = ("Two brokers", "One broker")

    def __init__(self) -> None:
        self._sides: dict[str, ServedBrokers] = {}

    def need(self, quick: bool) -> int:
        return 2 * GIB if quick else 8 * GIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = QUICK if quick else FULL
        settings = settings_of(sizes.log_file, IndexGeometry(1_000_000, 4_000_000), flushDiskType="ASYNC_FLUSH")
        for name, count in ((OURS, 2), (ONE, 1)):
            self._sides[name] = ServedBrokers(folder / name, settings, count)
        return [
            Task(
                group,
                (Row(f"{group}-1k", title, "messages/s", beside=ONE),),
                {name: partial(run, sizes, side) for name, side in self._sides.items()},
            )
            for group, title, run in (
                ("send", "send, 1 KB, 2 connections, 64 in flight each", send),
                ("consume", "consume, 1 KB, 2 connections, pulls of 32, 64 in flight each", consume),
            )
        ]

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Ends the brokers that a row has started."""
        for side in self._sides.values():
            side.stop()


def send(sizes: Sizes, side: ServedBrokers) -> Run:
    return _run(side, sizes.sent, do="send", body=BODY, count=sizes.sent)


def consume(sizes: Sizes, side: ServedBrokers) -> Run:
    """Reads the first messages of the topics; the first round sends them if the rows before did not."""
    if not side.up().filled:
        side.load(do="send", body=BODY, count=sizes.sent)
        side.filled = True
    return _run(side, sizes.sent * sizes.passes, do="pull", count=sizes.sent, passes=sizes.passes)


def _run(side: ServedBrokers, messages: int, **job: Any) -> Run:
    with Stopwatch(*side.up().pids) as took:
        done = side.load(**job)
    seconds = max(each["seconds"] for each in done)
    return Run.of(_GENERATORS * messages / seconds, {"replies": sum(int(each["replies"]) for each in done)}, took.cpu)
