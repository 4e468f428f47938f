"""Recovery of the consume queues, and the dispatch that completes queues and index from the log.

`QueueRecovery` truncates each queue after its last trusted unit. Four checks decide:

- Names and sizes: files are valid up to the first hole, wrong size or wrong name.
- Units: they are valid up to the first that is incomplete or out of the log's order. Recovery checks each unit of the
  last three files, and the first and the last unit of the other files.
- The log: the last unit must point to a record of its topic, queue and queue offset, or to a damaged or deleted one.
  If it does not, a binary search finds the last unit that does.
- If data after that unit is not valid, the last unit that stays must match its record, because dispatch starts there.

Recovery quarantines the data after that unit and rebuilds it from the log. Units that point past the log's end are
counted and dropped.

`Redispatch` is idempotent, so it may start too early, but never too late. The note of dispatch (`dispatch_checkpoint`)
says how far queues and index were complete. `Redispatch` starts at the lowest of these log positions:

- the position that dispatch had reached. After a clean exit: the position in the note, if no unit was added since.
  After a crash: the beginning of the walk, or the end of the queues if that is lower, or the position in the note if
  queues were ahead of it. After external dispatch: the position in the job's note.
- the end of each queue that was truncated, or that has fewer units than the note says (its folder may be missing)
- the end of the index, unless the note shows that the index is complete

If dispatch still meets a record whose predecessors have no units, it starts again at that queue's end. If the queue
ends at or after the start position, the log itself lacks the missing records; their queue offsets stay reserved.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.damage_placeholder import is_placeholder
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, is_ext_address
from penstock.format.record import Record, decode_record
from penstock.format.record_layout import belongs_to, size_and_magic
from penstock.store.consume_queue import ConsumeQueue, GapInQueue
from penstock.store.damage_and_quarantine import DamagedRange, Quarantine
from penstock.store.dispatch_checkpoint import DispatchState, FileSizes, QueueNote
from penstock.store.engine_parts import Engine
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import FolderListing, file_name, list_data_files
from penstock.store.recovery.index import IndexRecovery
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.report import DISPATCH, OnProgress, ProgressMeter, RecoveryReport

_MAX_RESTARTS = 8
_WORTH_A_THREAD = 16 << 20
_WRITE_EVERY = 256 << 20
"""Bytes of the log after which what was derived from them begins to go to the disk."""


class _InspectedQueue(msgspec.Struct):
    """One queue, and the changes that recovery will make in it."""

    queue: ConsumeQueue
    shape: FolderListing
    removed: list[MappedFile]
    """Mapped files after the units that stay, last first."""
    past_log: int = 0
    """How many valid units point past the log's end."""
    blank: int = 0
    """How many units at the end of a slave's queue point to no record, and go: its master may send their records."""
    distrusted: bool = False
    """Whether invalid data follows the units that stay."""
    torn: bool = False
    """Whether the last unit is a torn write."""
    aside: tuple[MappedFile, int, int] | None = None
    """The part of the last file that will be quarantined: file, and positions of its begin and end in bytes."""

    @property
    def files_aside(self) -> list[Path]:
        """Files that hold data and will be quarantined, last first."""
        mapped = [file.path for file in self.removed if file.map.nonzero_end(0)]
        stay = {*self.shape.valid_start, self.shape.unfinished}
        listed = {*self.shape.offsets, *self.shape.wrong_sizes, *self.shape.misplaced}
        others = sorted(listed - stay, reverse=True)
        return [*(self.queue.files.folder / file_name(offset) for offset in others), *mapped]


