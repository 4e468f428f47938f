"""The suite `console`: what the web console costs while nobody looks, and how long its pages take with many topics.

    cluster     a broker with thousands of topics and hundreds of groups, and the console of it
    rows        idle: processor and memory of the console's process; pages: from the click to the first row, in Chromium

Pages need Chromium and its driver; where they are missing those rows say so. There is nothing of Java's beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.console.cluster import FULL, QUICK, Watched
from bench.console.rows import Idle, Pages
from bench.harness import Scenario
from bench.java import NoJava
from bench.workspace import GIB


class ConsoleSuite:
    """See the module."""

    name = "console"
    summary = "The web console: idle processor and memory, and pages with 2,000 topics and 500 groups."
    beside = "Java"

    def __init__(self) -> None:
        self._watched: Watched | None = None

    def need(self, quick: bool) -> int:
        return GIB // 2

    def class_path(self) -> list[Path]:
        raise NoJava("RocketMQ's own console is another program, which is not measured here")

    def scenarios(self, folder: Path, quick: bool) -> list[Scenario]:
        watched = self._watched = Watched(folder, QUICK if quick else FULL)
        return [Idle(watched), Pages(watched)]

    @contextmanager
    def peer(self, jars: list[Path], folder: Path, quick: bool) -> Iterator[None]:
        yield None

    def close(self) -> None:
        """Ends broker, console and browser, if a row has started them."""
        if self._watched is not None:
            self._watched.close()
