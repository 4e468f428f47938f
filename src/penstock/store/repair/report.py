"""The report of a repair. Paths inside the store's folder are relative to it."""

from __future__ import annotations

import msgspec

from penstock.store.rebuild.report import Rebuilt


class LostMessages(msgspec.Struct, frozen=True):
    """Messages of one queue that were in a damaged range: queue offsets `first_offset` to `last_offset`, inclusive."""

    topic: str
    queue_id: int
    first_offset: int
    last_offset: int

    @property
    def count(self) -> int:
        return self.last_offset - self.first_offset + 1


class RepairedRange(msgspec.Struct):
    """A range of one log file without a valid record, and its repair."""

    file: str
    physical_offset: int
    size: int
    reason: str
    lost: list[LostMessages] = []
    """The lost messages, as far as queue units or gaps in queue offsets show them."""
    saved: list[str] = []
    """Paths of the saved bytes; empty if the bytes were all zero."""
    not_repaired: str = ""
    """Why the range could not be covered; empty if it was covered."""

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Change(msgspec.Struct, frozen=True):
    """Another fix: of a file's size, of records hidden in a filler, a store time, a config file or the checkpoint."""

    path: str
    what: str
    saved: str = ""


class RepairReport(msgspec.Struct):
    """The faults that a repair found, and its changes; with `dry_run`, the changes that it would make."""

    path: str
    dry_run: bool
    log_begin: int = 0
    log_end: int = 0
    ranges: list[RepairedRange] = []
    changes: list[Change] = []
    rebuilt: list[Rebuilt] = []
    start: list[str] = []
    """Notes of the recovery when the store was started at the end of the repair."""
    problems: list[str] = []
    """Problems that could not be fixed, one sentence each."""

    @property
    def found_nothing(self) -> bool:
        return not (self.ranges or self.changes or self.rebuilt or self.start or self.problems)

    @property
    def lost_messages(self) -> int:
        return sum(lost.count for each in self.ranges for lost in each.lost)