class QueueRecovery:
    """Inspects all queues, then truncates those that need it."""

    def __init__(self, engine: Engine, *, live: bool) -> None:
        self._io = engine.io
        self._queues = engine.queues
        self._log = engine.log
        self._dispatcher = engine.dispatcher
        self._live = live
        self._inspected: list[_InspectedQueue] = []
        self.incomplete: list[ConsumeQueue] = []
        """Queues that lost units; dispatch must rebuild these units."""

    # -- inspecting ------------------------------------------------------------------------------------------

    def load(self, noted: FileSizes | None) -> None:
        """Maps the valid files. `noted`: the file sizes in the dispatch note, if there is one.

        Raises BadStore for a foreign file, or if the settings do not match the files.
        """
        size = self._queues.file_size
        shapes = [(queue, list_data_files(self._io, queue.files.folder, size)) for queue in self._queues.find_all()]
        self._refuse_other_size([shape for _, shape in shapes], noted)
        for queue, shape in shapes:
            queue.files.map_files(shape.valid_start)
            self._inspected.append(_InspectedQueue(queue, shape, queue.cut_to_valid()))

    def _refuse_other_size(self, shapes: list[FolderListing], noted: FileSizes | None) -> None:
        """Raises BadStore if all files share another size than the settings say.

        Does not raise if the dispatch note confirms the settings: then the files are damaged.
        """
        size = self._queues.file_size
        wrong = {wrong_size for shape in shapes for wrong_size in shape.wrong_sizes.values()}
        fits = any(shape.offsets or shape.misplaced for shape in shapes) or (noted and noted.consume_queue == size)
        if len(wrong) != 1 or fits or max(wrong) % UNIT_SIZE or not max(wrong):
            return
        raise BadStore(
            "the size of the queue files does not match mappedFileSizeConsumeQueue; set the size that they have, or "
            "move the folder elsewhere to have the queues rebuilt",
            path=self._queues.folder,
            expected=f"{size} bytes",
            found=f"{max(wrong)} bytes",
        )

    def inspect(self, log: LogRecovery, clean: bool) -> None:
        """Checks the units against the log and changes nothing on disk."""
        for inspected in self._inspected:
            queue = inspected.queue
            sound = queue.max_offset
            in_log = queue.count_before(log.end) if queue.max_physical_offset > log.end else sound
            inspected.past_log = sound - in_log
            inspected.blank = self._count_blank(queue, in_log)
            in_log -= inspected.blank
            trusted = self._count_trusted(queue, in_log, log)
            inspected.torn = not clean and trusted == sound and self._is_last_torn(queue, log.walked_from)
            inspected.distrusted = trusted < in_log or bool(inspected.removed or inspected.files_aside)
            kept = trusted - inspected.torn
            inspected.removed += queue.keep_first(kept)
            self._find_rest(inspected, inspected.torn * UNIT_SIZE)
            proven = self._count_proven(queue, kept, log) if inspected.distrusted else kept
            if proven < kept:
                inspected.removed += queue.keep_first(proven)
                self._find_rest(inspected, 0)

    def _count_blank(self, queue: ConsumeQueue, count: int) -> int:
        """Returns how many of the last of a slave's first `count` units point to no record.

        They stand for messages that were lost in a gap of the log. If the log was cut there, the master sends the
        messages again, with the same queue offsets. If it was not, the next record of the queue fills the gap again.
        """
        if self._live or not self._log.role.takes_replica_bytes:
            return 0
        low = queue.files.files[0].from_offset // UNIT_SIZE if queue.files.files else 0
        kept = count
        while kept > low and queue.unit(kept - 1)[1] == NO_RECORD_SIZE:
            kept -= 1
        return count - kept

    def _find_rest(self, inspected: _InspectedQueue, torn_bytes: int) -> None:
        """Finds what follows the units that stay in their file, behind `torn_bytes` that need not be kept."""
        last = inspected.queue.files.last
        if last is None or self._live:
            return
        position = min(last.wrote + torn_bytes, last.size)
        used = last.map.nonzero_end(position) if position < last.size else position
        if used > position and not ((inspected.past_log or inspected.blank) and not inspected.distrusted):
            inspected.aside, inspected.distrusted = (last, position, used), True

    def _count_proven(self, queue: ConsumeQueue, count: int, log: LogRecovery) -> int:
        """Returns how many of the first `count` units stay if those behind them are to be rebuilt.

        Dispatch starts where the last of them ends, so that unit must match its record: a wrong one could point far
        ahead, and the messages between would be in no queue.
        """
        low = queue.files.files[0].from_offset // UNIT_SIZE if queue.files.files else 0
        while count > low and not self._is_proven(queue, count - 1, log):
            count -= 1
        return count

    def _is_proven(self, queue: ConsumeQueue, number: int, log: LogRecovery) -> bool:
        """Whether a unit matches its record; also if that was deleted, is known to be damaged, or never existed."""
        offset, size, _ = queue.unit(number)
        if size == NO_RECORD_SIZE or offset < self._log.min_offset or _is_in(log.damage, offset):
            return True
        data = self._log.read(offset, size)
        if data is None or kernels.check_record(data, 0, offset, False) != Reason.STOP:
            return False
        return size_and_magic(data)[0] == size and belongs_to(data, queue.topic_bytes, queue.queue_id, number)

    def _count_trusted(self, queue: ConsumeQueue, count: int, log: LogRecovery) -> int:
        """Returns how many of the first `count` units belong to the queue.

        Checks the last unit only. If that unit belongs to another queue, a binary search finds the first foreign one.
        """
        low = queue.files.files[0].from_offset // UNIT_SIZE if queue.files.files else 0
        if count <= low or self._may_be_own(queue, count - 1, log):
            return count
        high = count - 1
        while low < high:  # the queue's own units come first
            middle = (low + high) // 2
            if self._may_be_own(queue, middle, log):
                low = middle + 1
            else:
                high = middle
        return low

    def _may_be_own(self, queue: ConsumeQueue, number: int, log: LogRecovery) -> bool:
        """Whether the unit may belong to the queue; False only if its record certainly belongs to another queue."""
        owner = self._check_unit(queue, number, log)
        if isinstance(owner, bool):
            return owner
        home = self._queues.find(owner.topic, owner.queue_id)
        if home is not None and home.points_to(owner.queue_offset, owner.physical_offset, owner.size):
            return False
        # A damaged record header affects one unit only: if the neighbour points elsewhere too, neither unit is ours.
        first = queue.files.files[0].from_offset // UNIT_SIZE
        beside = number - 1 if number > first else number + 1
        return beside >= queue.max_offset or isinstance(self._check_unit(queue, beside, log), bool)

    def _check_unit(self, queue: ConsumeQueue, number: int, log: LogRecovery) -> bool | Record:
        """Returns True if the unit matches its record or cannot be checked, False if it cannot be valid.

        Returns the record if the record names another queue.
        """
        offset, size, _ = queue.unit(number)
        if size == NO_RECORD_SIZE or offset < self._log.min_offset or _is_in(log.damage, offset):
            return True
        data = self._log.read(offset, size)
        if data is None:
            return False  # a record never crosses a file end
        if kernels.check_record(data, 0, offset, False) != Reason.STOP:
            return offset < log.walked_from  # not walked, so it may be damage that is not known yet
        if size_and_magic(data)[0] != size:
            return False
        if belongs_to(data, queue.topic_bytes, queue.queue_id, number):
            return True
        record = decode_record(data)
        return is_placeholder(record.topic, size) or record

    def _is_last_torn(self, queue: ConsumeQueue, walked_from: int) -> bool:
        """Whether the last unit is a torn write: its tags code is wrong.

        A unit may span two pages of memory, and after a power loss only the first may be on disk.
        """
        offset, size, tags_code = queue.unit(queue.max_offset - 1)
        if offset < walked_from or size == NO_RECORD_SIZE or is_ext_address(tags_code):
            return False
        data = self._log.read(offset, size)
        if data is None or kernels.check_record(data, 0, offset, False) != Reason.STOP:
            return False
        if not belongs_to(data, queue.topic_bytes, queue.queue_id, queue.max_offset - 1):
            return False  # the record's header is damaged, so its tags code proves nothing
        return self._dispatcher.tags_code(data, offset) != tags_code

    @property
    def room_needed(self) -> int:
        """Bytes that will go to the quarantine."""
        needed = 0
        for inspected in self._inspected:
            needed += sum(self._io.allocated(path) for path in inspected.files_aside)
            if inspected.aside is not None:
                _, begin, end = inspected.aside
                needed += end - begin
        return needed

    # -- applying --------------------------------------------------------------------------------------------

    def apply(self, quarantine: Quarantine, report: RecoveryReport, clean: bool) -> None:
        """Makes the changes that `inspect` determined. Idempotent. Raises StoreFailed."""
        for inspected in self._inspected:
            kept = [] if self._live else self._quarantine_rest(inspected, quarantine)
            for file in inspected.removed:
                file.shut_down()
                self._io.unlink(file.path)
            queue, last = inspected.queue, inspected.queue.files.last
            queue.files.remove_unfinished(inspected.shape)
            is_cut = bool(inspected.past_log or inspected.blank or inspected.distrusted)
            if last is not None and not self._live and (not clean or is_cut):
                last.zero(last.wrote)
            report.units_cut += inspected.past_log
            if inspected.distrusted or inspected.torn:
                self.incomplete.append(queue)
            if kept:
                report.kept_aside += map(str, kept)
                report.notes.append(
                    f"queue {queue.topic}/{queue.queue_id}: data from offset {queue.max_offset} on is not valid; it "
                    f"was moved to {kept[0].parent} and is rebuilt from the log"
                )
        if report.units_cut and not self._live:
            report.notes.append(f"{report.units_cut} queue units pointed past the log's end and were removed")

    @staticmethod
    def _quarantine_rest(inspected: _InspectedQueue, quarantine: Quarantine) -> list[Path]:
        kept = [quarantine.move_in(path) for path in inspected.files_aside]
        if inspected.aside is not None:
            file, begin, end = inspected.aside
            name = (
                f"consumequeue-{inspected.queue.topic}-{inspected.queue.queue_id}-{file_name(file.from_offset + begin)}"
            )
            with file.map.view[begin:end] as rest:
                kept.append(quarantine.keep(name, rest))
        return kept

    def sync(self) -> None:
        """Syncs all files. Must run before the checkpoint covers the queues."""
        for queue in self._queues:
            for file in queue.files.files:
                file.map.sync()


