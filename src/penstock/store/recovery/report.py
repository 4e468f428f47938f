"""What a start found and did, and how far it is, as values."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from penstock.store.damage import DamagedRange

WALK = "walking the log"
DISPATCH = "completing queues and index"


class Progress(msgspec.Struct, frozen=True):
    """How far a start is in one of its phases, in bytes of the log."""

    phase: str
    done: int
    total: int


OnProgress = Callable[[Progress], object]


class RecoveryReport(msgspec.Struct):
    """What a start found and did."""

    clean_exit: bool
    walked_from: int = 0
    log_end: int = 0
    torn_bytes: int = 0
    """Bytes behind the last valid record that were cut off and kept aside."""
    units_cut: int = 0
    """Queue units that pointed behind the log's end."""
    queues_end: int = 0
    """Up to which position of the log the queues had units before this start dispatched."""
    dispatched_from: int = 0
    units_added: int = 0
    """Units that were missing in the queues."""
    damage: list[DamagedRange] = []
    """Every range of the log that is known to hold no valid record, until it is repaired."""
    repaired: list[DamagedRange] = []
    """Ranges that were known as damaged and hold valid records now."""
    kept_aside: list[str] = []
    """What was moved or copied to the quarantine."""
    notes: list[str] = []


class ProgressMeter:
    """Counts bytes of one phase and tells how far it is. Safe for threads; who is told is told by one at a time."""

    def __init__(self, on_progress: OnProgress, phase: str, total: int) -> None:
        self._on_progress = on_progress
        self._phase = phase
        self._total = total
        self._done = 0
        self._gate = threading.Lock()

    def add(self, count: int) -> None:
        with self._gate:
            self._done += count
            self._on_progress(Progress(self._phase, min(self._done, self._total), self._total))
