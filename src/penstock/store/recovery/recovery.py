"""What every start works with, as one value.

The order of a start: load, look, ask for room, act, sync.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.format.checkpoint import Checkpoint
from penstock.store.damage import MayExceed, Quarantine
from penstock.store.dispatch_state import read_state
from penstock.store.engine import Engine
from penstock.store.lock import StoreLock
from penstock.store.records import RecordReader
from penstock.store.recovery.index import IndexRecovery
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.queues import QueueRecovery, Redispatch
from penstock.store.recovery.report import RecoveryReport, Tell
from penstock.store.sink.journal import pending_start


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """The store that is started, and who is asked and told meanwhile."""

    engine: Engine
    records: RecordReader
    checkpoint: Checkpoint
    may_exceed: MayExceed
    """Asked before more than quarantineMaxBytes is kept aside."""
    tell: Tell
    job_lock: StoreLock | None
    """That of external dispatch, from who holds it already; the start releases it if it was needed."""

    def quarantine(self) -> Quarantine:
        """Where this start keeps things aside."""
        engine = self.engine
        most = engine.settings.quarantine_max_bytes
        return Quarantine(engine.io, engine.layout.quarantine, engine.clock, max_bytes=most, may_exceed=self.may_exceed)


class Recovery:
    """Runs once, at open, before any other thread exists.

    For a view of a store that another process is writing to (`live`), what lies behind the end is not torn but on its
    way: nothing is said of it, and it stays out of sight. So does a batch of which only a part is there.
    """

    def __init__(self, parts: StartParts, *, external: bool) -> None:
        """`external`: another process built queues and index so far, and `abort` says nothing of how that ended."""
        engine = parts.engine
        files, layout, index = engine.io, engine.layout, engine.index
        self._io = files
        self._external = external
        self._log = engine.log
        self._derived = engine.derived
        self._dispatcher = engine.dispatcher
        self._quarantine = parts.quarantine()
        self._checkpoint = parts.checkpoint
        begun = pending_start(files, layout) if files.read_only else None
        locks = layout.lock, layout.dispatch_lock
        owned = files.read_only and any(files.lock_owner(lock) != 0 for lock in locks)
        self._live = live = begun is not None or owned
        self._tell = parts.tell
        self._state = read_state(files, layout.dispatched)
        self._log_part = LogRecovery(engine, parts.records, live=live, begun=begun)
        self._queue_part = QueueRecovery(engine, live=live)
        self._index_part = None if index is None else IndexRecovery(files, index, parts.records, live=live, owned=owned)
        garbage = self._state is None and files.exists(layout.dispatched)
        self._dispatching = Redispatch(engine, self._state, state_is_garbage=garbage, external=external)

    def look(self, clean_exit: bool) -> None:
        """Finds out what there is and what has to be done; everything stays as it is.

        Raises BadStore if something is not as it must be, StoreFailed if there is no room to keep things aside.
        """
        self._clean_exit = clean_exit
        sizes = None if self._state is None else self._state.sizes
        self._log_part.load()
        self._queue_part.load(sizes)
        if self._index_part is not None:
            self._index_part.load(sizes)
        needed = 0
        if self._log.queue.files:
            self._log_part.look(clean_exit, self._checkpoint, self._state, self._tell)
            if self._external:
                self._log_part.walked_from = min(self._log_part.walked_from, self._noted)
            self._queue_part.look(self._log_part, self._derived_clean)
            if self._index_part is not None:
                self._index_part.look(self._log_part, self._derived_clean)
                needed += self._index_part.room_needed
            needed += self._log_part.room_needed + self._queue_part.room_needed
        else:
            needed += sum(self._io.allocated(folder) for folder in self._derived_folders())
        self._quarantine.reserve(needed)

    def act(self) -> RecoveryReport:
        """Brings what was looked at in order. Raises StoreFailed or OSError, and then the next start goes on."""
        report = RecoveryReport(self._clean_exit)
        if not self._log.queue.files:
            self._forget_derived(report)
            return report
        log, queues, index = self._log_part, self._queue_part, self._index_part
        log.bring_in_order(self._quarantine, report)
        queues.bring_in_order(self._quarantine, report, self._derived_clean)
        if index is not None:
            noted_end = None if self._state is None else self._state.index_end
            index.bring_in_order(log, self._quarantine, report, self._derived_clean, noted_end)
        self._say_shrunk(report)
        self._dispatching.run(log, index, queues.behind, report, self._tell)
        log.add_damage(self._dispatcher.skipped_ranges, report)
        if not self._clean_exit:
            log.sync()
        if not self._clean_exit or report.dispatched_from < report.log_end:
            queues.sync()
            if index is not None:
                index.sync()
        log.finish()
        return report

    @property
    def _derived_clean(self) -> bool:
        return self._clean_exit and not self._external

    @property
    def _noted(self) -> int:
        """Up to where queues and index are on disk by the note."""
        return 0 if self._state is None else self._state.position

    def _say_shrunk(self, report: RecoveryReport) -> None:
        noted = 0 if self._state is None else min(self._state.flushed, self._state.position)
        if noted > report.log_end and not self._live:
            report.notes.append(
                f"the log ends at {report.log_end}, and it was on disk up to {noted}: {noted - report.log_end} bytes "
                "are not there any more"
            )

    def _derived_folders(self) -> list[Path]:
        queues, index = self._derived.queues, self._derived.index
        folders = [queues.folder] if index is None else [queues.folder, index.folder]
        return [folder for folder in folders if self._io.names(folder)]

    def _forget_derived(self, report: RecoveryReport) -> None:
        """No log at all: queues and index describe nothing, and would hide what is written next."""
        self._derived.close()
        for folder in self._derived_folders():
            kept = self._quarantine.move_in(folder)
            report.kept_aside.append(str(kept))
            report.notes.append(f"there is no commit log: {folder} was moved to {kept}")
