"""Delivers delayed messages: each delay level is a queue of SCHEDULE_TOPIC_XXXX; due messages move to their real topic.

A unit of such a queue holds the due time of its message in place of the tags code, and the units are in order of due
time. Each level sleeps until its next message is due or a new message arrives. It delivers in short steps, so that the
loop can serve requests in between. A message that cannot be stored now is retried. A message that can never be stored
is skipped and logged.

The progress of each level is in delayOffset.json. The file is written every `flushDelayOffsetInterval` ms and at the
end, always after the log was synced. So the file never counts a message as delivered that a power failure could take
back. After a crash the messages of the last few seconds are delivered again; none is lost. Use it from the loop's
thread only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.format.config_tables import DelayOffsets
from penstock.format.constants import HALF_TOPIC, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC
from penstock.format.properties import encode_properties
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.format.record import Record
from penstock.remoting.supervision import Supervisor
from penstock.store.message import Message, PutStatus
from penstock.store.message_store import MessageStore

log = logging.getLogger("penstock.broker")

_STEP: Final = 64
"""Queue units read at once."""
_STEP_S: Final = 0.005
"""Seconds that one level may occupy the loop."""
_RETRY_S: Final = 1.0
_LONGEST_SLEEP_S: Final = 30.0
"""Seconds after which a level reads the clock again, because the clock may have been set."""
_NEVER: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class DelayedMessages:
    """All delay levels and their progress."""

    def __init__(
        self,
        store: MessageStore,
        loaded: DelayOffsets,
        clock: Callable[[], int],
        tasks: Supervisor,
    ) -> None:
        self._store = store
        self._supervisor = tasks
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._levels = store.settings.delay_levels
        self._extra = loaded.extra
        self._next = dict(loaded.offsets)
        """The next queue offset to deliver, by level."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closed = True
        """Until `start`: a slave never starts delivery, its master delivers."""
        store.on_arrival(self._on_arrival)

    def start(self) -> None:
        """Starts or resumes delivery."""
        self._closed = False
        for level in range(1, len(self._levels) + 1):
            self._wake(level, 0.0)

    def stop(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    # -- progress --------------------------------------------------------------------------------------------

    def progress(self) -> dict[int, tuple[int, int]]:
        """Returns, for each level in use, the next queue offset to deliver and the end of its queue."""
        progress = {}
        for level in range(1, len(self._levels) + 1):
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end or level in self._next:
                progress[level] = (self._next.get(level, 0), end)
        return progress

    def version(self) -> object:
        """Returns a value that changes when there is something new to save."""
        return tuple(self._next.items())

    def snapshot(self) -> DelayOffsets:
        """Returns the contents of delayOffset.json. They may be written only after the log is synced."""
        return DelayOffsets(offsets=dict(sorted(self._next.items())), extra=self._extra)

    def replace(self, offsets: DelayOffsets) -> None:
        """Replaces the table by the master's. Callers must stop delivery first."""
        self._next = dict(offsets.offsets)

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
        if level not in self._timers:
            self._wake(level, 0.0)

    def _wake(self, level: int, seconds: float) -> None:
        if not self._closed and level <= len(self._levels):
            self._timers[level] = self._loop.call_later(min(seconds, _LONGEST_SLEEP_S), self._run, level)

    def _run(self, level: int) -> None:
        """Runs one step of a level: delivers the due messages, then schedules the next step."""
        self._timers.pop(level, None)
        name = f"delivery of delay level {level}"
        try:
            next_s = self._deliver(level)
            self._supervisor.recovered(name)
        except Exception as error:  # whatever it is, the level goes on: no other timer would wake it
            self._supervisor.failed(name, error)
            next_s = _RETRY_S
        if next_s is not None:
            self._wake(level, next_s)

    def _deliver(self, level: int) -> float | None:
        """Delivers the due messages. Returns the seconds until the next step; None to wait for an arrival."""
        until = time.monotonic() + _STEP_S
        queue = self._store.queues.find(SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return None
        offset = self._next.get(level, 0)
        offset = self._next[level] = min(max(offset, queue.min_offset), queue.max_offset)
        while offset < queue.max_offset:
            units = queue.page(offset, _STEP)
            if units is None:
                return _RETRY_S
            for physical_offset, size, due in units.tolist():
                wait_ms = self._wait_ms(due, level)
                if wait_ms > 0:
                    return wait_ms / 1000
                if size != NO_RECORD_SIZE and not self._put(physical_offset):
                    return _RETRY_S
                offset += 1
                self._next[level] = offset
                if time.monotonic() > until:
                    return 0.0
        return None

    def _wait_ms(self, due: int, level: int) -> int:
        """Returns the ms until a message is due; 0 or less if it is due, or if its wait exceeds the level's delay."""
        wait = due - self._clock()
        return wait if wait <= self._levels[level - 1] else 0

    def _put(self, physical_offset: int) -> bool:
        """Stores a message in its real topic, or skips it for good. Returns False if it has to be retried."""
        record = self._store.look_up(physical_offset)
        if record is None:
            log.error("skipped the delayed message at offset %d: it is damaged or deleted", physical_offset)
            return True
        message = _deliverable(record)
        if message is None:
            log.error("skipped the delayed message at offset %d: its real topic is missing", physical_offset)
            return True
        result = self._store.append(message)
        if result.stored:
            return True
        if result.status in _NEVER:
            log.error("skipped the delayed message at offset %d: %s", physical_offset, result.reason)
            return True
        log.warning("the delayed message at offset %d is retried: %s", physical_offset, result.reason)
        return False


def _deliverable(record: Record) -> Message | None:
    """Returns the message as it was sent, with the delay's properties as in RocketMQ; None without a real topic."""
    topic, queue_id = record.properties.get(REAL_TOPIC, ""), record.properties.get(REAL_QID, "")
    if not topic or not queue_id.isdecimal() or topic == HALF_TOPIC:
        return None
    return Message(
        topic,
        record.body,
        queue_id=int(queue_id),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        reconsume_times=record.reconsume_times,
        property_text=encode_properties(record.properties).decode("utf-8", "surrogateescape"),
    )
