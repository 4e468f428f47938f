"""The last part of a start: what is missing in queues and index is built from the log.

What dispatch finds already there it leaves alone, so it may begin too early, and never too late. It begins at the
lowest of these positions of the log:

- where everything was dispatched: after a clean exit what the note says, if nobody has written since; after a crash
  where the walk began; after another process has dispatched what its note says
- where a queue ends that has fewer units than the note says (its folder may have been removed), or that was cut
- where the index ends, unless the note says that nothing is missing there

Should it still meet a record whose predecessors have no units, it begins again where that queue ends. A hole behind the
position where it began is no such case: the records are missing in the log itself, and their places are kept.


The queues' part of a start: which units can be believed, and the cut behind the last of them.

By names and sizes: files before a hole, a file of the wrong size or one with a wrong name are kept. By their units: up
to the first that is not whole or not in the log's order (of the last three files each unit, of the others the first and
the last). By the log: the last unit must point to a record of its topic, queue and queue offset, or to one that is
damaged or gone; if it does not, the units before it are asked, too. The rest is kept aside and built again from the
log. What points behind the log's end describes nothing, and is only counted.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.format import kernels
from penstock.format.placeholder import is_placeholder
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, is_ext_address
from penstock.format.record import Record, decode_record
from penstock.format.rows import Reason
from penstock.store.consume_queue import ConsumeQueue, GapInQueue
from penstock.store.damage import DamagedRange, Quarantine
from penstock.store.dispatch_state import DispatchState, FileSizes, QueueNote
from penstock.store.engine import Engine
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import FolderListing, file_name, list_data_files
from penstock.store.records import belongs_to
from penstock.store.recovery.index import IndexRecovery
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.report import DISPATCH, Meter, RecoveryReport, Tell

_MAX_RESTARTS = 8
_WORTH_A_THREAD = 16 << 20


class Redispatch:
    """Decides where to begin, and dispatches."""

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
        self._dispatcher = engine.dispatcher
        self._state = state
        self._state_is_garbage = state_is_garbage
        self._external = external

    def run(
        self,
        log: LogRecovery,
        index: IndexRecovery | None,
        behind: list[ConsumeQueue],
        report: RecoveryReport,
        tell: Tell,
    ) -> None:
        """Raises StoreFailed, and can be done again."""
        lowest = max(self._log.min_offset, 0)
        report.queues_end = max(self._queues.max_physical_offset, lowest)
        units_before = sum(queue.max_offset for queue in self._queues)
        self._dispatcher.set_damage(log.damage)
        starts = [self._base(log, report), *(self._end_of(queue, lowest) for queue in behind), *self._lost(lowest)]
        if index is not None:
            clean = report.clean_exit and not self._external
            starts.append(index.complete_before(log, self._state, clean))
        start = max(min(starts), lowest)
        for attempt in range(_MAX_RESTARTS + 1):
            try:
                self._dispatch_from(start, lowest, tell)
                break
            except GapInQueue as gap:
                start = lowest if attempt == _MAX_RESTARTS - 1 else max(gap.queue_end, lowest)
                report.notes.append(f"units are missing ({gap}): queues are completed from {start} on")
        report.dispatched_from = start
        self._keep_numbers(log.end)
        report.units_added = sum(queue.max_offset for queue in self._queues) - units_before
        for queue in self._queues:
            queue.correct_min_offset(lowest)
            self._log.set_next_offset(queue.topic, queue.queue_id, queue.max_offset)

    # -- where to begin --------------------------------------------------------------------------------------

    def _base(self, log: LogRecovery, report: RecoveryReport) -> int:
        """Before this, all queues are complete that are not known to lack something."""
        if self._state_is_garbage:
            return 0
        state = self._state
        if self._external:
            return 0 if state is None else min(state.position, log.end)
        if state is not None and report.clean_exit and state.position <= log.end:
            counts = {(noted.topic, noted.queue_id): noted.count for noted in state.queues}
            if all(queue.max_offset <= counts.get((queue.topic, queue.queue_id), 0) for queue in self._queues):
                return state.position
        return min(report.queues_end, log.walked_from)

    def _lost(self, lowest: int) -> list[int]:
        """Where the queues end that have fewer units than were noted."""
        ends: list[int] = []
        for noted in self._noted():
            queue = self._queues.find(noted.topic, noted.queue_id)
            if queue is None or queue.max_offset < noted.count:
                ends.append(self._end_of(queue, lowest))
        return ends

    def _noted(self) -> list[QueueNote]:
        """The queues that must be there: not those of topics that were deleted, or that have begun anew."""
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

    def _dispatch_from(self, start: int, lowest: int, tell: Tell) -> None:
        dispatcher = self._dispatcher
        dispatcher.move_to(start)
        no_gap_before = start if start > lowest else -1
        goal = self._log.confirmed_offset
        meter = Meter(tell, DISPATCH, goal - start)
        ahead = dispatcher.prefetching() if goal - start >= _WORTH_A_THREAD else nullcontext()
        with ahead, dispatcher.refusing_gaps_before(no_gap_before):
            while dispatcher.position < goal:
                before = dispatcher.position
                with dispatcher.paused():
                    dispatcher.step()
                meter.add(dispatcher.position - before)
        dispatcher.advance_timestamp(self._log.newest_timestamp)

    def _keep_numbers(self, log_end: int) -> None:
        """A queue whose last messages are damaged or gone goes on behind their numbers: a consumer is past them.

        One with less units and a younger last one begins anew: its topic was deleted, and made again, by RocketMQ.
        """
        for noted in self._noted():
            queue = self._queues.find(noted.topic, noted.queue_id)
            begins_anew = queue is not None and queue.max_physical_offset > noted.end
            if noted.end <= log_end and not begins_anew and (queue is None or queue.max_offset < noted.count):
                queue = queue or self._queues.find_or_add(noted.topic, noted.queue_id)
                if queue is not None:
                    unit = self._dispatcher.placeholders.unit_for_gap(queue.max_physical_offset, log_end)
                    queue.fill_up_to(noted.count, unit)


class _Found(msgspec.Struct):
    """One queue, and what is wrong with it."""

    queue: ConsumeQueue
    shape: FolderListing
    gone: list[MappedFile]
    """Mapped files behind the units that stay, last first."""
    behind_log: int = 0
    """How many sound units point behind the log's end."""
    distrusted: bool = False
    """Whether there is something else behind the units that stay."""
    torn: bool = False
    """Whether the last unit is half written."""
    aside: tuple[MappedFile, int, int] | None = None
    """The part of the last file that is kept aside: its position and end."""

    @property
    def files_aside(self) -> list[Path]:
        """Files that hold something and do not stay, last first."""
        mapped = [file.path for file in self.gone if file.nonzero_end(0)]
        stay = {*self.shape.valid_start, self.shape.unfinished}
        found = {*self.shape.offsets, *self.shape.wrong_sizes, *self.shape.misplaced}
        others = sorted(found - stay, reverse=True)
        return [*(self.queue.files.folder / file_name(offset) for offset in others), *mapped]


