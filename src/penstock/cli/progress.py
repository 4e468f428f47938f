"""Progress of long jobs on stderr, and the question before the quarantine exceeds its limit.

Progress is a bar on a terminal, and otherwise a line every five seconds. The bar appears after half a second. Reports
may come from any thread, but not from two threads at the same time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from penstock.cli.output import write_note
from penstock.human_units import format_size

if TYPE_CHECKING:
    from rich import progress as bars

    from penstock.store import Progress
    from penstock.store.damage_and_quarantine import MayExceed

_SILENT_SECONDS = 0.5
_LINE_SECONDS = 5.0


class ProgressLine:
    """The progress display of one job. Call it with the phase, the amount done and the total, in a `with` block."""

    def __init__(
        self,
        format_total: Callable[[int], str] = format_size,
        note: Callable[[str], object] = write_note,
        *,
        may_have_bar: bool = True,
    ) -> None:
        """`format_total` formats the total; the default is for bytes. `note` writes a line where there is no bar."""
        self._format_total = format_total
        self._note = note
        has_bar = may_have_bar and sys.stderr.isatty()
        self._bar = _Bar(of_bytes=format_total is format_size) if has_bar else None
        self._due = time.monotonic() + (_LINE_SECONDS if self._bar is None else _SILENT_SECONDS)
        self._phase = ""
        self._started = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._started = phase, now
        if now < self._due:
            return
        if self._bar is not None:
            self._bar.show(phase, done, total)
            return
        self._due = now + _LINE_SECONDS
        share = min(done * 100 // total, 100) if total > 0 else 0
        left = f", about {(now - self._started) * (total - done) / done:.0f} s left" if done else ""
        self._note(f"{phase}: {share} % of {self._format_total(total)}{left} …")

    def report(self, progress: Progress) -> None:
        """Shows the progress of a store's start. It is passed to the store as a callback."""
        self(progress.phase, progress.done, progress.total)

    def clear(self) -> None:
        """Removes the bar, so that other output can be printed."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()


class _Bar:
    """One bar per phase, removed at the end."""

    def __init__(self, *, of_bytes: bool) -> None:
        from rich import progress as bars
        from rich.console import Console

        self._progress = bars.Progress(
            bars.TextColumn("penstock: {task.description}"),
            bars.BarColumn(),
            bars.DownloadColumn(binary_units=True) if of_bytes else bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, bars.TaskID] = {}

    def show(self, phase: str, done: int, total: int) -> None:
        self._progress.start()
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=total)
        self._progress.update(self._tasks[phase], completed=done, total=total)

    def stop(self) -> None:
        self._progress.stop()


Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Quarantine more than quarantineMaxBytes allows.")]


def confirm_quarantine(yes: bool, progress: ProgressLine) -> MayExceed:
    """Returns a callback that decides whether the quarantine may exceed its limit.

    It returns True with `--yes`. Otherwise it asks at the terminal, and returns False without a terminal.
    """

    def answer(needed: int, held: int, limit: int) -> bool:
        if yes or not sys.stdin.isatty():
            return yes
        question = (
            f"{format_size(needed)} must be quarantined; {format_size(held)} already are, and quarantineMaxBytes is "
            f"{format_size(limit)}. Continue?"
        )
        progress.clear()
        return typer.confirm(question, err=True)

    return answer