def _is_in(damage: list[DamagedRange], offset: int) -> bool:
    return any(each.physical_offset <= offset < each.end for each in damage)


class Redispatch:
    """Decides at which log position to start, and dispatches from there up to the log's end."""

    def __init__(
        self,
        engine: Engine,
        state: DispatchState | None,
        *,
        state_is_garbage: bool,
        external: bool = False,
    ) -> None:
        self._log = engine.log
        self._queues = engine.queues
        self._index = engine.index
        self._dispatcher = engine.dispatcher
        self._state = state
        self._state_is_garbage = state_is_garbage
        self._external = external

    def run(
        self,
        log: LogRecovery,
        index: IndexRecovery | None,
        incomplete: list[ConsumeQueue],
        report: RecoveryReport,
        on_progress: OnProgress,
    ) -> None:
        """Dispatches to the queues, and to the index if there is one. `incomplete`: the queues that lost units.

        Idempotent. Raises StoreFailed.
        """
        lowest = max(self._log.min_offset, 0)
        report.queues_end = max(self._queues.max_physical_offset, lowest)
        units_before = sum(queue.max_offset for queue in self._queues)
        self._dispatcher.set_damage(log.damage)
        starts = [
            self._base(log, report),
            *(self._end_of(queue, lowest) for queue in incomplete),
            *self._shortened_ends(lowest),
        ]
        if index is not None:
            clean = report.clean_exit and not self._external
            starts.append(index.complete_before(log, self._state, clean))
        start = max(min(starts), lowest)
        for attempt in range(_MAX_RESTARTS + 1):
            try:
                self._dispatch_from(start, lowest, on_progress)
                break
            except GapInQueue as gap:
                start = lowest if attempt == _MAX_RESTARTS - 1 else max(gap.queue_end, lowest)
                report.notes.append(f"units are missing ({gap}): dispatching again from {start}")
        report.dispatched_from = start
        self._keep_queue_offsets(log.end)
        report.units_added = sum(queue.max_offset for queue in self._queues) - units_before
        for queue in self._queues:
            queue.correct_min_offset(lowest)
            self._log.set_next_offset(queue.topic, queue.queue_id, queue.max_offset)

    # -- where to start --------------------------------------------------------------------------------------

    def _base(self, log: LogRecovery, report: RecoveryReport) -> int:
        """Returns the log position before which all queues are complete, except queues known to have lost units."""
        if self._state_is_garbage:
            return 0
        state = self._state
        if self._external:
            return 0 if state is None else min(state.position, log.end)
        if state is not None and report.clean_exit and state.position <= log.end:
            counts = {(noted.topic, noted.queue_id): noted.count for noted in state.queues}
            if all(queue.max_offset <= counts.get((queue.topic, queue.queue_id), 0) for queue in self._queues):
                return state.position
        base = min(report.queues_end, log.walked_from)
        if state is not None and any(noted.end > state.position for noted in state.queues):
            base = min(base, state.position)  # the whole log was being dispatched again: some queues were far ahead
        return base

    def _shortened_ends(self, lowest: int) -> list[int]:
        """Returns the log positions where queues end that have fewer units than the dispatch note says."""
        ends: list[int] = []
        for noted in self._expected_queues():
            queue = self._queues.find(noted.topic, noted.queue_id)
            if queue is None or queue.max_offset < noted.count:
                ends.append(self._end_of(queue, lowest))
        return ends

    def _expected_queues(self) -> list[QueueNote]:
        """Returns the queues of the dispatch note, without those that were deleted or restarted at offset 0 since."""
        deleted, restarts = self._dispatcher.deleted, self._dispatcher.restarts
        noted = [] if self._state is None else self._state.queues
        return [
            each
            for each in noted
            if each.count and each.end > max(deleted.get(each.topic, -2), restarts.get((each.topic, each.queue_id), -2))
        ]

    @staticmethod
    def _end_of(queue: ConsumeQueue | None, lowest: int) -> int:
        return lowest if queue is None or queue.max_physical_offset < 0 else queue.max_physical_offset

    # -- dispatching -----------------------------------------------------------------------------------------

    def _dispatch_from(self, start: int, lowest: int, on_progress: OnProgress) -> None:
        dispatcher = self._dispatcher
        dispatcher.move_to(start)
        no_gap_before = start if start > lowest else -1
        goal = self._log.confirmed_offset
        meter = ProgressMeter(on_progress, DISPATCH, goal - start)
        ahead = dispatcher.prefetching() if goal - start >= _WORTH_A_THREAD else nullcontext()
        with ahead, dispatcher.refusing_gaps_before(no_gap_before):
            written = start
            while dispatcher.position < goal:
                before = dispatcher.position
                with dispatcher.paused():
                    dispatcher.step()
                meter.add(dispatcher.position - before)
                if dispatcher.position - written >= _WRITE_EVERY:
                    written = dispatcher.position
                    self._start_writing()
            self._start_writing()
        if dispatcher.position >= self._log.watermarks.stored:  # a slave may wait for its master's confirm
            dispatcher.advance_timestamp(self._log.newest_timestamp)

    def _start_writing(self) -> None:
        """Has the disk work while the processor does: the sync at the end waits for what is left."""
        for queue in self._queues:
            for file in queue.files.files[-2:]:
                file.map.start_writing()
        for table in () if self._index is None else self._index.files[-2:]:
            table.map.start_writing()

    def _keep_queue_offsets(self, log_end: int) -> None:
        """Reserves the queue offsets of messages lost at the end of a queue: consumers may have read past them.

        Skips a queue that restarted at offset 0, because RocketMQ deleted and recreated its topic. Such a queue has
        fewer units than the dispatch note says, but its last unit points further into the log.
        """
        for noted in self._expected_queues():
            queue = self._queues.find(noted.topic, noted.queue_id)
            restarted = queue is not None and queue.max_physical_offset > noted.end
            if noted.end <= log_end and not restarted and (queue is None or queue.max_offset < noted.count):
                queue = queue or self._queues.find_or_add(noted.topic, noted.queue_id)
                if queue is not None:
                    unit = self._dispatcher.placeholders.unit_for_gap(queue.max_physical_offset, log_end)
                    queue.fill_up_to(noted.count, unit)
