"""What a start does before anything is served: find the log's end, and bring queues and index in line with it.

The log decides. Behind its last valid record nothing is believed: torn bytes are saved under
`penstock/quarantine/` and zeroed. Damage in the middle cuts nothing off; it is reported and passed over. After a clean
exit only the last files are walked; after a crash the walk begins where the checkpoint says that queues are surely
complete, and everything from there is dispatched again, which adds only what is missing. Run twice, or killed and
run again, it ends in the same state.

For a view of a store that another process is writing to (`live`), what lies behind the end is not torn but on its way:
nothing is said of it, and it stays out of sight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from penstock.format import kernels
from penstock.format.checkpoint import Checkpoint
from penstock.format.constants import MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from penstock.format.queue_unit import is_ext_address
from penstock.format.rows import Reason
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import NO_RECORD_SIZE, ConsumeQueue, GapInQueue
from penstock.store.consume_queues import ConsumeQueues
from penstock.store.damage import DamagedRange
from penstock.store.dispatch import Dispatcher
from penstock.store.dispatch_state import DispatchState
from penstock.store.index import Index
from penstock.store.live_view import freeze_index, settle_log
from penstock.store.mapped_file import MappedFile
from penstock.store.quarantine import Quarantine
from penstock.store.records import Records

log = logging.getLogger("penstock.store")

_WALK_ROWS = 65_536
_FILES_AFTER_CLEAN_EXIT = 3


class RecoveryReport(msgspec.Struct):
    """What a start found and did."""

    clean_exit: bool
    walked_from: int = 0
    log_end: int = 0
    torn_bytes: int = 0
    """Bytes behind the last valid record that were cut off and kept aside."""
    units_cut: int = 0
    queues_end: int = 0
    """Up to which position of the log the queues had units before this start dispatched."""
    dispatched_from: int = 0
    units_added: int = 0
    """Units that were missing in the queues."""
    damage: list[DamagedRange] = []
    notes: list[str] = []


class Recovery:
    """Runs once, at open, before any other thread exists."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: Index | None,
        dispatcher: Dispatcher,
        records: Records,
        quarantine: Quarantine,
        checkpoint: Checkpoint,
        state: DispatchState | None,
        *,
        check_crc: bool,
        live: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._records = records
        self._quarantine = quarantine
        self._checkpoint = checkpoint
        self._state = state
        self._check_crc = check_crc
        self._live = live
        self._progress = progress

    def load(self) -> None:
        """Maps what is there. Raises BadStore if something is not as it must be."""
        self._log.queue.load()
        self._queues.load()
        if self._index is not None:
            self._index.load()
            for file in self._index.files if self._live else ():
                freeze_index(file)

    def run(self, clean_exit: bool) -> RecoveryReport:
        """Brings what was loaded in order."""
        report = RecoveryReport(clean_exit)
        if not self._log.queue.files:
            self._forget_derived(report)
            return report
        start = self._start_file(clean_exit)
        report.walked_from = self._log.queue.files[start].from_offset
        report.log_end = self._find_end(start, report)
        if self._live:
            report.log_end, report.damage = settle_log(self._log.queue, report.log_end, report.damage)
        self._cut_log(report)
        self._cut_derived(report)
        self._dispatch(report)
        if not clean_exit:
            self._sync_log(start)
        if not clean_exit or report.dispatched_from < report.log_end:
            self._sync_derived()
        return report

    # -- where to start --------------------------------------------------------------------------------------

    def _start_file(self, clean_exit: bool) -> int:
        files = self._log.queue.files
        if clean_exit:
            return max(0, len(files) - _FILES_AFTER_CLEAN_EXIT)
        safe = self._checkpoint.min_timestamp
        for number in range(len(files) - 1, 0, -1):
            magic = int.from_bytes(files[number].map.view[4:8], "big")
            if magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2):
                stored = self._records.store_timestamp(files[number].from_offset)
                if 0 < stored <= safe:
                    return number
        return 0

    # -- the walk --------------------------------------------------------------------------------------------

    def _find_end(self, start: int, report: RecoveryReport) -> int:
        """Walks from a file on; the end is behind the last valid record, wherever that is."""
        files = self._log.queue.files[start:]
        end = files[0].from_offset
        unsure: DamagedRange | None = None
        """Bytes that are damage if a valid record follows, and the tail if none does."""
        total = len(files) * self._log.queue.file_size
        for file in files:
            position = 0
            while position < file.size:
                rows, reached, code = kernels.walk(
                    file.map.view, file.from_offset, position, file.size, self._check_crc, None, _WALK_ROWS
                )
                reason = Reason(code)
                if reached > position or reason is Reason.BLANK:
                    if unsure is not None:
                        report.damage.append(unsure)
                        unsure = None
                    reached = file.size if reason is Reason.BLANK else reached
                    end = file.from_offset + reached
                if len(rows):
                    self._log.newest_timestamp = int(rows["store_timestamp"][-1])
                    file.store_timestamp = self._log.newest_timestamp
                position = reached
                self._progress(file.from_offset + reached - files[0].from_offset, total)
                if reason in (Reason.FULL, Reason.BLANK, Reason.STOP):
                    continue
                if reason is Reason.UNWRITTEN and file is files[-1] and file.used(reached) == reached:
                    return end
                position = self._next_valid(file, reached)
                here = file.from_offset + reached
                unsure = _widen(unsure, here, file.from_offset + position, reason)
        return end

    def _next_valid(self, file: MappedFile, position: int) -> int:
        found = kernels.find_record(file.map.view, file.from_offset, position + 1, file.size, True)
        return file.size if found < 0 else found

    # -- bringing in line ------------------------------------------------------------------------------------

    def _cut_log(self, report: RecoveryReport) -> None:
        """Keeps torn bytes aside, then zeroes them; files behind the end go, to quarantine unless all zero."""
        end = report.log_end
        for file in () if self._live else self._log.queue.files:
            position = max(end - file.from_offset, 0)
            used = file.used(position) if position < file.size else position
            if used > position:
                torn = bytes(file.map.view[position:used])
                kept = self._quarantine.keep(f"commitlog-{file.from_offset + position:020d}", torn)
                report.torn_bytes += len(torn)
                report.notes.append(
                    f"{file.path}: {len(torn)} bytes at {file.from_offset + position} behind the last valid record "
                    f"were cut off and kept in {kept}"
                )
        self._log.queue.truncate(end, zero=not self._live)
        for found in report.damage:
            report.notes.append(
                f"no valid record in {found.size} bytes at {found.physical_offset} ({found.reason}); "
                "everything after them is served"
            )

    def _cut_derived(self, report: RecoveryReport) -> None:
        for queue in self._queues:
            if queue.max_physical_offset > report.log_end:
                report.units_cut += queue.truncate(report.log_end)
            elif not report.clean_exit:
                queue.files.truncate(queue.files.max_offset)
                if self._is_last_unit_torn(queue, report.walked_from):
                    queue.cut_last()
        if report.units_cut and not self._live:
            report.notes.append(f"{report.units_cut} queue units pointed behind the log's end and were cut off")
        if self._index is not None:
            last = self._index.end_offset
            if not report.clean_exit and not self._live:
                self._index.keep_before(report.walked_from, self._records.store_timestamp)
            elif last >= report.log_end:
                self._index.rewind(report.log_end, self._records.store_timestamp)
            elif self._live and last >= report.walked_from:
                # The last record may be half indexed: all its keys are taken back, and dispatched again.
                self._index.rewind(last, self._records.store_timestamp)

    def _is_last_unit_torn(self, queue: ConsumeQueue, walked_from: int) -> bool:
        """A unit may lie across two pages, and a power cut may have kept the first one only: its tags code tells."""
        offset, size, tags_code = queue.unit(queue.max_offset - 1)
        if offset < walked_from or size == NO_RECORD_SIZE or is_ext_address(tags_code):
            return False
        record, _ = self._records.raw(offset, size)
        return record is not None and self._dispatcher.tags_code(record, offset) != tags_code

    def _dispatch(self, report: RecoveryReport) -> None:
        lowest = max(self._log.min_offset, 0)
        report.queues_end = max(self._queues.max_physical_offset, lowest)
        units_before = sum(queue.max_offset for queue in self._queues)
        start = self._dispatch_start(report, lowest)
        try:
            self._dispatch_from(start, gap_is_error=start > lowest)
        except GapInQueue as gap:
            report.notes.append(f"units are missing ({gap}): all queues are completed from the log's beginning")
            start = lowest
            self._dispatch_from(start, gap_is_error=False)
        report.dispatched_from = start
        report.units_added = sum(queue.max_offset for queue in self._queues) - units_before
        for queue in self._queues:
            queue.correct_min_offset(lowest)
            self._log.set_next_offset(queue.topic, queue.queue_id, queue.max_offset)

    def _dispatch_start(self, report: RecoveryReport, lowest: int) -> int:
        """What dispatch finds already there it leaves alone, so it may begin too early, and never too late.

        A whole queue may be gone, which only its records tell: so all that was walked. The index may be gone, too.
        Where queues and index are as the last close left them, what it noted is enough; where there is less, all of it.
        """
        state = self._state
        if state is not None and report.clean_exit and state.position <= report.log_end:
            now = DispatchState.of(state.position, self._queues, self._index)
            if now == state:
                return max(state.position, lowest)
            if now.queues < state.queues or now.units < state.units:
                return lowest
        start = min(report.queues_end, report.walked_from)
        return start if self._index is None else min(start, max(self._index.end_offset, lowest))

    def _dispatch_from(self, start: int, *, gap_is_error: bool) -> None:
        self._dispatcher.position = start
        self._dispatcher.gap_is_error = gap_is_error
        self._dispatcher.catch_up()
        self._dispatcher.gap_is_error = False
        self._dispatcher.timestamp = max(self._dispatcher.timestamp, self._log.newest_timestamp)

    def _sync_log(self, start: int) -> None:
        """What a killed process left in the page cache counts as flushed from now on, so it must be on disk."""
        for file in self._log.queue.files[start:]:
            file.map.sync()

    def _sync_derived(self) -> None:
        """The checkpoint will say that queues and index are complete, so they must be on disk."""
        for queue in self._queues:
            for file in queue.files.files:
                file.map.sync()
        for table in () if self._index is None else self._index.files:
            table.sync()

    def _forget_derived(self, report: RecoveryReport) -> None:
        """No log at all: queues and index describe nothing, and would hide what is written next."""
        for folder in (self._queues.folder, None if self._index is None else self._index.folder):
            if folder is not None and self._quarantine.holds_something(folder):
                kept = self._quarantine.take(folder)
                report.notes.append(f"there is no commit log: {folder} was moved to {kept}")
        self._queues.close()
        if self._index is not None:
            self._index.close()


def _widen(unsure: DamagedRange | None, begin: int, end: int, reason: Reason) -> DamagedRange:
    if unsure is None:
        return DamagedRange(begin, end - begin, reason.name)
    return DamagedRange(unsure.physical_offset, end - unsure.physical_offset, unsure.reason)
