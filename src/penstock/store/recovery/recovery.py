"""Runs a whole recovery in order: load, inspect, reserve room in the quarantine, apply, sync."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.format.checkpoint import Checkpoint
from penstock.store.damage_and_quarantine import MayExceed, Quarantine
from penstock.store.dispatch_checkpoint import read_state
from penstock.store.engine_parts import Engine
from penstock.store.files.lock import StoreLock
from penstock.store.recovery.index import IndexRecovery
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.queues import QueueRecovery, Redispatch
from penstock.store.recovery.report import OnProgress, RecoveryReport
from penstock.store.single_record_reader import RecordReader
from penstock.store.sink.journal import pending_start


class StartParts(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of every start: the engine of the store, its checkpoint, and the caller's callbacks."""

    engine: Engine
    records: RecordReader
    checkpoint: Checkpoint
    may_exceed: MayExceed
    """Called before the quarantine grows past quarantineMaxBytes."""
    on_progress: OnProgress
    job_lock: StoreLock | None
    """The lock of external dispatch, if the caller holds it already. A start that uses the lock releases it."""

    def quarantine(self) -> Quarantine:
        engine = self.engine
        most = engine.settings.quarantine_max_bytes
        return Quarantine(engine.io, engine.layout.quarantine, engine.clock, max_bytes=most, may_exceed=self.may_exceed)


class Recovery:
    """The recovery of a whole store. It runs once, at open, before any other thread exists.

    In a live view (a read-only view of a store that another process writes to), bytes after the end are not torn but
    still being written. The view hides them and does not report them. It hides an incomplete batch, too.
    """

    def __init__(self, parts: StartParts, *, external: bool) -> None:
        """`external`: another process built queues and index; the file `abort` does not show whether it crashed."""
        engine = parts.engine
        files, layout, index = engine.io, engine.layout, engine.index
        self._io = files
        self._external = external
        self._log = engine.log
        self._derived = engine.derived
        self._dispatcher = engine.dispatcher
        self._quarantine = parts.quarantine()
        self._checkpoint = parts.checkpoint
        pending_batch = pending_start(files, layout) if files.read_only else None
        locks = layout.lock, layout.dispatch_lock
        owned = files.read_only and any(files.lock_owner(lock) != 0 for lock in locks)
        self._live = live = pending_batch is not None or owned
        self._on_progress = parts.on_progress
        self._state = read_state(files, layout.dispatched)
        self._log_recovery = LogRecovery(engine, parts.records, live=live, pending_batch=pending_batch)
        self._queue_recovery = QueueRecovery(engine, live=live)
        self._index_recovery = (
            None if index is None else IndexRecovery(files, index, parts.records, live=live, owned=owned)
        )
        garbage = self._state is None and files.exists(layout.dispatched)
        self._redispatch = Redispatch(engine, self._state, state_is_garbage=garbage, external=external)

    def inspect(self, clean_exit: bool) -> None:
        """Determines the necessary changes, and makes none.

        Raises BadStore if the files are not usable, StoreFailed if the quarantine lacks room.
        """
        self._clean_exit = clean_exit
        sizes = None if self._state is None else self._state.sizes
        self._log_recovery.load()
        self._queue_recovery.load(sizes)
        if self._index_recovery is not None:
            self._index_recovery.load(sizes)
        needed = 0
        if self._log.queue.files:
            self._log_recovery.inspect(clean_exit, self._checkpoint, self._state, self._on_progress)
            if self._external:
                self._log_recovery.walked_from = min(self._log_recovery.walked_from, self._noted)
            self._queue_recovery.inspect(self._log_recovery, self._derived_clean)
            if self._index_recovery is not None:
                self._index_recovery.inspect(self._log_recovery, self._derived_clean)
                needed += self._index_recovery.room_needed
            needed += self._log_recovery.room_needed + self._queue_recovery.room_needed
        else:
            needed += sum(self._io.allocated(folder) for folder in self._derived_folders())
        self._quarantine.reserve(needed)

    def apply(self) -> RecoveryReport:
        """Makes the changes that `inspect` determined. Raises StoreFailed or OSError; the next start then resumes."""
        report = RecoveryReport(self._clean_exit)
        if not self._log.queue.files:
            self._forget_derived(report)
            return report
        log, queues, index = self._log_recovery, self._queue_recovery, self._index_recovery
        log.apply(self._quarantine, report)
        queues.apply(self._quarantine, report, self._derived_clean)
        if index is not None:
            noted_end = None if self._state is None else self._state.index_end
            index.apply(log, self._quarantine, report, self._derived_clean, noted_end)
        self._report_shrunk(report)
        self._redispatch.run(log, index, queues.incomplete, report, self._on_progress)
        log.add_damage(self._dispatcher.skipped_ranges, report)
        self._dispatcher.set_damage(log.damage)
        if not self._clean_exit:
            log.sync()
        if not self._clean_exit or report.dispatched_from < report.log_end:
            queues.sync()
            if index is not None:
                index.sync()
        log.remove_walk_note()
        return report

    @property
    def _derived_clean(self) -> bool:
        return self._clean_exit and not self._external

    @property
    def _noted(self) -> int:
        """The log position up to which queues and index are on disk, according to the dispatch note."""
        return 0 if self._state is None else self._state.position

    def _report_shrunk(self, report: RecoveryReport) -> None:
        noted = 0 if self._state is None else min(self._state.flushed, self._state.position)
        if noted > report.log_end and not self._live:
            report.notes.append(
                f"the log ends at {report.log_end}, but was on disk up to {noted}: {noted - report.log_end} bytes "
                "are missing"
            )

    def _derived_folders(self) -> list[Path]:
        queues, index = self._derived.queues, self._derived.index
        folders = [queues.folder] if index is None else [queues.folder, index.folder]
        return [folder for folder in folders if self._io.names(folder)]

    def _forget_derived(self, report: RecoveryReport) -> None:
        """Moves queues and index to the quarantine. Without a log their old offsets would hide new messages."""
        self._derived.close()
        for folder in self._derived_folders():
            kept = self._quarantine.move_in(folder)
            report.kept_aside.append(str(kept))
            report.notes.append(f"there is no commit log: {folder} was moved to {kept}")
