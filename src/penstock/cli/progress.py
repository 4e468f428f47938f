"""How far a long job is, on stderr: a bar that moves where a person watches, a line every five seconds elsewhere.

A job that is done within half a second shows nothing. Any thread may tell how far it is, one at a time.


Asking before the quarantine grows beyond its limit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer
from rich import progress as bars
from rich.console import Console

from penstock.cli.output import say
from penstock.store import Progress
from penstock.store.damage import MayExceed
from penstock.units import format_size

_SILENT_SECONDS = 0.5
_LINE_SECONDS = 5.0


class ProgressLine:
    """Call it with what is being done, how much of it is done, and how much there is. Use it in a `with` block."""

    def __init__(self, in_words: Callable[[int], str] = format_size) -> None:
        """`in_words` says how much there is: of bytes, if it is not given."""
        self._in_words = in_words
        self._bar = _Bar(of_bytes=in_words is format_size) if sys.stderr.isatty() else None
        self._due = time.monotonic() + (_LINE_SECONDS if self._bar is None else _SILENT_SECONDS)
        self._what = ""
        self._begun = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._begun = what, now
        if now < self._due:
            return
        if self._bar is not None:
            self._bar.show(what, done, total)
            return
        self._due = now + _LINE_SECONDS
        share = min(done * 100 // total, 100) if total > 0 else 0
        left = f", about {(now - self._begun) * (total - done) / done:.0f} s to go" if done else ""
        say(f"{what}: {share} % of {self._in_words(total)}{left} …")

    def tell(self, told: Progress) -> None:
        """Takes what a start tells."""
        self(told.phase, told.done, told.total)

    def clear(self) -> None:
        """Leaves the terminal to somebody else."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()


class _Bar:
    """One bar for each thing that is done, gone when all is done."""

    def __init__(self, *, of_bytes: bool) -> None:
        self._progress = bars.Progress(
            bars.TextColumn("penstock: {task.description}"),
            bars.BarColumn(),
            bars.DownloadColumn(binary_units=True) if of_bytes else bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, bars.TaskID] = {}

    def show(self, what: str, done: int, total: int) -> None:
        self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def stop(self) -> None:
        self._progress.stop()


Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Keep aside what must be, also beyond quarantineMaxBytes.")]


def asked(yes: bool, progress: ProgressLine) -> MayExceed:
    """Who answers whether it may: the option, or the person at the terminal; nobody else does."""

    def answer(needed: int, held: int, limit: int) -> bool:
        if yes or not sys.stdin.isatty():
            return yes
        question = (
            f"{format_size(needed)} have to be kept aside, {format_size(held)} are already, and quarantineMaxBytes allows "
            f"{format_size(limit)}. Go on?"
        )
        progress.clear()
        return typer.confirm(question, err=True)

    return answer
