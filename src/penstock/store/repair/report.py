"""What a repair or a rebuild found and did, as values. Paths are relative to the store's folder if they lie in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

Progress = Callable[[str, int, int], None]
"""Called now and then with what is being done, and how many bytes of how many are done."""


def no_progress(what: str, done: int, total: int) -> None:
    """A Progress for whoever does not want to know."""


class LostMessages(msgspec.Struct, frozen=True):
    """Messages of one queue that lay in a damaged range."""

    topic: str
    queue_id: int
    first_offset: int
    last_offset: int

    @property
    def count(self) -> int:
        return self.last_offset - self.first_offset + 1


class RepairedRange(msgspec.Struct):
    """Bytes of one log file that held no valid record, and what became of them."""

    file: str
    physical_offset: int
    size: int
    reason: str
    lost: list[LostMessages] = []
    """As far as queue units, or gaps in the queues' offsets, tell."""
    saved: list[str] = []
    """Where the bytes are kept; nothing if they were all zero."""
    not_repaired: str = ""
    """Why the range could not be covered; empty if it was."""

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Change(msgspec.Struct, frozen=True):
    """Something else that was put right: a file's size, a config file, the checkpoint."""

    path: str
    what: str
    saved: str = ""


class Rebuilt(msgspec.Struct, frozen=True):
    """A queue, or the index, that was built anew from the log."""

    what: str
    reason: str
    units: int
    """How many units or items it has now."""
    kept: str = ""
    """Where the old files are; empty if there were none."""


class RepairReport(msgspec.Struct):
    """All that a repair found and did; with `dry_run`, would do."""

    path: str
    dry_run: bool
    log_begin: int = 0
    log_end: int = 0
    ranges: list[RepairedRange] = []
    changes: list[Change] = []
    rebuilt: list[Rebuilt] = []
    start: list[str] = []
    """What the start that ends every repair reported."""
    problems: list[str] = []
    """What could not be put right, a sentence each."""

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
    """A path as reports name it."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
