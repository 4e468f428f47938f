"""The report of a rebuild, also used by a repair. Paths inside the store's folder are relative to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

Progress = Callable[[str, int, int], None]
"""Called with the name of the current step, the number of bytes done, and their total."""


def no_progress(what: str, done: int, total: int) -> None:
    """A Progress that does nothing."""


class Rebuilt(msgspec.Struct, frozen=True):
    """A queue, or the index, that was rebuilt from the log."""

    what: str
    reason: str
    units: int
    """The number of units in the queue, or of items in the index."""
    kept: str = ""
    """Path of the old files in the quarantine; empty if there were no old files."""


class RebuildReport(msgspec.Struct):
    """The changes that a rebuild made; with `dry_run`, those that it would make."""

    path: str
    dry_run: bool
    log_begin: int = 0
    log_end: int = 0
    rebuilt: list[Rebuilt] = []
    start: list[str] = []
    """Notes of the recovery when the store was started at the end of the rebuild."""
    into: str = ""
    """The folder with the new files; empty if the store was rebuilt in place."""
    records: int = 0
    ranges: int = 0
    resumed: int = 0
    """Number of ranges that an earlier run had built."""
    damaged: int = 0
    """Number of damaged ranges of the log; the rebuild skipped them."""
    in_log_order: list[str] = []
    """Queues whose offsets go back: they were built a second time, in log order."""


def within(root: Path, path: Path) -> str:
    """Returns a path as reports show it: relative to `root` if it is inside."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
