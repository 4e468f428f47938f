"""The last part of a start: what is missing in queues and index is built from the log.

What dispatch finds already there it leaves alone, so it may begin too early, and never too late. It begins at the
lowest of these positions of the log:

- where everything was dispatched: after a clean exit what the note says, if nobody has written since; after a crash
  where the walk began; after another process has dispatched what its note says
- where a queue ends that has fewer units than the note says (its folder may have been removed), or that was cut
- where the index ends, unless the note says that nothing is missing there

Should it still meet a record whose predecessors have no units, it begins again where that queue ends. A hole behind the
position where it began is no such case: the records are missing in the log itself, and their places are kept.
"""

from __future__ import annotations

from contextlib import nullcontext

from penstock.store.consume_queue import ConsumeQueue, GapInQueue
from penstock.store.dispatch_state import DispatchState, QueueNote
from penstock.store.engine import Engine
from penstock.store.recovery.index_part import IndexPart
from penstock.store.recovery.log_part import LogPart
from penstock.store.recovery.report import DISPATCH, Meter, RecoveryReport, Tell

_MOST_RESTARTS = 8
_WORTH_A_THREAD = 16 << 20


class Dispatching:
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
        self, log: LogPart, index: IndexPart | None, behind: list[ConsumeQueue], report: RecoveryReport, tell: Tell
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
        for attempt in range(_MOST_RESTARTS + 1):
            try:
                self._dispatch_from(start, lowest, tell)
                break
            except GapInQueue as gap:
                start = lowest if attempt == _MOST_RESTARTS - 1 else max(gap.queue_end, lowest)
                report.notes.append(f"units are missing ({gap}): queues are completed from {start} on")
        report.dispatched_from = start
        self._keep_numbers(log.end)
        report.units_added = sum(queue.max_offset for queue in self._queues) - units_before
        for queue in self._queues:
            queue.correct_min_offset(lowest)
            self._log.set_next_offset(queue.topic, queue.queue_id, queue.max_offset)

    # -- where to begin --------------------------------------------------------------------------------------

    def _base(self, log: LogPart, report: RecoveryReport) -> int:
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
        ahead = dispatcher.looking_ahead() if goal - start >= _WORTH_A_THREAD else nullcontext()
        with ahead, dispatcher.refusing_gaps_before(no_gap_before):
            while dispatcher.position < goal:
                before = dispatcher.position
                with dispatcher.standstill():
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
