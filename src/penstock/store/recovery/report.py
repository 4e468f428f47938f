"""Values that describe a recovery: its progress and its result."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from penstock.store.damage_and_quarantine import DamagedRange

WALK = "walking the log"
DISPATCH = "completing queues and index"


class Progress(msgspec.Struct, frozen=True):
    """How far recovery is in one of its phases, in bytes of the log."""

    phase: str
    done: int
    total: int


OnProgress = Callable[[Progress], object]


class RecoveryReport(msgspec.Struct):
    """What recovery found and changed."""

    clean_exit: bool
    walked_from: int = 0
    """Physical offset where the walk over the log began."""
    log_end: int = 0
    torn_bytes: int = 0
    """Bytes after the last valid record that were truncated and quarantined."""
    units_cut: int = 0
    """Queue units that were dropped because they pointed past the log's end."""
    queues_end: int = 0
    """The log position that the queues had reached before recovery dispatched."""
    dispatched_from: int = 0
    """The log position at which recovery began to dispatch."""
    units_added: int = 0
    """Queue units that recovery added."""
    damage: list[DamagedRange] = []
    """All known ranges of the log without a valid record; each stays listed until it is repaired."""
    repaired: list[DamagedRange] = []
    """Ranges that were noted as damaged and now hold valid records."""
    kept_aside: list[str] = []
    """Paths in the quarantine that recovery created."""
    notes: list[str] = []
    """Sentences for the user, one for each change or problem."""


class ProgressMeter:
    """Counts the bytes of one phase and reports progress. Thread-safe; calls the listener from one thread at a time."""

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
