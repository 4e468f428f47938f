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
and the terms of external dispatch go once everything is dispatched. A crash in between leaves them, and the next start
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
    MarkFile,
    Terms,
    agree,
    built_position,
    end_terms,
    is_external,
    read_terms,
    take_job_lock,
)
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.lock import StoreLock
from penstock.store.records import max_queue_offset
from penstock.store.recovery import Recovery, RecoveryReport, StartParts
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.report import DISPATCH, Meter, Tell

_ROWS = 65_536


def take_next_offsets(files: Files, layout: Layout, log: CommitLog, state: DispatchState, tell: Tell) -> None:
    """Sets them in a log whose end is settled."""
    deleted = read_deleted_topics(files, layout.deleted_topics)
    for noted in state.queues:
        if noted.count and noted.end > deleted.get(noted.topic, -2):
            log.set_next_offset(noted.topic, noted.queue_id, noted.count)
    topics = kernels.TopicTable()
    end = log.queue.wrote_offset
    position = max(state.position, log.min_offset)
    meter = Meter(tell, DISPATCH, end - position)
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
        sound = (offsets >= 0) & (offsets <= max_queue_offset(positions)) & (positions >= deleted.get(topic, 0))
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
        self._log_part = LogRecovery(parts.engine, parts.records, live=False)
        self._whole: _WholeStart | None = None
        self._state: DispatchState | None = read_state(self._io, self._layout.dispatched)
        self._quarantine = parts.quarantine()

    def look(self, clean_exit: bool) -> None:
        """Finds out what there is and what has to be done. Raises BadStore, StoreFailed, or StoreInUse if the job has
        in its hands what must be changed."""
        self._clean_exit = clean_exit
        if self._may_do_with_log(clean_exit):
            self._quarantine.reserve(self._log_part.room_needed)
            return
        self._log.queue.close()
        self._whole = _WholeStart(self._parts)
        self._whole.look(clean_exit)

    def _may_do_with_log(self, clean_exit: bool) -> bool:
        """Whether it is enough to look at the log."""
        files, layout, state = self._io, self._layout, self._state
        terms = read_terms(files, layout)
        if terms is None or state is None or terms.sizes != state.sizes or files.exists(layout.swap):
            return False
        self._log_part.load()
        if self._log.queue.files:
            self._log_part.look(clean_exit, self._parts.checkpoint, state, self._parts.tell)
        return self._log_part.end >= built_position(files, layout)

    def act(self) -> RecoveryReport:
        """Brings what was looked at in order. Raises StoreFailed or OSError, and then the next start goes on."""
        if self._whole is not None:
            report = self._whole.act()
        else:
            assert self._state is not None, "without a note all is looked at"
            report = RecoveryReport(self._clean_exit)
            if self._log.queue.files:
                self._bring_log_in_order(self._state, report)
        agree(self._io, self._layout, Terms.of(self._parts.engine.settings))
        return report

    def _bring_log_in_order(self, state: DispatchState, report: RecoveryReport) -> None:
        self._log_part.bring_in_order(self._quarantine, report)
        take_next_offsets(self._io, self._layout, self._log, state, self._parts.tell)
        report.queues_end = report.dispatched_from = state.position
        if not self._clean_exit:
            self._log_part.sync()
        self._log_part.finish()

    def close(self) -> None:
        """Lets go of what is the job's, if that was needed."""
        if self._whole is not None:
            self._whole.close()


class _WholeStart:
    """A start as with inline dispatch, on queues and index of its own; it leaves a note of where they end."""

    def __init__(self, parts: StartParts) -> None:
        opened = parts.engine
        self._io = files = opened.io
        self._layout = layout = opened.layout
        self._lock: StoreLock | None = parts.job_lock or take_job_lock(files, layout)
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

    def look(self, clean_exit: bool) -> None:
        try:
            self._recovery.look(clean_exit)
        except BaseException:
            self.close()
            raise

    def act(self) -> RecoveryReport:
        try:
            report = self._recovery.act()
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


class InlineStart:
    """Runs once, at open; raises StoreInUse if a job has queues and index in its hands."""

    def __init__(self, parts: StartParts) -> None:
        self._io = files = parts.engine.io
        self._layout = layout = parts.engine.layout
        external = is_external(files, layout)
        self._lock: StoreLock | None = None
        if external and not files.read_only:
            self._lock = parts.job_lock or take_job_lock(files, layout)
        try:
            finish_swap(files, layout)
            self._recovery = Recovery(parts, external=external)
        except BaseException:
            self.close()
            raise

    def look(self, clean_exit: bool) -> None:
        """As `Recovery.look`."""
        self._recovery.look(clean_exit)

    def act(self) -> RecoveryReport:
        """As `Recovery.act`; dispatch is inline afterwards."""
        report = self._recovery.act()
        if self._lock is not None:
            end_terms(self._io, self._layout)
        return report

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
