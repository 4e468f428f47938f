"""The suite `replication`: a master and a slave of ours beside a pair of Apache RocketMQ's brokers.

    logs    two logs on disk: how far they go, and whether they are equal
    pairs   master and slave as processes, and a slave that is 2 GB behind
    rows    what is measured

Load generator, brokers as processes and settings are those of the suite `broker`. All of it on loopback and on one
disk: master, slave and generator share the machine's cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.broker.processes import JAVA_PROJECT, JavaBroker, Penstock
from bench.harness import Scenario
from bench.java import class_path
from bench.replication.pairs import FULL, QUICK, Pairs, PairSizes, Role
from bench.replication.rows import CatchUp, Latency, Send

ROLES: tuple[Role, ...] = ("SYNC_MASTER", "ASYNC_MASTER")
WINDOWS = (1, 64)


class ReplicationSuite:
    """See the module."""

    name = "replication"
    summary = "Master and slave: sends, latency, and a slave that is 2 GB behind."
    beside = "Java"

    def __init__(self) -> None:
        self._ours: Pairs | None = None

    def need(self, quick: bool) -> int:
        return _sizes(quick).disk_need

    def class_path(self) -> list[Path]:
        return class_path(JAVA_PROJECT)

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        """The rows; pairs are started by the first that needs them."""
        sizes = _sizes(quick)
        ours = self._ours = Pairs(Penstock, folder / "penstock", sizes)
        found: list[Scenario] = []
        for role in ROLES:
            found += [*(Send(ours, sizes, role, window) for window in WINDOWS), Latency(ours, sizes, role)]
        return [*found, CatchUp(ours, sizes)]

    @contextmanager
    def peer(self, jars: list[Path], folder: Path, quick: bool) -> Iterator[Pairs]:
        """Java's pairs; each warms up when it is first used."""
        pairs = Pairs(lambda place, settings: JavaBroker(place, settings, jars), folder / "java", _sizes(quick))
        try:
            yield pairs
        finally:
            pairs.stop()

    def close(self) -> None:
        """Ends our pairs, if a row has started them."""
        if self._ours is not None:
            self._ours.stop()


def _sizes(quick: bool) -> PairSizes:
    return QUICK if quick else FULL
