"""The reports of a repair and a rebuild. Paths inside the store's folder are relative to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

Progress = Callable[[str, int, int], None]
"""Called with the current step, the bytes that are done, and their total."""


def no_progress(what: str, done: int, total: int) -> None:
    """A Progress that does nothing."""


class LostMessages(msgspec.Struct, frozen=True):
    """Messages of one queue that were in a damaged range."""

    topic: str
    queue_id: int
    first_offset: int
    last_offset: int

    @property
    def count(self) -> int:
        return self.last_offset - self.first_offset + 1


class RepairedRange(msgspec.Struct):
    """A range of one log file without a valid record, and what was done about it."""

    file: str
    physical_offset: int
    size: int
    reason: str
    lost: list[LostMessages] = []
    """As far as queue units, or gaps in queue offsets, show."""
    saved: list[str] = []
    """Where the bytes were saved; empty if they were all zero."""
    not_repaired: str = ""
    """Why the range could not be covered; empty if it was covered."""

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Change(msgspec.Struct, frozen=True):
    """Another fix: a file's size, a config file, the checkpoint."""

    path: str
    what: str
    saved: str = ""


class Rebuilt(msgspec.Struct, frozen=True):
    """A queue, or the index, that was rebuilt from the log."""

    what: str
    reason: str
    units: int
    """Its number of units or items."""
    kept: str = ""
    """Where the old files are; empty if there were no old files."""


class RepairReport(msgspec.Struct):
    """What a repair found and did; with `dry_run`, would do."""

    path: str
    dry_run: bool
    log_begin: int = 0
    log_end: int = 0
    ranges: list[RepairedRange] = []
    changes: list[Change] = []
    rebuilt: list[Rebuilt] = []
    start: list[str] = []
    """Notes from the start at the end of the repair."""
    problems: list[str] = []
    """What could not be fixed, one sentence each."""

    @property
    def found_nothing(self) -> bool:
        return not (self.ranges or self.changes or self.rebuilt or self.start or self.problems)

    @property
    def lost_messages(self) -> int:
        return sum(lost.count for each in self.ranges for lost in each.lost)


class RebuildReport(msgspec.Struct):
    """What a rebuild did; with `dry_run`, would do."""

    path: str
    dry_run: bool
    log_begin: int = 0
    log_end: int = 0
    rebuilt: list[Rebuilt] = []
    start: list[str] = []


def within(root: Path, path: Path) -> str:
    """A path as reports show it."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
