"""How the job begins: queues and index as they were when the last job told how far it had come.

What was told (`dispatch.done`) is believed if the machine has not failed since; else what was synced (the note). Units
and items behind that may be half a batch: they go, and are built again from the log. The store may be serving what lies
before it at this very moment, and nothing there is touched unless it is wrong.


The other side of external dispatch: builds queues and index of a store that only appends, batch by batch.

Owns queues, index and the note of how complete they are, while it holds the job's lock; the log is only read, up to
the position that the store tells. Each batch is dispatched by the code of inline dispatch, so the same bytes lie in the
same places; what a queue or the index has is passed over, so a batch that comes again changes nothing. After a batch
its end is told (`dispatch.done`); every second, and at the end, everything is synced and the note written.

Killed at any moment, the next one cuts what was not told, and goes on where that ends. One thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from penstock.clock import now_ms
from penstock.errors import BadStore
from penstock.store.commit_log import CommitLog
from penstock.store.damage import Quarantine, read_damage
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch_state import DispatchNotes, read_state
from penstock.store.engine import Engine
from penstock.store.external.agreement import MarkFile, built_position, needed_terms, read_mark, take_job_lock
from penstock.store.external.scan import DerivedRange, FromPieces
from penstock.store.io import Files
from penstock.store.layout import Layout, allow_many_files
from penstock.store.lock import StoreLock
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import file_name
from penstock.store.overlay import OverlayFiles
from penstock.store.records import RecordReader
from penstock.store.recovery.index import IndexRecovery
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.queues import QueueRecovery, Redispatch
from penstock.store.recovery.report import RecoveryReport
from penstock.store.retention.derived import DerivedFollower, Dropper

log = logging.getLogger("penstock.store")


def start_at(engine: Engine, disk: Files) -> None:
    """Takes queues and index back to what counts, and completes them up to there. `disk` shows the log.

    Raises BadStore, StoreFailed or OSError, and can be done again.
    """
    files, layout, settings, index = engine.io, engine.layout, engine.settings, engine.index
    commit_log, dispatcher = engine.log, engine.dispatcher
    state, position = read_state(files, layout.dispatched), built_position(files, layout)
    records = RecordReader(commit_log, verify_crc=settings.verify_crc_on_read)
    part = LogRecovery(replace(engine, io=disk), records, live=True)
    part.load()
    damage = read_damage(files, layout.damaged)
    part.take_as_known(position, damage)
    report = RecoveryReport(clean_exit=False)
    quarantine = Quarantine(files, layout.quarantine, engine.clock, max_bytes=settings.quarantine_max_bytes)
    queue_part = QueueRecovery(engine, live=False)
    index_part = None if index is None else IndexRecovery(files, index, records, live=False, owned=False)
    sizes = None if state is None else state.sizes
    queue_part.load(sizes)
    if index_part is not None:
        index_part.load(sizes)
    queue_part.look(part, False)
    if index_part is not None:
        index_part.look(part, False)
    quarantine.reserve(queue_part.room_needed + (0 if index_part is None else index_part.room_needed))
    part.bring_in_order(quarantine, report)
    queue_part.bring_in_order(quarantine, report, False)
    if index_part is not None:
        noted_end = None if state is None else state.index_end
        index_part.bring_in_order(part, quarantine, report, False, noted_end)
    if commit_log.queue.files:
        dispatching = Redispatch(engine, state, state_is_garbage=False, external=True)
        dispatching.run(part, index_part, queue_part.behind, report, lambda told: None)
    dispatcher.move_to(max(dispatcher.position, position))
    dispatcher.set_damage(damage)
    for note in report.notes:
        log.info("%s", note)


_SYNC_EVERY_S: Final = 1.0


class Builder:
    """Use `open`, and close it or use it in a `with` block."""

    def __init__(self, root: Path, files: Files, lock: StoreLock, clock: Callable[[], int]) -> None:
        layout = Layout(root, root / "commitlog")
        terms = needed_terms(files, layout)
        self.settings = settings = terms.settings(root)
        self.layout = layout = Layout.of(root, settings)
        end = read_mark(files, layout.dispatch_end)
        owner = files.lock_owner(layout.lock)
        if owner and end is not None and not end.is_of_this_boot:
            raise BadStore("the store is open on another host; the driver of this job must run on that one", path=root)
        if files.exists(layout.abort) and not owner:
            raise BadStore("the store was not closed cleanly, and its log may lack its end; start it first", path=root)
        self._io = files
        self._lock = lock
        self._disk = OverlayFiles()
        self._log = CommitLog(self._disk, layout.commit_log, settings, clock)
        self._engine = engine = Engine.inline(files, layout, settings, clock, log=self._log)
        self._derived = engine.derived
        self._dispatcher = engine.dispatcher
        self._notes = DispatchNotes(engine)
        dropper = Dropper(clock, settings.destroy_mapped_file_interval_forcibly)
        self._follower = DerivedFollower(engine, dropper, lambda: False)
        self._done = MarkFile(files, layout.dispatch_done)
        self._synced = time.monotonic()
        self._safe = 0
        self._closed = False

    @classmethod
    def open(cls, root: str | Path, *, files: Files | None = None, clock: Callable[[], int] = now_ms) -> Self:
        """Takes the job's lock and brings queues and index to where the last one has told that they are.

        Raises StoreInUse while another job has them, BadStore if the store does not dispatch externally or has to be
        started first, StoreFailed.
        """
        files, root = files or Files(), Path(root)
        if not root.is_dir():
            raise BadStore("there is no store here: no such folder; check the path", path=root)
        allow_many_files()
        lock = take_job_lock(files, Layout(root, root / "commitlog"))
        try:
            builder = cls(root, files, lock, clock)
        except BaseException:
            lock.release()
            raise
        try:
            builder._start()
        except BaseException:
            builder._release()
            raise
        return builder

    def _start(self) -> None:
        self._dispatcher.set_deleted(self._engine.deleted_topics.load(self.layout))
        start_at(self._engine, self._disk)
        self._dispatcher.end_recovery()
        self._sync()
        self._done.write(self.position, self._safe)

    # -- working ---------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Up to where of the log queues and index are complete."""
        return self._dispatcher.position

    @property
    def published(self) -> int:
        """Up to where the store lets its log be dispatched."""
        return published_end(self._io, self.layout, self.position)

    def build(self, stop: int, pieces: Sequence[DerivedRange] = ()) -> None:
        """Dispatches what begins before `stop`, with what others have found there. Raises StoreFailed, OSError."""
        stop = min(stop, self.published)
        self._forget_deleted()
        self._show_log(stop)
        dispatcher = self._dispatcher
        with dispatcher.deriving_from(FromPieces(dispatcher, pieces)):
            while dispatcher.position < stop:
                dispatcher.step()
        if time.monotonic() - self._synced >= _SYNC_EVERY_S:
            self._sync()
        self._done.write(self.position, self._safe)

    def _forget_deleted(self) -> None:
        """Queues of topics that were deleted meanwhile go. Read after the end: what was put later lies behind it."""
        ends = read_deleted_topics(self._io, self.layout.deleted_topics)
        if ends == self._dispatcher.deleted:
            return
        self._dispatcher.set_deleted(ends)
        queues = self._derived.queues
        for queue in list(queues):
            if queue.max_physical_offset <= ends.get(queue.topic, -2):
                queues.remove(queue)

    def _show_log(self, end: int) -> None:
        """Maps the files that have come, lets go of those that are gone, and shows records up to `end`."""
        queue = self._log.queue
        while len(queue.files) > 1 and not self._disk.identity(queue.files[0].path):
            queue.drop_first(forced=True)
        if not queue.files:
            names = [name for name in self._disk.names(queue.folder) if name.isdecimal()]
            if not names or end <= int(names[0]):
                return
            queue.map_files([int(names[0])])
        while (last := queue.last) is not None:
            last.wrote = min(max(end - last.from_offset, last.wrote), last.size)
            following = last.path.with_name(file_name(last.from_offset + last.size))
            if end <= last.from_offset + last.size or not self._disk.exists(following):
                break
            queue.writable(0, lambda path, offset: MappedFile(self._disk.open_map(path), offset))
        mark = read_mark(self._io, self.layout.dispatch_end)
        queue.flushed_where = 0 if mark is None else mark.safe

    def _sync(self) -> None:
        """Everything so far is on disk afterwards, and the note says so; old files go."""
        timestamp, state = self._dispatcher.timestamp, self._notes.snapshot()
        self._derived.sync()
        self._notes.write(state)
        self._safe = timestamp
        self._synced = time.monotonic()
        self._follower.follow()

    # -- ending ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Syncs, and lets go; does nothing the second time. If it raises StoreFailed or OSError, it has let go, too."""
        if self._closed:
            return
        try:
            self._sync()
            self._done.write(self.position, self._safe)
        finally:
            self._release()

    def _release(self) -> None:
        self._closed = True
        self._log.close()
        self._derived.close()
        with contextlib.suppress(ValueError):
            self._done.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def published_end(files: Files, layout: Layout, otherwise: int = 0) -> int:
    """Up to where a store lets its log be dispatched; `otherwise` if it does not tell."""
    mark = read_mark(files, layout.dispatch_end)
    return otherwise if mark is None else mark.position
