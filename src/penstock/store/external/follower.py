"""In place of the dispatcher, in a store that only appends: tells how far the log may be dispatched, and sees what was.

One thread writes the mark `dispatch.end` whenever the confirmed end of the log has moved. While something of the log is
not dispatched it looks every few milliseconds at the mark of the job, takes in what has come to queues and index, and
tells whoever waits; after some seconds without a change it looks less often. A reader may look itself, and does not
wait. Nothing here changes a queue or the index. A crash leaves marks that are true as long as the machine runs on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import BadStore, StoreFailed
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.deleted_topics import DeletedTopics
from penstock.store.dispatch import Dispatcher
from penstock.store.engine import Engine
from penstock.store.external.growth import begun, follow_index, grow, let_go, load
from penstock.store.external.marks import Mark, MarkFile
from penstock.store.external.terms import built_position
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.overlay_files import OverlayFiles
from penstock.store.queues_and_index import QueuesAndIndex
from penstock.store.retention.drop import Dropper
from penstock.store.retention.follow import Follower
from penstock.store.running_flags import RunningFlags, Trouble
from penstock.store.settings import Settings

_LOOK_EVERY_S: Final = 0.005
_LOOK_SELDOM_S: Final = 0.1
_PATIENCE_S: Final = 5.0


class ExternalDispatch(Dispatcher):
    """`position` is how far the job has come, as far as this store has taken it in."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        commit_log: CommitLog,
        derived: QueuesAndIndex,
        delay_levels: tuple[int, ...],
        flags: RunningFlags,
    ) -> None:
        super().__init__(commit_log, derived, delay_levels, flags)
        self._io = files
        self._layout = layout
        self._disk = OverlayFiles()
        self._end: MarkFile | None = None
        self._done: MarkFile | None = None
        self._published = (-1, -1)

    # -- running ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes in what is there, then runs. Raises StoreFailed."""
        self._end = MarkFile(self._io, self._layout.dispatch_end)
        self._done = MarkFile(self._io, self._layout.dispatch_done)
        self._publish()
        with self.standstill():
            built = built_position(self._io, self._layout)
            for queue in self._queues.find_all():
                if not load(queue, built, max(self._log.min_offset, 0), self.deleted):
                    self._queues.forget(queue)
            self._look(Mark(built))
        super().start()

    def _run(self) -> None:
        changed = time.monotonic()
        while not self._closed:
            self._log.set_follower_asleep(True)
            if self._published[0] >= self._log.confirmed_offset:
                waiting = self.behind > 0
                seldom = time.monotonic() - changed > _PATIENCE_S
                self._wake.wait((_LOOK_SELDOM_S if seldom else _LOOK_EVERY_S) if waiting else None)
                self._wake.clear()
            self._log.set_follower_asleep(False)
            if self._gather_seconds:
                self._ending.wait(self._gather_seconds)
            before = self.position, self._published
            try:
                self._publish()
            except StoreFailed as error:
                self._flags.raise_trouble(Trouble.LOGICS_QUEUE_ERROR, f"messages cannot be dispatched: {error}")
            self.catch_up()
            if (self.position, self._published) != before:
                changed = time.monotonic()

    def stop(self) -> None:
        """Ends the thread; what was flushed at last may be dispatched."""
        self._closed = True
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._end is not None:
            self._publish()
            self._end.close()
        if self._done is not None:
            self._done.close()

    def _publish(self) -> None:
        now = self._log.confirmed_offset, self._log.queue.flushed_where
        if now != self._published and self._end is not None:
            self._end.write(*now)
            self._published = now

    # -- following -------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Takes in what the job has built so far; does not wait for more."""
        if self._closed or self._done is None:
            return
        mark = self._done.read()
        if mark is None or mark.position <= self.position or not mark.is_of_this_boot:
            return
        with self.standstill():
            self._look(mark)
        self._advanced.notify()

    def _look(self, mark: Mark) -> None:
        """At the queues that have had messages which are not seen yet, and at the index."""
        for topic, queue_id, next_offset in self._log.next_offsets():
            queue = self._queues.find(topic, queue_id)
            if (0 if queue is None else queue.max_offset) < next_offset:
                with contextlib.suppress(FileNotFoundError, BadStore):  # the job removed a file this very moment
                    self._look_at(topic, queue_id, mark.position)
        if self._index is not None:
            follow_index(self._disk, self._index)
        self.timestamp = max(self.timestamp, mark.safe)  # of what is on disk
        self.position = max(self.position, mark.position)

    def _look_at(self, topic: str, queue_id: int, limit: int) -> None:
        queue = self._queues.find(topic, queue_id)
        is_new = queue is None
        if queue is None:
            queue = begun(self._disk, self._queues, topic, queue_id, self.deleted)
        if queue is None:
            return
        codes = grow(self._disk, queue, limit)
        if is_new:
            queue.correct_min_offset(max(self._log.min_offset, 0))
            self._queues.add(queue)
        if len(codes):
            self._arrived.notify(topic, queue_id, queue.max_offset, codes)


class LogOnlyFollower(Follower):
    """Retention in such a store: the files of queues and index are the job's to delete, and are only let go of."""

    def __init__(self, engine: Engine, dropper: Dropper, pause: Callable[[], bool]) -> None:
        super().__init__(engine, dropper, pause)
        self._disk = Files()

    def _shorten(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        let_go(self._disk, queue)
        return not queue.expired(log_min_offset)

    def _shorten_index(self, log_min_offset: int) -> bool:
        return True


def append_only_engine(files: Files, layout: Layout, settings: Settings, clock: Callable[[], int]) -> Engine:
    """The parts of a store that only appends; its queues and its index are mapped so that nothing on disk changes."""
    flags = RunningFlags()
    log = CommitLog(files, layout.commit_log, settings, clock)
    derived = QueuesAndIndex.of(OverlayFiles(), layout, settings, clock)
    dispatcher = ExternalDispatch(files, layout, log, derived, settings.delay_levels, flags)
    deleted_topics = DeletedTopics(files, layout.deleted_topics)
    return Engine(files, layout, settings, clock, flags, log, derived, dispatcher, deleted_topics)
