"""The store's side of external dispatch: publishes the log's end, and follows the queues and index that the job builds.

`ExternalDispatch` replaces the dispatcher in an append-only store. Its thread writes the mark `dispatch.end` whenever
the confirmed end of the log moves, but not beyond the start of a batch that may still be rolled back (`hold`). While
the job lags behind, the thread polls the mark `dispatch.done` every few milliseconds, maps new units and index files,
and notifies listeners. After five seconds without a change it polls less often. `catch_up` reads `dispatch.done` and
maps new units once, on the caller's thread. `lag` says how far the job is behind, and whether it is missing or makes no
progress.

Only units whose records end at or before the position in `dispatch.done` become visible. Files are mapped privately, so
this module cannot change a queue or the index. One thread at a time refreshes; readers of the queues continue
meanwhile. After a crash of a process the marks stay valid until the next boot.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import BadStore, StoreFailed
from penstock.format import kernels
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.human_units import format_size
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, unit_pages, view_units
from penstock.store.consume_queues import ConsumeQueues, DerivedFiles
from penstock.store.deleted_topics_file import DeletedTopics
from penstock.store.dispatch import Dispatcher, DispatchLag
from penstock.store.dispatch_checkpoint import read_state
from penstock.store.engine_parts import Engine
from penstock.store.external_dispatch.files_shared_with_job import DispatchMark, MarkFile, built_position
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout, path_below
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.index import Index, IndexFile
from penstock.store.replication.epochs import EpochFile
from penstock.store.retention.derived import DerivedCleaner, Dropper
from penstock.store.running_flags import RunningFlags, StoreFault
from penstock.store.settings import Settings
from penstock.store.single_record_reader import RecordReader

_UNITS_AT_ONCE = 65_536
_DATA_NAME = re.compile(r"[0-9]{20}")
_INDEX_NAME = re.compile(r"[0-9]{17}")


def load_queue(queue: ConsumeQueue, limit: int, log_min: int, deleted: Mapping[str, int]) -> bool:
    """Maps the files of a queue for the first time, with units of records up to log position `limit`.

    Returns False and maps nothing if the queue has no units, or only those of a deleted topic. `deleted`: by topic, the
    physical offset before which its messages are deleted.
    """
    try:
        queue.load()
    except (BadStore, FileNotFoundError):  # the job is creating or removing files right now
        queue.close()
        return False
    for file in queue.keep_first(queue.count_before(limit)):
        file.shut_down()
    first = queue.files.first
    if first is None or not first.wrote or _is_deleted(queue, deleted):
        queue.close()
        return False
    queue.correct_min_offset(log_min)
    return True


def open_new_queue(
    files: Files, queues: ConsumeQueues, topic: str, queue_id: int, deleted: Mapping[str, int]
) -> ConsumeQueue | None:
    """Returns a new queue with its first file mapped and no visible units.

    Returns None if the queue has no file, or only files of a deleted topic. `deleted`: as in `load_queue`.
    """
    folder = path_below(queues.folder, topic, queue_id)
    names = [name for name in files.names(folder) if _DATA_NAME.fullmatch(name)]
    if not names or files.size(folder / names[0]) != queues.file_size:
        return None
    queue = ConsumeQueue(files, folder, topic, queue_id, queues.file_size)
    queue.files.map_files([int(names[0])])
    if _is_deleted(queue, deleted):
        queue.close()
        return None
    queue.files.cut(int(names[0]))
    return queue


def _is_deleted(queue: ConsumeQueue, deleted: Mapping[str, int]) -> bool:
    """Whether the first unit that points to a record points to one of a deleted topic.

    Units without a record may precede it. They say nothing, and have the physical offset 0.
    """
    end = deleted.get(queue.topic, 0)
    for _, units in unit_pages(queue, queue.files.min_offset // UNIT_SIZE, queue.max_offset if end else 0):
        real = units[(units["size"] > 0) & (units["size"] != NO_RECORD_SIZE)]
        if len(real):
            return bool(real["offset"][0] < end)
        if (units["size"] <= 0).any():  # not built yet
            break
    return False


def read_new_units(files: Files, queue: ConsumeQueue, limit: int) -> kernels.Longs:
    """Makes new units of a mapped queue visible, up to log position `limit`; returns their tags codes."""
    last = queue.files.last
    if last is not None and not last.wrote and len(queue.files.files) > 1:
        queue.files.forget_last()  # a job that was killed left it, and the next one may have made it anew
    codes = [np.empty(0, np.int64)]
    while (last := queue.files.last) is not None:
        if last.full:
            following = last.path.with_name(file_name(last.from_offset + last.size))
            if not files.exists(following) or files.size(following) != last.size:
                break
            queue.files.writable(0, lambda path, offset: MappedFile(files.open_map(path), offset))
            continue
        room = min(last.size - last.wrote, _UNITS_AT_ONCE * UNIT_SIZE)
        units = view_units(last, last.wrote, room).copy()
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        real = sizes != NO_RECORD_SIZE
        not_yet = np.flatnonzero((sizes <= 0) | (real & (offsets + sizes > limit)))
        count = int(not_yet[0]) if len(not_yet) else len(units)
        pointing = np.flatnonzero(real[:count])
        if len(pointing):
            newest = pointing[-1]
            queue.max_physical_offset = int(offsets[newest] + sizes[newest])
        last.wrote += count * UNIT_SIZE
        codes.append(units["tags_code"][:count].astype(np.int64))
        if count < len(units):
            break
    return np.concatenate(codes)


def unmap_deleted(files: Files, queue: ConsumeQueue) -> None:
    """Unmaps leading files that the job has deleted."""
    while len(queue.files.files) > 1 and not files.exists(queue.files.files[0].path):
        queue.files.forget_first()


def refresh_index(files: Files, index: Index) -> None:
    """Maps new index files and unmaps deleted ones."""
    names = [name for name in files.names(index.folder) if _INDEX_NAME.fullmatch(name)]
    known = {file.path.name: file for file in index.files}
    if names == list(known):
        return
    there: list[IndexFile] = []
    for name in names:
        with contextlib.suppress(BadStore, FileNotFoundError):
            if name not in known and files.size(index.folder / name) != index.geometry.file_size:
                continue
            there.append(known.get(name) or IndexFile(files.open_map(index.folder / name), index.geometry))
    gone = [file for file in index.files if file not in there]
    index.files = tuple(there)
    for file in gone:
        file.shut_down()


_POLL_S: Final = 0.005
_IDLE_POLL_S: Final = 0.1
_IDLE_AFTER_S: Final = 5.0
_NO_JOB: Final = "consumers get no new messages, because no job builds the queues (dispatch=external)"
NO_PROGRESS_S: Final = 60.0
"""A job that makes messages wait for so long without any progress is a problem."""


class _Waiting(NamedTuple):
    """Messages that wait for the job."""

    position: int
    since: float
    """The monotonic time since which the job has made no progress."""
    oldest_ms: int
    """Store time of the oldest of them; -1 if it is unknown."""


class ExternalDispatch(Dispatcher):
    """The dispatcher of an append-only store. `position`: the log position up to which units are visible."""

    def __init__(
        self,
        files: Files,
        layout: Layout,
        commit_log: CommitLog,
        derived: DerivedFiles,
        delay_levels: tuple[int, ...],
        flags: RunningFlags,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(commit_log, derived, delay_levels, flags)
        self._io = files
        self._layout = layout
        self._clock = clock
        self._records = RecordReader(commit_log, verify_crc=False)
        self._waiting: _Waiting | None = None
        self._disk = OverlayFiles()
        self._end: MarkFile | None = None
        self._done: MarkFile | None = None
        self._published = (-1, -1)
        self._held_at: int | None = None

    # -- running ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Maps the queues and index that the job has built, then starts the thread. Raises StoreFailed."""
        self._end = MarkFile(self._io, self._layout.dispatch_end)
        self._done = MarkFile(self._io, self._layout.dispatch_done)
        self._publish()
        with self.paused():
            built = built_position(self._io, self._layout)
            for queue in self._queues.find_all():
                if not load_queue(queue, built, max(self._log.min_offset, 0), self.deleted):
                    self._queues.forget(queue)
            self._refresh(DispatchMark(built))
        super().start()

    def hold(self, position: int | None) -> None:
        self._held_at = position
        self._wake.set()

    def _end_to_publish(self) -> int:
        end, held_at = self._log.confirmed_offset, self._held_at
        return end if held_at is None else min(end, held_at)

    def _run(self) -> None:
        changed = time.monotonic()
        while not self._closed:
            self._log.set_follower_asleep(True)
            if self._published[0] >= self._end_to_publish():
                waiting = self.behind > 0
                seldom = time.monotonic() - changed > _IDLE_AFTER_S
                self._wake.wait((_IDLE_POLL_S if seldom else _POLL_S) if waiting else None)
                self._wake.clear()
            self._log.set_follower_asleep(False)
            if self._batch_delay:
                self._ending.wait(self._batch_delay)
            before = self.position, self._published
            try:
                self._publish()
            except StoreFailed as error:
                self._flags.raise_fault(StoreFault.LOGICS_QUEUE_ERROR, f"messages cannot be dispatched: {error}")
            self.catch_up()
            if (self.position, self._published) != before:
                changed = time.monotonic()
            self._observe()

    def stop(self) -> None:
        """Ends the thread and publishes the final end of the log."""
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
        now = self._end_to_publish(), self._log.queue.flushed_where
        if now != self._published and self._end is not None:
            self._end.write(*now)
            self._published = now

    # -- the job's progress ----------------------------------------------------------------------------------

    def _observe(self) -> None:
        """Notes since when messages wait for the job. Runs on the dispatch thread, because it may read cold pages."""
        waiting, position = self._waiting, self.position
        if self.behind <= 0:
            self._waiting = None
        elif waiting is None or waiting.position != position:
            self._waiting = _Waiting(position, time.monotonic(), self._records.store_timestamp(position))

    def lag(self) -> DispatchLag:
        waiting, behind = self._waiting, max(self.behind, 0)
        job = self._io.lock_owner(self._layout.dispatch_lock)
        if not behind or waiting is None:
            return DispatchLag(behind, 0, "" if job else f"{_NO_JOB}; {self._advice()}")
        stalled_s = time.monotonic() - waiting.since
        age_ms = self._clock() - waiting.oldest_ms if waiting.oldest_ms > 0 else int(stalled_s * 1000)
        age_ms = max(age_ms, 0)
        far = f"{format_size(behind)} and {age_ms / 1000:.0f} s behind"
        if not job:
            return DispatchLag(behind, age_ms, f"{_NO_JOB}: dispatch is {far}; {self._advice()}")
        if stalled_s < NO_PROGRESS_S:
            return DispatchLag(behind, age_ms)
        who = f"process {job}" if job > 0 else "a process of another host"
        return DispatchLag(
            behind,
            age_ms,
            f"dispatch is {far}, and its job ({who}) has made no progress for {stalled_s:.0f} s; see the job's log",
        )

    def _advice(self) -> str:
        return f"run `penstock pipeline dispatch --store {self._layout.root}`"

    # -- following -------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Makes the units visible that the job has built so far; does not wait for more."""
        if self._closed or self._done is None:
            return
        mark = self._done.read()
        if mark is None or mark.position <= self.position or not mark.is_of_this_boot:
            return
        with self.paused():
            self._refresh(mark)
        self._advanced.notify()

    def try_catch_up(self) -> bool:
        """Like `catch_up`, but returns False at once if the queues are being refreshed, or dispatch is paused."""
        if self._turnstile.locked() or self._step_lock.locked():
            return False
        self.catch_up()
        return True

    def _refresh(self, mark: DispatchMark) -> None:
        """Refreshes the index and the queues that have messages which are not visible yet."""
        for topic, queue_id, next_offset in self._log.next_offsets():
            queue = self._queues.find(topic, queue_id)
            if (0 if queue is None else queue.max_offset) < next_offset:
                with contextlib.suppress(FileNotFoundError, BadStore):  # the job is removing a file right now
                    self._refresh_queue(topic, queue_id, mark.position)
        if self._index is not None:
            refresh_index(self._disk, self._index)
        self.timestamp = max(self.timestamp, mark.safe)  # store time of what is on disk
        self.position = max(self.position, mark.position)

    def _refresh_queue(self, topic: str, queue_id: int, limit: int) -> None:
        queue = self._queues.find(topic, queue_id)
        is_new = queue is None
        if queue is None:
            queue = open_new_queue(self._disk, self._queues, topic, queue_id, self.deleted)
        if queue is None:
            return
        codes = read_new_units(self._disk, queue, limit)
        if is_new:
            queue.correct_min_offset(max(self._log.min_offset, 0))
            self._queues.add(queue)
        if len(codes):
            self._arrived.notify(topic, queue_id, queue.max_offset, codes)


