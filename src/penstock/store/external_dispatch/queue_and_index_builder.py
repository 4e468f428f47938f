"""The job's side of external dispatch: builds queues and index of an append-only store, batch by batch.

While it holds the job's lock, the builder owns queues, index and the dispatch note. It only reads the log, up to the
position that the store publishes. It dispatches with the code of inline dispatch, so it writes the same bytes; a batch
that is repeated changes nothing. After each batch it publishes its position in `dispatch.done`. Every second, and at
the end, it syncs everything and writes the dispatch note. The builder is single-threaded.

A new builder starts at the position in `dispatch.done` if that mark was written in this boot, else at the position in
the dispatch note. It truncates units and items after its start position, because they may be part of a batch, and
builds them again. The store may serve units before that position meanwhile; the builder changes only wrong ones. So a
builder may be killed at any moment.

Workers scan ranges of the log in parallel (`queue_units_and_keys.scan`). The builder uses a piece of theirs only if it
begins exactly at the builder's position. Otherwise it derives the records itself.
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
from penstock.store.damage_and_quarantine import Quarantine, read_damage
from penstock.store.deleted_topics_file import read_deleted_topics
from penstock.store.dispatch_checkpoint import DispatchNotes, read_state
from penstock.store.engine_parts import Engine
from penstock.store.external_dispatch.files_shared_with_job import (
    MarkFile,
    acquire_job_lock,
    built_position,
    is_external,
    read_mark,
    require_agreement,
)
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout, allow_many_files
from penstock.store.files.lock import StoreLock
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.queue_units_and_keys import DerivedPiece, ScannedPieces
from penstock.store.recovery.index import IndexRecovery
from penstock.store.recovery.log import LogRecovery
from penstock.store.recovery.queues import QueueRecovery, Redispatch
from penstock.store.recovery.report import RecoveryReport
from penstock.store.retention.derived import BuilderCleaner, Dropper
from penstock.store.single_record_reader import RecordReader

log = logging.getLogger("penstock.store")
_SYNC_EVERY_S: Final = 1.0


class Builder:
    """Builds queues and index of one store. Create it with `open`; close it, or use it in a `with` block."""

    def __init__(self, root: Path, files: Files, lock: StoreLock, clock: Callable[[], int]) -> None:
        layout = Layout(root, root / "commitlog")
        agreement = require_agreement(files, layout)
        self.settings = settings = agreement.settings(root)
        self.layout = layout = Layout.of(root, settings)
        if reason := why_not_yet(files, root):
            raise BadStore(reason, path=root)
        self._io = files
        self._lock = lock
        self._disk = OverlayFiles()
        self._log = CommitLog(self._disk, layout.commit_log, settings, clock)
        self._engine = engine = Engine.inline(files, layout, settings, clock, log=self._log)
        self._derived = engine.derived
        self._dispatcher = engine.dispatcher
        self._notes = DispatchNotes(engine)
        dropper = Dropper(clock, settings.destroy_mapped_file_interval_forcibly)
        self._cleaner = BuilderCleaner(engine, dropper, lambda: False)
        self._done = MarkFile(files, layout.dispatch_done)
        self._synced = time.monotonic()
        self._safe = 0
        self._closed = False

    @classmethod
    def open(cls, root: str | Path, *, files: Files | None = None, clock: Callable[[], int] = now_ms) -> Self:
        """Acquires the job's lock and recovers queues and index.

        Raises StoreFailed; StoreInUse while another job runs; BadStore if dispatch is inline, if the store is open on
        another host, or if it must be started first.
        """
        files, root = files or Files(), Path(root)
        if not root.is_dir():
            raise BadStore("there is no store here: no such folder; check the path", path=root)
        allow_many_files()
        lock = acquire_job_lock(files, Layout(root, root / "commitlog"))
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
        _recover_derived(self._engine, self._disk)
        self._dispatcher.end_recovery()
        self._sync()
        self._done.write(self.position, self._safe)

    # -- building --------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The log position up to which queues and index are complete."""
        return self._dispatcher.position

    @property
    def published(self) -> int:
        """The log position up to which the store allows dispatch."""
        return published_end(self._io, self.layout, self.position)

    def build(self, stop: int, pieces: Sequence[DerivedPiece] = ()) -> None:
        """Dispatches records that begin before `stop` and that the store has published. `pieces`: scanned by workers.

        Raises StoreFailed or OSError.
        """
        stop = min(stop, self.published)
        self._forget_deleted()
        self._show_log(stop)
        stop = min(stop, self._log.max_offset)
        dispatcher = self._dispatcher
        with dispatcher.deriving_from(ScannedPieces(dispatcher.deriver, pieces)):
            while dispatcher.position < stop:
                dispatcher.step()
        if time.monotonic() - self._synced >= _SYNC_EVERY_S:
            self._sync()
        self._done.write(self.position, self._safe)

    def _forget_deleted(self) -> None:
        """Removes the queues of deleted topics.

        Must run after `published` was read: messages put after the deletion then lie beyond the published end.
        """
        ends = read_deleted_topics(self._io, self.layout.deleted_topics)
        if ends == self._dispatcher.deleted:
            return
        self._dispatcher.set_deleted(ends)
        queues = self._derived.queues
        for queue in list(queues):
            if queue.max_physical_offset <= ends.get(queue.topic, -2):
                queues.remove(queue)

    def _show_log(self, end: int) -> None:
        """Maps new files, unmaps deleted ones, and makes records readable up to `end`."""
        queue = self._log.queue
        while len(queue.files) > 1 and not self._disk.identity(queue.files[0].path):
            queue.forget_first()
        if not queue.files:
            names = [name for name in self._disk.names(queue.folder) if name.isdecimal()]
            if not names or end <= int(names[0]):
                return
            queue.map_files([int(names[0])])
            queue.files[0].wrote = 0  # readable up to `end` only, like the files below
        while (last := queue.last) is not None:
            last.wrote = min(max(end - last.from_offset, last.wrote), last.size)
            following = last.path.with_name(file_name(last.from_offset + last.size))
            if end <= last.from_offset + last.size or not self._disk.exists(following):
                break
            queue.writable(0, lambda path, offset: MappedFile(self._disk.open_map(path), offset))
        mark = read_mark(self._io, self.layout.dispatch_end)
        queue.flushed_where = 0 if mark is None else mark.safe

    def _sync(self) -> None:
        """Syncs queues and index, writes the dispatch note, and deletes expired files."""
        timestamp, state = self._dispatcher.timestamp, self._notes.snapshot()
        self._derived.sync()
        self._notes.write(state)
        self._safe = timestamp
        self._synced = time.monotonic()
        self._cleaner.clean()

    # -- ending ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Syncs everything and releases the lock. Idempotent.

        Raises StoreFailed or OSError; the lock is released then, too.
        """
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


def why_not_yet(files: Files, root: Path) -> str:
    """Returns why a job has to wait for the store, as a sentence; empty if it does not. Takes no lock."""
    layout = Layout(root, root / "commitlog")
    if not files.lock_owner(layout.lock):
        if files.exists(layout.abort):
            return "the store was not closed cleanly, and its log may be incomplete; start the store first"
        return ""
    end = read_mark(files, layout.dispatch_end)
    if is_external(files, layout) and (end is None or not end.is_of_this_boot):
        return "the store is still starting, or is open on another host; run the driver of this job on the store's host"
    return ""


def published_end(files: Files, layout: Layout, otherwise: int = 0) -> int:
    """Returns the log position up to which the store allows dispatch; `otherwise` if there is no `dispatch.end`."""
    mark = read_mark(files, layout.dispatch_end)
    return otherwise if mark is None else mark.position


def _recover_derived(engine: Engine, disk: Files) -> None:
    """Truncates queues and index to `built_position`, and completes them up to it. `disk`: for reading the log.

    Idempotent. Raises BadStore, StoreFailed or OSError.
    """
    files, layout, settings, index = engine.io, engine.layout, engine.settings, engine.index
    commit_log, dispatcher = engine.log, engine.dispatcher
    state, position = read_state(files, layout.dispatched), built_position(files, layout)
    records = RecordReader(commit_log, verify_crc=settings.verify_crc_on_read)
    log_recovery = LogRecovery(replace(engine, io=disk), records, live=True)
    log_recovery.load()
    damage = read_damage(files, layout.damaged)
    log_recovery.assume(position, damage)
    report = RecoveryReport(clean_exit=False)
    quarantine = Quarantine(files, layout.quarantine, engine.clock, max_bytes=settings.quarantine_max_bytes)
    queue_recovery = QueueRecovery(engine, live=False)
    index_recovery = None if index is None else IndexRecovery(files, index, records, live=False, owned=False)
    sizes = None if state is None else state.sizes
    queue_recovery.load(sizes)
    if index_recovery is not None:
        index_recovery.load(sizes)
    queue_recovery.inspect(log_recovery, False)
    if index_recovery is not None:
        index_recovery.inspect(log_recovery, False)
    quarantine.reserve(queue_recovery.room_needed + (0 if index_recovery is None else index_recovery.room_needed))
    log_recovery.apply(quarantine, report)
    queue_recovery.apply(quarantine, report, False)
    if index_recovery is not None:
        noted_end = None if state is None else state.index_end
        index_recovery.apply(log_recovery, quarantine, report, False, noted_end)
    if commit_log.queue.files:
        redispatch = Redispatch(engine, state, state_is_garbage=False, external=True)
        redispatch.run(log_recovery, index_recovery, queue_recovery.incomplete, report, lambda progress: None)
    dispatcher.move_to(max(dispatcher.position, position))
    dispatcher.set_damage(damage)
    for note in report.notes:
        log.info("%s", note)
