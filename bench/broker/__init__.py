"""The suite `broker`: `penstock serve` beside Apache RocketMQ's broker, under the load of one generator.

    processes   the two brokers, and how long they take to be up
    sides       a broker for the whole suite, and orders to the generator
    generator   the load, in a process of its own; `window` and `paced` are its loops, `frames` what it sends
    sink        a server that only answers, to see what the generator can do
    rows        what is measured

All of it on loopback, the generator on one core, the broker on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.broker.processes import JAVA_PROJECT, JavaBroker
from bench.broker.rows import BODIES, Ceiling, Consume, Latency, Send, SendBatches, Start
from bench.broker.sides import FULL, QUICK, Side, Sizes, our_broker
from bench.harness import Scenario
from bench.java import class_path

WINDOWS = (1, 16, 64)
_PULLED = 32 * 1_300
"""About what a page of 32 messages of 1 KB takes."""


class BrokerSuite:
    """See the module."""

    name = "broker"
    summary = "penstock serve under load: sending, consuming, latency, start and memory."
    beside = "Java"

    def __init__(self) -> None:
        self._jars: list[Path] = []
        self._ours: Side | None = None

    def need(self, quick: bool) -> int:
        return _sizes(quick).disk_need

    def class_path(self) -> list[Path]:
        return class_path(JAVA_PROJECT)

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        """The rows; our broker is started by the first that needs it."""
        sizes = _sizes(quick)
        ours = self._ours = Side(our_broker(folder / "penstock", sizes), sizes)
        return [
            *(
                Ceiling(sizes, f"generator-{window}", f"the generator alone, {window} in flight", window=window)
                for window in WINDOWS
            ),
            Ceiling(sizes, "generator-pull", "the generator alone, pages of 32", window=16, reply=_PULLED),
            *(Send(ours, sizes, body, window) for body in BODIES for window in WINDOWS),
            SendBatches(ours, sizes),
            *(Consume(ours, sizes, body) for body in BODIES),
            Latency(ours, sizes),
            Start(our_broker(folder / "penstock-start", sizes), lambda: self._java(folder / "java-start", sizes)),
        ]

    @contextmanager
    def peer(self, jars: list[Path], folder: Path, quick: bool) -> Iterator[Side]:
        """Java's broker, warm."""
        self._jars, sizes = jars, _sizes(quick)
        java = Side(self._java(folder / "java", sizes), sizes)
        try:
            java.broker()
            yield java
        finally:
            java.stop()

    def close(self) -> None:
        """Ends our broker, if a row has started it."""
        if self._ours is not None:
            self._ours.stop()

    def _java(self, folder: Path, sizes: Sizes) -> JavaBroker:
        return JavaBroker(folder, sizes.settings(), self._jars)


def _sizes(quick: bool) -> Sizes:
    return QUICK if quick else FULL