class LogOnlyCleaner(DerivedCleaner):
    """Retention in an append-only store: the job deletes queue and index files, and the store unmaps queue files."""

    def __init__(self, engine: Engine, dropper: Dropper, pause: Callable[[], bool]) -> None:
        super().__init__(engine, dropper, pause)
        self._disk = Files()

    def dispatched(self) -> int:
        """Returns the position in the dispatch note, which the job writes after it has synced the queues. A log file
        behind it stays: if the power went, nothing would tell at which offset the queues of its messages go on.
        """
        state = read_state(self._io, self._layout.dispatched)
        return 0 if state is None else min(state.position, super().dispatched())

    def sync_queues(self) -> None:
        """Does nothing: the job owns the queues, and has synced them up to `dispatched`."""

    def _delete_expired(self, queue: ConsumeQueue, log_min_offset: int) -> bool:
        unmap_deleted(self._disk, queue)
        return not queue.expired(log_min_offset)

    def _delete_expired_index(self, log_min_offset: int) -> bool:
        return True


def append_only_engine(files: Files, layout: Layout, settings: Settings, clock: Callable[[], int]) -> Engine:
    """Returns the engine of an append-only store; it maps queues and index privately."""
    flags = RunningFlags()
    log = CommitLog(files, layout.commit_log, settings, clock)
    derived = DerivedFiles.of(OverlayFiles(), layout, settings, clock)
    dispatcher = ExternalDispatch(files, layout, log, derived, settings.delay_levels, flags, clock)
    deleted_topics = DeletedTopics(files, layout.deleted_topics)
    epochs = EpochFile(files, layout.epochs)
    return Engine(files, layout, settings, clock, flags, log, derived, dispatcher, deleted_topics, epochs)
