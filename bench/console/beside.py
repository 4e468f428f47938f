"""What the console costs its broker: the same sends to the same broker, with a console beside it and without, in turns.

Nobody looks at the console meanwhile: it asks the broker what it asks all day. It is started before a round with it,
and ended after, so that nothing of it is there in a round without.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from support.clients import ConsoleProcess

from bench.broker.processes import Penstock
from bench.broker.rows import Send
from bench.broker.sides import Side, Sizes
from bench.harness import Goal, Row, Run

_THE_SAME = Goal("ratio at least", 0.97)
"""A core has a thousand milliseconds in a second, and the console may take twenty of them."""


class NamedBroker(Penstock):
    """`penstock serve` without a console of its own, and where its name server is."""

    def command(self) -> Sequence[str]:
        return [*super().command(), "--json"]

    @property
    def namesrv(self) -> str:
        for line in (self.folder / "output.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("{"):
                return str(json.loads(line)["namesrv"])
        raise AssertionError("it says where it is when it has started")


class Beside:
    """One broker, and its console for as long as it is wanted."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._broker = NamedBroker(folder / "broker", sizes.settings())
        self.side = Side(self._broker, sizes)

    @contextmanager
    def console(self) -> Iterator[None]:
        """It is up and has looked around."""
        self.side.broker()
        self._folder.mkdir(parents=True, exist_ok=True)
        with ConsoleProcess(self._broker.namesrv, folder=self._folder) as console, console.client() as client:
            for path in ("/readyz", "/api/topics", "/api/groups"):
                client.get(path).raise_for_status()
            yield

    def stop(self) -> None:
        self.side.stop()


class SendBeside(Send):
    """Single messages, so many in flight on one connection: with the console, and without."""

    group: ClassVar[str] = "beside"

    def __init__(self, beside: Beside, sizes: Sizes, body: int, window: int) -> None:
        super().__init__(beside.side, sizes, body, window)
        self._beside = beside
        [row] = self.rows
        self.rows = (
            Row(f"beside-{row.name}", f"{row.title}, the console beside", "messages/s", _THE_SAME, field=row.field),
        )

    def ours(self) -> Run:
        with self._beside.console():
            return self.round(self._beside.side)

    def java(self, peer: Any) -> Run:
        """Not Java: the same broker without its console."""
        return self.round(self._beside.side)
