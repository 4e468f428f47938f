"""The suite `console`: what the web console costs while nobody looks, and how long its pages take with many topics.

    cluster     a broker with thousands of topics and hundreds of groups, and the console of it
    rows        idle: processor and memory of the console's process; pages: from the click to the first row, in Chromium
    beside      the broker's own figures, with a console beside it and without

Pages need Chromium and its driver; where they are missing those rows say so. There is nothing of Java's beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.broker import sides
from bench.console.beside import Beside, SendBeside
from bench.console.cluster import FULL, QUICK, Watched
from bench.console.rows import Idle, Pages
from bench.harness import Scenario
from bench.workspace import GIB


class ConsoleSuite:
    """See the module."""

    name = "console"
    summary = "The web console: idle, its pages with 2,000 topics and 500 groups, and the broker beside it."
    beside = "without it"

    def __init__(self) -> None:
        self._watched: Watched | None = None
        self._beside: Beside | None = None

    def need(self, quick: bool) -> int:
        return GIB // 2 + (sides.QUICK if quick else sides.FULL).disk_need // 2  # there is one broker, not two

    def class_path(self) -> None:
        """RocketMQ's own console is another program, which is not measured here."""

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        watched = self._watched = Watched(folder, QUICK if quick else FULL)
        sizes = sides.QUICK if quick else sides.FULL
        beside = self._beside = Beside(folder / "beside", sizes)
        return [
            Idle(watched),
            Pages(watched),
            SendBeside(beside, sizes, 1024, 16),
            SendBeside(beside, sizes, 128, 64),
        ]

    @contextmanager
    def peer(self, jars: list[Path], folder: Path, quick: bool) -> Iterator[object]:
        """None but the console's own absence."""
        yield self

    def close(self) -> None:
        """Ends brokers, console and browser, if a row has started them."""
        if self._watched is not None:
            self._watched.close()
        if self._beside is not None:
            self._beside.stop()
