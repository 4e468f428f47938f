"""Delivers delayed messages: each delay level is a queue of SCHEDULE_TOPIC_XXXX; due messages move to their real topic.

A unit of such a queue holds the due time of its message in place of the tags code, and the units are in order of due
time. Each level sleeps until its next message is due or a new message arrives. It delivers in short steps, so that the
loop can serve requests in between, and does not hold the loop while it waits for the disk. No message waits longer than
its level's delay because the clock was set back. A message that cannot be stored now is retried. A message that can
never be stored is skipped and logged.

The progress of each level is in delayOffset.json. The file is written every `flushDelayOffsetInterval` ms and at the
end, always after the log was synced. So the file never counts a message as delivered that a power failure could take
back. What was delivered after it was written, a start finds in the log (`delay_recovery`), so a kill doubles none.

Delivery does not wait for the replicas. So a slave takes over a master's table only when its own log has all that the
table rests on (`replication.config_sync`), and notes with it where the master's log ended. Nothing is delivered while
the broker refuses messages (`may_append`): its successor may be at work already. Use it from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.broker.delay_recovery import SaveNotes, deliverable, find_delivered
from penstock.broker.reads_without_blocking_the_loop import completed
from penstock.broker.wall_clock_timer import ScheduledCall, Scheduler
from penstock.format.config_tables import DelayOffsets
from penstock.format.constants import SCHEDULE_TOPIC
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.format.record import Record
from penstock.store.cold_reads import try_read
from penstock.store.config_files import ConfigFile
from penstock.store.message_store import MessageStore
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.broker")

_STEP: Final = 64
"""Queue units read at once."""
_STEP_S: Final = 0.005
"""Seconds that one level may occupy the loop."""
_RETRY_MS: Final = 1000
_LOG_STEP: Final = 256 << 20
"""Bytes of the log after which the progress is saved even if it is the same, so that a start has less to search."""


class DelayedMessages:
    """All delay levels and their progress."""

    def __init__(
        self,
        store: MessageStore,
        loaded: DelayOffsets,
        scheduler: Scheduler,
        clock: Callable[[], int],
        tasks: Supervisor,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._supervisor = tasks
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._levels = store.settings.delay_levels
        self._extra = loaded.extra
        self._next = dict(loaded.offsets)
        """The next queue offset to deliver, by level."""
        self._calls: dict[int, ScheduledCall] = {}
        """The next step of each level that does not wait for an arrival."""
        self._steps: dict[int, asyncio.Task[None]] = {}
        """The step that each level runs now. A level has a call or a step, never both."""
        self._closed = True
        """Until `start`: a slave never starts delivery, its master delivers."""
        self.may_append: Callable[[], bool] = lambda: True
        """Whether this broker may store messages now. The broker sets it."""
        self._notes = SaveNotes(store.engine.io, store.layout.delivered)
        log_end = store.log.queue.wrote_offset
        left = self._notes.roll_back(self._next, log_end)
        if left is not None and left != self._next:
            log.warning(
                "the log ends at %d, before deliveries that delayOffset.json counts: these are made again",
                log_end,
            )
        self.is_rolled_back = left is not None
        """Whether the table is not the one that was read: it must be saved before the log grows; see `roll_back`."""
        self._next = self._next if left is None else left
        begin = self._notes.log_end_of(self._next)
        self._rests_on = begin
        """Of a slave: the offset before which the log has all that the table rests on; None if that is not known."""
        self._unsearched: tuple[int, int] | None = None
        """The range of the log in which the first start searches for delivered messages; None after the search."""
        self._search: asyncio.Task[None] | None = None
        if store.role.delivers:
            self._unsearched = (log_end if begin is None else begin, log_end)
        store.on_arrival(self._on_arrival)
        scheduler.on_set_back.append(self._wake_all)

    def start(self) -> None:
        """Starts or resumes delivery. The first start searches the log for what was delivered before a crash."""
        if self._search is not None and not self._search.done():
            return
        begin, end = self._unsearched or (0, 0)
        is_current = self._store.try_catch_up()
        if begin < end and not (is_current and all(first >= last for first, last in self.progress().values())):
            self._search = asyncio.create_task(self._search_and_start(begin, end))
        else:
            self._begin()

    def _begin(self) -> None:
        self._unsearched = None
        self._closed = False
        self._wake_all()

    async def _search_and_start(self, begin: int, end: int) -> None:
        """Moves each level behind what the log says was delivered, then starts delivery. `stop` cancels it."""
        try:
            search = partial(find_delivered, self._store, dict(self._next), begin, end)
            found = await asyncio.wrap_future(self._store.read_cold(search, self))
        except Exception as error:  # whatever it is: delivered twice is better than never
            self._supervisor.failed("search of the log for delivered messages, which are delivered again", error)
        else:
            count = sum(offset - self._next.get(level, 0) for level, offset in found.items())
            if count:
                log.info("the log has %d delayed messages that were delivered just before the broker ended", count)
            self._next.update(found)
        self._begin()

    def stop(self) -> None:
        self._closed = True
        if self._search is not None:
            self._search.cancel()
            self._search = None
        for call in self._calls.values():
            call.cancel()
        for step in self._steps.values():
            step.cancel()
        self._calls.clear()
        self._steps.clear()

    # -- progress --------------------------------------------------------------------------------------------

    def progress(self) -> dict[int, tuple[int, int]]:
        """Returns, for each level in use, the next queue offset to deliver and the end of its queue.

        Never waits for dispatch: the end lacks the newest messages while another thread dispatches them.
        """
        progress = {}
        for level in range(1, len(self._levels) + 1):
            queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
            end = 0 if queue is None else queue.max_offset
            if end or level in self._next:
                progress[level] = (self._next.get(level, 0), end)
        return progress

    def version(self) -> object:
        """Returns a value that changes when there is something new to save."""
        end = self._store.log.queue.wrote_offset if self._store.role.delivers else self._rests_on or 0
        return *self._next.items(), end // _LOG_STEP

    def snapshot(self) -> DelayOffsets:
        """Returns the contents of delayOffset.json."""
        return DelayOffsets(offsets=dict(sorted(self._next.items())), extra=self._extra)

    def begin_save(self) -> DelayOffsets:
        """Returns the contents of delayOffset.json, to be written after `before_write`."""
        if not self._store.role.delivers:
            if self._rests_on is not None:
                self._notes.add(self._next, self._rests_on)
        elif self._unsearched is None:
            self._notes.add(self._next, self._store.log.queue.wrote_offset)
        return self.snapshot()

    def before_write(self) -> None:
        """Syncs the log, then notes where it ended at `begin_save`. Runs in the writing thread. Raises StoreFailed."""
        self._store.flush()
        self._notes.write()

    def write_roll_back(self, file: ConfigFile[DelayOffsets]) -> None:
        """Saves the table that was rolled back. Blocks: for a start, before the log can grow. Raises StoreFailed."""
        file.write(self.snapshot())
        self._notes.write()

    def replace(self, offsets: DelayOffsets, log_end: int | None = None) -> None:
        """Replaces the table by the master's, which rests on the log before `log_end`. Delivery must be stopped."""
        self._next = dict(offsets.offsets)
        self._rests_on = log_end

    # -- delivering ------------------------------------------------------------------------------------------

    def _on_arrival(self, topic: str, queue_id: int, max_offset: int, tags_codes: npt.NDArray[np.int64]) -> None:
        """Wakes the level of a new message if it is idle. The dispatch thread calls this."""
        if topic != SCHEDULE_TOPIC or self._closed:
            return
        try:
            self._loop.call_soon_threadsafe(self._wake_if_idle, queue_id + 1)
        except RuntimeError:  # the loop is closed; the next start delivers
            return

    def _wake_if_idle(self, level: int) -> None:
        if level not in self._calls:
            self._wake(level, self._clock())

    def _wake_all(self) -> None:
        for level in range(1, len(self._levels) + 1):
            self._wake(level, self._clock())

    def _wake(self, level: int, due_ms: int) -> None:
        if self._closed or level > len(self._levels) or level in self._steps:
            return
        if level in self._calls:
            self._calls[level].cancel()
        self._calls[level] = self._scheduler.call_at(due_ms, partial(self._run, level))

    def _run(self, level: int) -> None:
        del self._calls[level]
        self._steps[level] = asyncio.create_task(self._step(level))

    async def _step(self, level: int) -> None:
        """Delivers the due messages, then schedules the next step. `stop` cancels it while it waits for the disk."""
        name = f"delivery of delay level {level}"
        try:
            next_ms = await self._deliver(level)
            self._supervisor.recovered(name)
        except Exception as error:  # whatever it is, the level goes on: no other timer would wake it
            self._supervisor.failed(name, error)
            next_ms = self._clock() + _RETRY_MS
        del self._steps[level]
        if next_ms is not None:
            self._wake(level, next_ms)

    async def _deliver(self, level: int) -> int | None:
        """Delivers the due messages. Returns the time of the next step in epoch ms; None to wait for an arrival."""
        until = time.monotonic() + _STEP_S
        queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return None
        offset = self._next.get(level, 0)
        offset = self._next[level] = min(max(offset, queue.min_offset), queue.max_offset)
        while offset < queue.max_offset:
            units = await completed(self._store, try_read(queue.page, offset, _STEP), (self, level))
            if units is None:
                return self._clock() + _RETRY_MS
            for physical_offset, size, due in units.tolist():
                now = self._clock()
                if 0 < due - now <= self._levels[level - 1]:  # a longer wait means that the clock was set back
                    return int(due)
                if size != NO_RECORD_SIZE:
                    record = await completed(self._store, self._store.try_look_up(physical_offset), (self, level))
                    if not self.may_append() or not self._put(physical_offset, record):
                        return now + _RETRY_MS
                offset += 1
                self._next[level] = offset
                if time.monotonic() > until:
                    return now
        return None

    def _put(self, physical_offset: int, record: Record | None) -> bool:
        """Stores a message in its real topic, or skips it for good. Returns False if it has to be retried."""
        if record is None:
            log.error("skipped the delayed message at offset %d: it is damaged or deleted", physical_offset)
            return True
        message = deliverable(record)
        if message is None:
            log.error("skipped the delayed message at offset %d: no topic can take it", physical_offset)
            return True
        result = self._store.append(message, again=True)
        if result.stored:
            return True
        if result.refused_for_good:
            log.error("skipped the delayed message at offset %d: %s", physical_offset, result.reason)
            return True
        log.warning("the delayed message at offset %d is retried: %s", physical_offset, result.reason)
        return False
