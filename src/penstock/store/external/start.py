"""The next queue offsets of a store that does not build its queues: from the note, and the log behind it.

The note says how many units each queue had when everything before its position was dispatched. What lies behind that in
the log says the rest: each record carries its own queue offset. Nothing of the queues is read or changed.


The start of a store that only appends.

As a rule it looks at the log alone, cuts a torn end, and takes the next queue offsets from the note and the log behind
it; queues and index stay as they are, whether or not their job is running. Where that is not enough, the whole recovery
runs instead, queues and index included, under the job's lock: when dispatch was inline so far, when there is no note
to go by, when a swap of rebuilt files was cut short, and when the log has lost what was dispatched already.


The start of a store that dispatches for itself: the recovery of all its files.

If a job has built queues and index so far, they are taken back first: under the job's lock, so that none is at work,
and the agreement of external dispatch go once everything is dispatched. A crash in between leaves them, and the next start
takes the queues back again. A view takes nothing, and only knows that a job was there.
"""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.rows import Reason
from penstock.store.atomic_files import finish_swap
from penstock.store.commit_log import CommitLog
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch_state import DispatchNotes, DispatchState, read_state
from penstock.store.engine import Engine
from penstock.store.external.agreement import (
    DispatchAgreement,
    MarkFile,
    acquire_job_lock,
    built_position,
    is_external,
    read_agreement,
    remove_agreement,
    write_agreement,
)
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.lock import StoreLock
from penstock.store.records import most_offset
from penstock.store.recovery import Recovery, RecoveryReport, StartParts
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.report import DISPATCH, OnProgress, ProgressMeter

_ROWS = 65_536


def restore_next_offsets(
    files: Files, layout: Layout, log: CommitLog, state: DispatchState, on_progress: OnProgress
) -> None:
    """Sets them in a log whose end is settled."""
    deleted = read_deleted_topics(files, layout.deleted_topics)
    for noted in state.queues:
        if noted.count and noted.end > deleted.get(noted.topic, -2):
            log.set_next_offset(noted.topic, noted.queue_id, noted.count)
    topics = kernels.TopicTable()
    end = log.queue.wrote_offset
    position = max(state.position, log.min_offset)
    meter = ProgressMeter(on_progress, DISPATCH, end - position)
    while position < end:
        file = log.queue.find(position)
        assert file is not None, "a log has no holes"
        base, stop = file.from_offset, min(end - file.from_offset, file.size)
        rows, reached, reason = kernels.walk(file.map.view, base, position - base, stop, False, topics, _ROWS)
        _count(log, rows, topics, deleted)
        if reason == Reason.BLANK:
            reached = file.size
        elif reason not in (Reason.STOP, Reason.FULL):
            found = kernels.find_record(file.map.view, base, reached + 1, stop, True)
            reached = stop if found < 0 else found
        meter.add(base + reached - position)
        position = base + reached


def _count(log: CommitLog, rows: kernels.Rows, topics: kernels.Topics, deleted: dict[str, int]) -> None:
    for topic_id, queue_id, picks in kernels.group_rows(rows):
        topic = topics.name(topic_id)
        offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
        # A queue offset that the log had no room for is damage; one of a deleted topic counts no more.
        sound = (offsets >= 0) & (offsets <= most_offset(positions)) & (positions >= deleted.get(topic, 0))
        if sound.any():
            known = log.next_offset(topic, queue_id)
            log.set_next_offset(topic, queue_id, max(known, int(np.max(offsets[sound])) + 1))


class AppendOnlyStart:
    """Runs once, at open, before any other thread exists; the store's lock is held."""

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
        """Finds out what there is and what has to be done. Raises BadStore, StoreFailed, or StoreInUse if the job has
        in its hands what must be changed."""
        self._clean_exit = clean_exit
        if self._log_suffices(clean_exit):
            self._quarantine.make_room(self._log_recovery.room_needed)
            return
        self._log.queue.close()
        self._full = _FullStart(self._parts)
        self._full.inspect(clean_exit)

    def _log_suffices(self, clean_exit: bool) -> bool:
        """Whether it is enough to look at the log."""
        files, layout, state = self._io, self._layout, self._state
        agreement = read_agreement(files, layout)
        if agreement is None or state is None or agreement.sizes != state.sizes or files.exists(layout.swap):
            return False
        self._log_recovery.load()
        if self._log.queue.files:
            self._log_recovery.inspect(clean_exit, self._parts.checkpoint, state, self._parts.on_progress)
        return self._log_recovery.end >= built_position(files, layout)

    def apply(self) -> RecoveryReport:
        """Brings what was looked at in order. Raises StoreFailed or OSError, and then the next start goes on."""
        if self._full is not None:
            report = self._full.apply()
        else:
            assert self._state is not None, "without a note all is looked at"
            report = RecoveryReport(self._clean_exit)
            if self._log.queue.files:
                self._apply_to_log(self._state, report)
        write_agreement(self._io, self._layout, DispatchAgreement.of(self._parts.engine.settings))
        return report

    def _apply_to_log(self, state: DispatchState, report: RecoveryReport) -> None:
        self._log_recovery.apply(self._quarantine, report)
        restore_next_offsets(self._io, self._layout, self._log, state, self._parts.on_progress)
        report.queues_end = report.dispatched_from = state.position
        if not self._clean_exit:
            self._log_recovery.sync()
        self._log_recovery.remove_walk_note()

    def close(self) -> None:
        """Lets go of what is the job's, if that was needed."""
        if self._full is not None:
            self._full.close()


class _FullStart:
    """A start as with inline dispatch, on queues and index of its own; it leaves a note of where they end."""

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
            self._notes.write(self._notes.take())
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


class InlineStart:
    """Runs once, at open; raises StoreInUse if a job has queues and index in its hands."""

    def __init__(self, parts: StartParts) -> None:
        self._io = files = parts.engine.io
        self._layout = layout = parts.engine.layout
        external = is_external(files, layout)
        self._lock: StoreLock | None = None
        if external and not files.read_only:
            self._lock = parts.job_lock or acquire_job_lock(files, layout)
        try:
            finish_swap(files, layout)
            self._recovery = Recovery(parts, external=external)
        except BaseException:
            self.close()
            raise

    def inspect(self, clean_exit: bool) -> None:
        """As `Recovery.inspect`."""
        self._recovery.inspect(clean_exit)

    def apply(self) -> RecoveryReport:
        """As `Recovery.apply`; dispatch is inline afterwards."""
        report = self._recovery.apply()
        if self._lock is not None:
            remove_agreement(self._io, self._layout)
        return report

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