class QueueRecovery:
    """Looks at all queues, then cuts those that need it."""

    def __init__(self, engine: Engine, *, live: bool) -> None:
        self._io = engine.io
        self._queues = engine.queues
        self._log = engine.log
        self._dispatcher = engine.dispatcher
        self._live = live
        self._found: list[_Found] = []
        self.behind: list[ConsumeQueue] = []
        """Queues that lack units which they had."""

    # -- looking ---------------------------------------------------------------------------------------------

    def load(self, noted: FileSizes | None) -> None:
        """Maps what can be used. Raises BadStore for what is foreign, or if the settings do not fit the files."""
        size = self._queues.file_size
        shapes = [(queue, list_data_files(self._io, queue.files.folder, size)) for queue in self._queues.find_all()]
        self._refuse_other_size([shape for _, shape in shapes], noted)
        for queue, shape in shapes:
            queue.files.map_files(shape.valid_start)
            self._found.append(_Found(queue, shape, queue.cut_to_valid()))

    def _refuse_other_size(self, shapes: list[FolderListing], noted: FileSizes | None) -> None:
        """All files of one other size: then the setting is wrong, unless a note says no."""
        size = self._queues.file_size
        wrong = {found for shape in shapes for found in shape.wrong_sizes.values()}
        fits = any(shape.offsets or shape.misplaced for shape in shapes) or (noted and noted.consume_queue == size)
        if len(wrong) != 1 or fits or max(wrong) % UNIT_SIZE or not max(wrong):
            return
        raise BadStore(
            "the files of the queues have another size than the settings say; set the size that they have, or move the "
            "folder elsewhere to have the queues built again",
            path=self._queues.folder,
            expected=f"{size} bytes",
            found=f"{max(wrong)} bytes",
        )

    def look(self, log: LogRecovery, clean: bool) -> None:
        """Judges the units by the log; changes nothing but what is known in memory."""
        for found in self._found:
            queue = found.queue
            sound = queue.max_offset
            in_log = queue.count_before(log.end) if queue.max_physical_offset > log.end else sound
            believed = self._believable(queue, in_log, log)
            found.behind_log = sound - in_log
            found.torn = not clean and believed == sound and self._is_last_torn(queue, log.walked_from)
            found.distrusted = believed < in_log or bool(found.gone or found.files_aside)
            found.gone += queue.keep_first(believed - found.torn)
            last = queue.files.last
            if last is not None and not self._live:
                position = min(last.wrote + found.torn * UNIT_SIZE, last.size)
                used = last.nonzero_end(position) if position < last.size else position
                if used > position and not (found.behind_log and not found.distrusted):
                    found.aside, found.distrusted = (last, position, used), True

    def _believable(self, queue: ConsumeQueue, count: int, log: LogRecovery) -> int:
        """How many of the first `count` units are the queue's own, as far as the last one tells."""
        low = queue.files.files[0].from_offset // UNIT_SIZE if queue.files.files else 0
        if count <= low or self._is_own(queue, count - 1, log):
            return count
        high = count - 1
        while low < high:  # the own ones come first
            middle = (low + high) // 2
            if self._is_own(queue, middle, log):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_own(self, queue: ConsumeQueue, number: int, log: LogRecovery) -> bool:
        """Whether a unit may point to what it points to; False only if that is certainly not its record."""
        found = self._ask(queue, number, log)
        if isinstance(found, bool):
            return found
        home = self._queues.find(found.topic, found.queue_id)
        if home is not None and home.points_to(found.queue_offset, found.physical_offset, found.size):
            return False
        # Damage to one record's header spares the next: if that is another's, too, the units are not this queue's.
        first = queue.files.files[0].from_offset // UNIT_SIZE
        beside = number - 1 if number > first else number + 1
        return beside >= queue.max_offset or isinstance(self._ask(queue, beside, log), bool)

    def _ask(self, queue: ConsumeQueue, number: int, log: LogRecovery) -> bool | Record:
        """Whether a unit's record is its own, as far as can be told; the record if it says that it is another's."""
        offset, size, _ = queue.unit(number)
        if size == NO_RECORD_SIZE or offset < self._log.min_offset or _is_in(log.damage, offset):
            return True
        data = self._log.read(offset, size)
        if data is None:
            return False  # no record is so long that it leaves its file
        if kernels.check_record(data, 0, offset, False) != Reason.STOP:
            return offset < log.walked_from  # there damage may be unknown
        if int.from_bytes(data[:4], "big") != size:
            return False
        if belongs_to(data, queue.topic_bytes, queue.queue_id, number):
            return True
        record = decode_record(data)
        return is_placeholder(record.topic, size) or record

    def _is_last_torn(self, queue: ConsumeQueue, walked_from: int) -> bool:
        """A unit may lie across two pages, and a power cut may have kept the first one only: its tags code tells."""
        offset, size, tags_code = queue.unit(queue.max_offset - 1)
        if offset < walked_from or size == NO_RECORD_SIZE or is_ext_address(tags_code):
            return False
        data = self._log.read(offset, size)
        if data is None or kernels.check_record(data, 0, offset, False) != Reason.STOP:
            return False
        if not belongs_to(data, queue.topic_bytes, queue.queue_id, queue.max_offset - 1):
            return False  # the record's header is damaged: what code it would get says nothing of the unit
        return self._dispatcher.tags_code(data, offset) != tags_code

    @property
    def room_needed(self) -> int:
        """Bytes that will be kept aside."""
        needed = 0
        for found in self._found:
            needed += sum(self._io.allocated(path) for path in found.files_aside)
            if found.aside is not None:
                _, begin, end = found.aside
                needed += end - begin
        return needed

    # -- acting ----------------------------------------------------------------------------------------------

    def bring_in_order(self, quarantine: Quarantine, report: RecoveryReport, clean: bool) -> None:
        """Raises StoreFailed, and can be done again."""
        for found in self._found:
            kept = [] if self._live else self._keep_aside(found, quarantine)
            for file in found.gone:
                file.shut_down()
                self._io.unlink(file.path)
            queue, last = found.queue, found.queue.files.last
            queue.files.remove_unfinished(found.shape)
            if last is not None and not self._live and (not clean or found.behind_log or found.distrusted):
                last.zero(last.wrote)
            report.units_cut += found.behind_log
            if found.distrusted or found.torn:
                self.behind.append(queue)
            if kept:
                report.kept_aside += map(str, kept)
                report.notes.append(
                    f"queue {queue.topic}/{queue.queue_id}: what lay from offset {queue.max_offset} on could not be "
                    f"believed; it was kept in {kept[0].parent}, and is built again from the log"
                )
        if report.units_cut and not self._live:
            report.notes.append(f"{report.units_cut} queue units pointed behind the log's end and were cut off")

    @staticmethod
    def _keep_aside(found: _Found, quarantine: Quarantine) -> list[Path]:
        kept = [quarantine.move_in(path) for path in found.files_aside]
        if found.aside is not None:
            file, begin, end = found.aside
            name = f"consumequeue-{found.queue.topic}-{found.queue.queue_id}-{file_name(file.from_offset + begin)}"
            with file.map.view[begin:end] as rest:
                kept.append(quarantine.keep(name, rest))
        return kept

    def sync(self) -> None:
        """The checkpoint will say that the queues are complete, so they must be on disk."""
        for queue in self._queues:
            for file in queue.files.files:
                file.map.sync()


def _is_in(damage: list[DamagedRange], offset: int) -> bool:
    return any(each.physical_offset <= offset < each.end for each in damage)
