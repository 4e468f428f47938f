"""The start of an append-only store, whose queues and index another process builds.

The start usually recovers the log only, and leaves queues and index alone, whether or not a job runs. It restores the
next queue offsets from the dispatch note and from the log after the note's position.

The start runs the full recovery under the job's lock if dispatch was inline so far, if there is no dispatch note, if
the note has other file sizes than the agreement, if a swap of rebuilt files was interrupted, or if the log has lost
records that were dispatched.

The start runs once, at open, before any other thread exists.
"""

from __future__ import annotations

import msgspec

from penstock.format.kernel_row_types import Reason
from penstock.format.scan import next_valid
from penstock.store.commit_log import CommitLog
from penstock.store.deleted_topics_file import read_deleted_topics
from penstock.store.dispatch_checkpoint import DispatchNotes, DispatchState, read_state
from penstock.store.engine_parts import Engine
from penstock.store.external_dispatch.files_shared_with_job import (
    DispatchAgreement,
    MarkFile,
    acquire_job_lock,
    built_position,
    is_external,
    read_agreement,
    write_agreement,
)
from penstock.store.files.atomic_files import finish_swap
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.files.lock import StoreLock
from penstock.store.queue_units_and_keys import DerivedPiece, Deriver
from penstock.store.recovery import Recovery, RecoveryReport, StartParts
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.report import DISPATCH, OnProgress, ProgressMeter


class AppendOnlyStart:
    """The start of an append-only store. The caller must hold the store's lock."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._io = parts.engine.io
        self._layout = parts.engine.layout
        self._log = parts.engine.log
        self._log_recovery = LogRecovery(parts.engine, parts.records, live=False)
        self._full: _FullStart | None = None
        self._state: DispatchState | None = read_state(self._io, self._layout.dispatched)
        self._quarantine = parts.quarantine()

    def inspect(self, clean_exit: bool) -> None:
        """Determines the changes; changes nothing unless a full recovery is needed.

        Raises BadStore or StoreFailed as `Recovery.inspect` does; StoreInUse if a full recovery is needed while a job
        runs.
        """
        self._clean_exit = clean_exit
        if self._log_suffices(clean_exit):
            self._quarantine.reserve(self._log_recovery.room_needed)
            return
        self._log.queue.close()
        self._full = _FullStart(self._parts)
        self._full.inspect(clean_exit)

    def _log_suffices(self, clean_exit: bool) -> bool:
        """Inspects the log; returns whether it is enough to recover the log, without queues and index."""
        files, layout, state = self._io, self._layout, self._state
        agreement = read_agreement(files, layout)
        if agreement is None or state is None or agreement.sizes != state.sizes or files.exists(layout.swap):
            return False
        self._log_recovery.load()
        if self._log.queue.files:
            self._log_recovery.inspect(clean_exit, self._parts.checkpoint, state, self._parts.on_progress)
        return self._log_recovery.end >= built_position(files, layout)

    def apply(self) -> RecoveryReport:
        """Makes the changes that `inspect` determined. Raises StoreFailed or OSError; the next start then resumes."""
        if self._full is not None:
            report = self._full.apply()
        else:
            assert self._state is not None, "without a note the recovery is a full one"
            report = RecoveryReport(self._clean_exit)
            if self._log.queue.files:
                self._apply_to_log(self._state, report)
        write_agreement(self._io, self._layout, DispatchAgreement.of(self._parts.engine.settings))
        return report

    def _apply_to_log(self, state: DispatchState, report: RecoveryReport) -> None:
        self._log_recovery.apply(self._quarantine, report)
        _restore_next_offsets(self._io, self._layout, self._log, state, self._parts.on_progress)
        report.queues_end = report.dispatched_from = state.position
        if not self._clean_exit:
            self._log_recovery.sync()
        self._log_recovery.remove_walk_note()

    def close(self) -> None:
        """Releases the job's lock, if the start needed it."""
        if self._full is not None:
            self._full.close()


class _FullStart:
    """A full recovery with its own queues and index. It ends with a new dispatch note and a new `dispatch.done`."""

    def __init__(self, parts: StartParts) -> None:
        opened = parts.engine
        self._io = files = opened.io
        self._layout = layout = opened.layout
        self._lock: StoreLock | None = parts.job_lock or acquire_job_lock(files, layout)
        engine = Engine.inline(files, layout, opened.settings, opened.clock, log=opened.log)
        self._derived = engine.derived
        self._dispatcher = engine.dispatcher
        self._notes = DispatchNotes(engine)
        try:
            finish_swap(files, layout)
            engine.dispatcher.set_deleted(engine.deleted_topics.load(layout))
            own_parts = msgspec.structs.replace(parts, engine=engine)
            self._recovery = Recovery(own_parts, external=is_external(files, layout))
        except BaseException:
            self.close()
            raise

    def inspect(self, clean_exit: bool) -> None:
        try:
            self._recovery.inspect(clean_exit)
        except BaseException:
            self.close()
            raise

    def apply(self) -> RecoveryReport:
        try:
            report = self._recovery.apply()
            self._derived.sync()
            self._notes.write(self._notes.snapshot())
            done = MarkFile(self._io, self._layout.dispatch_done)
            done.write(self._dispatcher.position, self._dispatcher.timestamp)
            done.close()
            return report
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._derived.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _restore_next_offsets(
    files: Files, layout: Layout, log: CommitLog, state: DispatchState, on_progress: OnProgress
) -> None:
    """Sets the next queue offset of each queue. The log must be recovered.

    The dispatch note counts the units of each queue up to its log position. Each record after that position carries its
    own queue offset.
    """
    deleted = read_deleted_topics(files, layout.deleted_topics)
    for noted in state.queues:
        if noted.count and noted.end > deleted.get(noted.topic, -2):
            log.set_next_offset(noted.topic, noted.queue_id, noted.count)
    deriver = Deriver((), with_keys=False, check_offsets=True)
    end = log.queue.wrote_offset
    position = max(state.position, log.min_offset)
    meter = ProgressMeter(on_progress, DISPATCH, end - position)
    while position < end:
        file = log.queue.find(position)
        assert file is not None, "a log has no holes"
        base, stop = file.from_offset, min(end - file.from_offset, file.size)
        piece = deriver.derive(file.map.view, base, position - base, stop)
        _raise_next_offsets(log, piece, deleted)
        reached = piece.reached - base
        if piece.reason == Reason.BLANK:
            reached = file.size
        elif piece.reason not in (Reason.STOP, Reason.FULL):
            following = next_valid(file.map.view, base, reached + 1, stop)
            reached = stop if following < 0 else following
        meter.add(base + reached - position)
        position = base + reached


def _raise_next_offsets(log: CommitLog, piece: DerivedPiece, deleted: dict[str, int]) -> None:
    for topic, queue_id, runs, _ in piece.queues:
        ends = [end for _, end, _, physical_end in runs if physical_end > deleted.get(topic, 0)]
        if ends:
            log.set_next_offset(topic, queue_id, max(log.next_offset(topic, queue_id), *ends))
