"""The suite `cold`: what a consumer of messages that are not in memory does to a producer, for two source trees.

    python -m bench cold --before PATH --after PATH

A turn is a fresh broker of one tree on a log of 300 MB, which is synced and put out of the page cache (`fadvise`). A
producer sends 500 messages a second, first alone, then while a consumer reads the old messages from offset 0, then
while another reads them again, now from memory: what that one costs the producer is not the disk's doing. Figures are
the 99th percentiles of the time until an ack, the ratio of the first two, and the page faults at which the broker's
event loop waited for the disk, which depend less on what else the machine does. *One topic*: the records of a page lie
close to each other in the log. *32 topics*: they are scattered. Log files are small, because a start reads the last
three of them. The folder must be on a disk, not in memory: name one with `--dir`. Each turn needs 1 GiB, which is
removed at once.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from bench.compare import BEFORE, Tree
from bench.load import QUEUES, generate
from bench.processes import PenstockBroker
from bench.run import OURS, Goal, Row, Run, Stopwatch, Task, no_peer
from bench.workspace import MIB, BenchFailed

_BODY = 1024
_SETTINGS: dict[str, object] = {"flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 32 * MIB}


class Sizes(msgspec.Struct, frozen=True):
    """How much is done in a turn."""

    messages: int
    """Old messages; a multiple of 32 pages of each queue."""
    rate: int
    seconds: float


FULL = Sizes(messages=245_760, rate=500, seconds=4)
QUICK = Sizes(messages=4_096, rate=200, seconds=0.3)


class ColdSuite:
    """See the module."""

    name = "cold"
    summary = "Latency of a producer beside a consumer of messages that are not in memory, for two source trees."
    sides = ("After", "Before")

    def __init__(self, before: Path, after: Path, changes: dict[str, object] | None = None) -> None:
        self._trees = {OURS: Tree.find(after, changes), BEFORE: Tree.find(before)}

    def need(self, quick: bool) -> int:
        return 1536 * MIB

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes, found = QUICK if quick else FULL, []
        for group, title, topics in (("dense", "one topic", 1), ("scattered", "32 topics", 32)):
            rows = (
                Row(f"alone-{group}", f"99 % acked, alone, {title}", "ms", None, True, beside=BEFORE, figure="alone"),
                Row(
                    f"cold-{group}", f"99 % acked, cold reads, {title}", "ms", None, True, beside=BEFORE, figure="cold"
                ),
                Row(
                    f"warm-{group}",
                    f"99 % acked, reads from memory, {title}",
                    "ms",
                    None,
                    True,
                    beside=BEFORE,
                    figure="warm",
                ),
                Row(
                    f"times-{group}",
                    f"times as long, {title}",
                    "times",
                    Goal("at most", 3),
                    True,
                    beside=BEFORE,
                    figure="times",
                ),
                Row(
                    f"faults-{group}",
                    f"page faults of the loop, {title}",
                    "times",
                    Goal("at most", 10),
                    True,
                    has_ratio=False,
                    beside=BEFORE,
                    figure="faults",
                ),
                Row(f"read-{group}", f"messages read, {title}", "messages/s", beside=BEFORE, figure="read"),
            )
            sides = {side: partial(self._turn, self._trees[side], folder, topics, sizes) for side in self._trees}
            found.append(Task(group, rows, sides))
        return found

    def _turn(self, tree: Tree, folder: Path, topics: int, sizes: Sizes) -> Run:
        broker = PenstockBroker(folder / "broker", {**_SETTINGS, **tree.changes}, tree.program(), tree.environment())
        try:
            broker.start()
            load = partial(generate, port=broker.port, body=_BODY)
            load(do="send", topic="old", topics=topics, count=sizes.messages, window=64)
            end_cleanly(broker)
            evict(broker.store)
            broker.resume(broker.is_listening)
            paced = partial(load, do="paced", rate=sizes.rate, seconds=sizes.seconds)
            paced(topic="warm-up")
            alone = paced(topic="alone")
            with ThreadPoolExecutor(1) as pool:
                evict(broker.store)
                faults = major_faults(broker.pids[0])
                reading = pool.submit(read_old, broker.port, topics, sizes)
                with Stopwatch(*broker.pids) as took:
                    beside = paced(topic="beside")
                read = reading.result()
                faults = major_faults(broker.pids[0]) - faults
                again = pool.submit(read_old, broker.port, topics, sizes)
                warm = paced(topic="beside-memory")
                again.result()
        finally:
            broker.stop()
        times = {
            name: figures["publishLatency99pct"]
            for name, figures in (("alone", alone), ("cold", beside), ("warm", warm))
        }
        return Run({**times, "times": times["cold"] / times["alone"], "faults": faults, "read": read}, {}, took.cpu)

    def peer(self, folder: Path, quick: bool) -> AbstractContextManager[dict[str, str]]:
        return no_peer()

    def close(self) -> None:
        """Every turn ends its own process."""


def end_cleanly(broker: PenstockBroker) -> None:
    """Ends a broker so that its next start does not walk the log. Raises BenchFailed if it cannot."""
    for _ in range(3):
        broker.end()
        if not (broker.store / "abort").exists():
            return
        broker.resume(broker.is_listening)
    raise BenchFailed("the broker does not stop in time: the disk is too busy")


def evict(store: Path) -> None:
    """Puts the files of a store out of the page cache, except for pages that a process has touched."""
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def major_faults(pid: int) -> int:
    """Page faults of a process's main thread that waited for a disk."""
    return int(Path(f"/proc/{pid}/task/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[9])


def read_old(port: int, topics: int, sizes: Sizes) -> float:
    """Reads the old messages topic by topic, one page in flight for each queue; returns messages a second.

    One process reads all topics: the start of a process for each would take a core from the producer.
    """
    count = sizes.messages // topics
    done = generate(do="pull", port=port, topic="old", topics=topics, count=count, passes=1, window=QUEUES)
    return count * topics / done["seconds"]
