"""The start of a store that only appends.

As a rule it looks at the log alone, cuts a torn end, and takes the next queue offsets from the note and the log behind
it; queues and index stay as they are, whether or not their job is running. Where that is not enough, the whole recovery
runs instead, queues and index included, under the job's lock: when dispatch was inline so far, when there is no note
to go by, when a swap of rebuilt files was cut short, and when the log has lost what was dispatched already.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.format.checkpoint import Checkpoint
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.deleted_topics import DeletedTopics
from penstock.store.dispatch import Dispatcher
from penstock.store.dispatch_state import DispatchNotes, DispatchState, read_state
from penstock.store.external.marks import MarkFile
from penstock.store.external.next_offsets import take_next_offsets
from penstock.store.external.terms import Terms, agree, built_position, is_external, read_terms, take_job_lock
from penstock.store.files import Files, StoreLock
from penstock.store.index import Index
from penstock.store.layout import Layout
from penstock.store.quarantine import MayExceed, Quarantine
from penstock.store.records import Records
from penstock.store.recovery import Recovery, RecoveryReport
from penstock.store.recovery.log_part import LogPart
from penstock.store.recovery.report import Tell
from penstock.store.running_flags import RunningFlags
from penstock.store.settings import Settings
from penstock.store.swap import finish_swap


class AppendOnlyStart:
    """Runs once, at open, before any other thread exists; the store's lock is held."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        settings: Settings,
        commit_log: CommitLog,
        records: Records,
        checkpoint: Checkpoint,
        clock: Callable[[], int],
        may_exceed: MayExceed,
        tell: Tell,
        job_lock: StoreLock | None,
    ) -> None:
        """Who holds the job's lock already gives it as `job_lock`; closing releases it."""
        self._io = files
        self._layout = layout
        self._settings = settings
        self._log = commit_log
        self._records = records
        self._checkpoint = checkpoint
        self._clock = clock
        self._may_exceed = may_exceed
        self._tell = tell
        self._job_lock = job_lock
        self._part = self._log_part()
        self._whole: _WholeStart | None = None
        self._state: DispatchState | None = read_state(files, layout.dispatched)
        most = settings.quarantine_max_bytes
        self._quarantine = Quarantine(files, layout.quarantine, clock, max_bytes=most, may_exceed=may_exceed)

    def _log_part(self) -> LogPart:
        check_crc = self._settings.check_crc_on_recover
        return LogPart(self._io, self._layout, self._log, self._records, check_crc=check_crc, live=False)

    def look(self, clean_exit: bool) -> None:
        """Finds out what there is and what has to be done. Raises BadStore, StoreFailed, or StoreInUse if the job has
        in its hands what must be changed."""
        self._clean_exit = clean_exit
        if self._may_do_with_log(clean_exit):
            self._quarantine.make_room(self._part.room_needed)
            return
        self._log.queue.close()
        self._whole = _WholeStart(
            self._io, self._layout, self._settings, self._log, self._records, self._checkpoint, self._clock,
            self._may_exceed, self._tell, self._job_lock,
        )  # fmt: skip
        self._whole.look(clean_exit)

    def _may_do_with_log(self, clean_exit: bool) -> bool:
        """Whether it is enough to look at the log."""
        files, layout, state = self._io, self._layout, self._state
        terms = read_terms(files, layout)
        if terms is None or state is None or terms.sizes != state.sizes or files.exists(layout.swap):
            return False
        self._part.load()
        if self._log.queue.files:
            self._part.look(clean_exit, self._checkpoint, state, self._tell)
        return self._part.end >= built_position(files, layout)

    def act(self) -> RecoveryReport:
        """Brings what was looked at in order. Raises StoreFailed or OSError, and then the next start goes on."""
        if self._whole is not None:
            report = self._whole.act()
        else:
            assert self._state is not None, "without a note all is looked at"
            report = RecoveryReport(self._clean_exit)
            if self._log.queue.files:
                self._bring_log_in_order(self._state, report)
        agree(self._io, self._layout, Terms.of(self._settings))
        return report

    def _bring_log_in_order(self, state: DispatchState, report: RecoveryReport) -> None:
        self._part.bring_in_order(self._quarantine, report)
        take_next_offsets(self._io, self._layout, self._log, state, self._tell)
        report.queues_end = report.dispatched_from = state.position
        if not self._clean_exit:
            self._part.sync()
        self._part.finish()

    def close(self) -> None:
        """Lets go of what is the job's, if that was needed."""
        if self._whole is not None:
            self._whole.close()


class _WholeStart:
    """A start as with inline dispatch, on queues and index of its own; it leaves a note of where they end."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        settings: Settings,
        commit_log: CommitLog,
        records: Records,
        checkpoint: Checkpoint,
        clock: Callable[[], int],
        may_exceed: MayExceed,
        tell: Tell,
        job_lock: StoreLock | None,
    ) -> None:
        self._io = files
        self._layout = layout
        self._lock: StoreLock | None = job_lock or take_job_lock(files, layout)
        self._queues = ConsumeQueues(files, layout.consume_queue, settings.mapped_file_size_consume_queue)
        self._index: Index | None = None
        if settings.message_index_enable:
            self._index = Index(files, layout.index, settings.index_geometry, clock)
        dispatcher = Dispatcher(commit_log, self._queues, self._index, settings.delay_levels, RunningFlags())
        self._dispatcher = dispatcher
        parts = commit_log, self._queues, self._index, dispatcher
        self._notes = DispatchNotes(files, layout.dispatched, *parts, settings)
        try:
            finish_swap(files, layout)
            dispatcher.deleted = DeletedTopics(files, layout.deleted_topics).load(layout)
            self._recovery = Recovery(
                files, layout, settings, *parts, records, checkpoint, clock,
                may_exceed=may_exceed, tell=tell, external=is_external(files, layout),
            )  # fmt: skip
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
            for queue in self._queues:
                queue.flush(0)
            if self._index is not None:
                self._index.sync(everything=True)
            self._notes.write(self._notes.take())
            done = MarkFile(self._io, self._layout.dispatch_done)
            done.write(self._dispatcher.position, self._dispatcher.timestamp)
            done.close()
            return report
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._queues.close()
        if self._index is not None:
            self._index.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
