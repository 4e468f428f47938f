"""Dispatch: follows the commit log and appends to consume queues and index.

New visible records wake the dispatch thread: under SYNC_FLUSH after a sync, else after an append. After each round it
rests for a millisecond, so that a busy store wakes it once a millisecond and not with each put. A reader that needs the
newest messages may run steps itself; a lock allows one step at a time. Dispatch never passes the log's confirmed
offset, so under SYNC_FLUSH consumers see only messages on disk.

Steps are idempotent: units and index items that exist are skipped. A crash loses nothing, because recovery dispatches
again. A record gets no unit if its topic was deleted after the record was stored; the index contains it all the same.

Records are derived by `queue_units_and_keys.py`. During recovery `DerivePrefetch` derives the next records on a second
core while the current ones are written to queues and index.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import UNIT
from penstock.format.scan import next_valid, row_at
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, Placeholders, QueueRun, split_runs
from penstock.store.consume_queues import DerivedFiles
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.files.mapped_file import MappedFile
from penstock.store.queue_units_and_keys import DerivedPiece, DerivePrefetch, Deriver, DeriveSource, key_columns
from penstock.store.running_flags import RunningFlags, StoreFault
from penstock.store.single_record_reader import UnitClaims
from penstock.store.worker_thread import Died, Listeners, reporting_death

log = logging.getLogger("penstock.store")
_RETRY_SECONDS = 0.1
_REST_SECONDS = 0.001
Arrived = Callable[[str, int, int, npt.NDArray[np.int64]], None]
"""Takes topic, queue id, the queue's new max offset, and the tags codes of the new messages."""


class DispatchLag(NamedTuple):
    """How far dispatch is behind the log."""

    behind_bytes: int
    behind_ms: int = 0
    """The age of the oldest message that is not visible yet. Only external dispatch measures it."""
    problem: str = ""
    """Why messages do not reach their queues, and what to do, as a sentence; empty if they do."""


class Dispatcher:
    """The offset up to which queues and index are complete, and the thread that advances it."""

    def __init__(
        self,
        commit_log: CommitLog,
        derived: DerivedFiles,
        delay_levels: tuple[int, ...],
        flags: RunningFlags,
    ) -> None:
        self._log = commit_log
        self._queues = derived.queues
        self._index = derived.index
        self._delay_levels = delay_levels
        self._flags = flags
        self.deriver = Deriver(delay_levels, with_keys=derived.index is not None, check_offsets=True)
        self._index_items = bytearray()
        self._source: DeriveSource = self.deriver
        self._step_lock = threading.Lock()
        self._turnstile = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = True
        """True during recovery: there are no readers, and records may already have units."""
        self.position = 0
        """Physical offset up to which all records are dispatched. Only steps and `move_to` change it."""
        self.timestamp = 0
        """Store time in ms of the newest dispatched record."""
        self.skipped_bytes = 0
        """Bytes of the log that were skipped because they hold no valid record."""
        self._damage: tuple[DamagedRange, ...] = ()
        self.skipped_ranges: list[DamagedRange] = []
        """Damaged ranges that dispatch met, during recovery and since, and `set_damage` did not name."""
        self._no_gap_before = -1
        self.placeholders = Placeholders()
        self._deleted: Mapping[str, int] = {}
        self._restarts: Mapping[tuple[str, int], int] = {}
        self._remove_restarted: Callable[[ConsumeQueue, int], object] | None = None
        self._arrived: Listeners[[str, int, int, npt.NDArray[np.int64]]] = Listeners()
        self._advanced: Listeners[[]] = Listeners()
        self._batch_delay = 0.0
        self._died: Died | None = None

    # -- configuration ---------------------------------------------------------------------------------------

    def on_arrival(self, arrived: Arrived) -> None:
        """Calls `arrived` when messages become visible in a queue, on the thread that dispatched them."""
        self._arrived.add(arrived)

    def on_advance(self, advanced: Callable[[], object]) -> None:
        """Calls `advanced` after `catch_up` has moved the position, on the thread that moved it."""
        self._advanced.add(advanced)

    def remove_advance_listener(self, advanced: Callable[[], object]) -> None:
        self._advanced.remove(advanced)

    def set_batch_delay(self, seconds: float) -> None:
        """Makes the dispatch thread wait this long for more messages before it dispatches. Readers do not wait."""
        self._batch_delay = seconds

    def set_deleted(self, deleted: Mapping[str, int], restarts: Mapping[tuple[str, int], int] | None = None) -> None:
        """Sets the deleted topics, and the single queues that restarted at queue offset 0.

        Each has a physical offset; records before that offset get no units. With `restarts=None` the known restarts
        stay. The caller must not change the mappings afterwards.
        """
        self._deleted = deleted
        if restarts is not None:
            self._restarts = restarts

    @property
    def deleted(self) -> Mapping[str, int]:
        """By deleted topic, the physical offset before which the topic's records get no units."""
        return self._deleted

    @property
    def restarts(self) -> Mapping[tuple[str, int], int]:
        """Like `deleted`, for single queues that restarted at queue offset 0, by (topic, queue id)."""
        return self._restarts

    def on_restart(self, remove: Callable[[ConsumeQueue, int], object] | None) -> None:
        """Makes a slave's dispatcher call `remove(queue, physical offset)` when a queue restarts at queue offset 0.
        None: this is no slave.

        `remove` must delete the old queue, or raise StoreFailed. The physical offset is that of the record with queue
        offset 0.
        """
        self._remove_restarted = remove
        if not self._starting:
            self._renew_deriver()

    def set_damage(self, damage: Sequence[DamagedRange]) -> None:
        """Sets the known damaged ranges, in log order. Dispatch skips them."""
        self._damage = tuple(damage)

    def end_of_damage(self, offset: int) -> int:
        """Returns where the known damaged range at this physical offset ends; `offset` if there is none."""
        damage = self._next_damage(offset)
        return damage.end if damage is not None and damage.physical_offset <= offset else offset

    def move_to(self, position: int) -> None:
        """Sets the position. No step may be running."""
        self.position = position

    def advance_timestamp(self, timestamp: int) -> None:
        """Raises `timestamp` to this store time in ms: records up to it are dispatched."""
        self.timestamp = max(self.timestamp, timestamp)

    @contextlib.contextmanager
    def refusing_gaps_before(self, position: int) -> Iterator[None]:
        """Inside, steps raise GapInQueue if a queue has a gap whose records may lie in the log before `position`."""
        self._no_gap_before = position
        try:
            yield
        finally:
            self._no_gap_before = -1

    # -- running ---------------------------------------------------------------------------------------------

    def end_recovery(self) -> None:
        """Marks the end of recovery: every record dispatched later is new."""
        self._starting = False
        self._renew_deriver()

    def _renew_deriver(self) -> None:
        is_slave = self._remove_restarted is not None  # its records come from the network
        with_keys = self._index is not None
        self._source = self.deriver = Deriver(self._delay_levels, with_keys=with_keys, check_offsets=is_slave)

    def start(self) -> None:
        self.end_recovery()
        self._thread = threading.Thread(target=self._supervised, name="penstock-dispatch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def supervise(self, died: Died) -> None:
        """Calls `died`, on the dispatch thread, if an exception ends it. To be called before `start`."""
        self._died = died

    def _supervised(self) -> None:
        with reporting_death("penstock-dispatch", self._died):
            self._run()

    def _run(self) -> None:
        while not self._closed:
            self._log.set_follower_asleep(True)
            if self.behind <= 0:
                self._wake.wait()
                self._wake.clear()
            self._log.set_follower_asleep(False)
            if self._batch_delay:
                self._ending.wait(self._batch_delay)
            while not self._try_catch_up() and not self._closed:
                self._wake.clear()
                self._wake.wait(_RETRY_SECONDS)
            if not self._batch_delay:
                time.sleep(_REST_SECONDS)

    def _try_catch_up(self) -> bool:
        """Dispatches what is missing. If the disk has no room for it, makes the store refuse puts and returns False."""
        try:
            self.catch_up()
        except StoreFailed as error:
            fault = StoreFault.LOGICS_QUEUE_ERROR
            if not self._flags.bits & fault:
                log.error("dispatch waits: %s", error)
            self._flags.raise_fault(fault, f"messages cannot be dispatched: {error}")
            return False
        self._flags.clear(StoreFault.LOGICS_QUEUE_ERROR)
        return True

    def stop(self) -> None:
        """Ends the thread after one last attempt to catch up."""
        self._closed = True
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._try_catch_up()

    @property
    def behind(self) -> int:
        """The dispatch lag: bytes of the confirmed log that are not dispatched yet."""
        return self._log.confirmed_offset - self.position

    def lag(self) -> DispatchLag:
        """Returns how far dispatch is behind. Does not wait for a disk. Any thread may call it."""
        return DispatchLag(max(self.behind, 0))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, no step runs. The turnstile lets a waiting caller in before the next step of a busy dispatch."""
        with self._turnstile, self._step_lock:
            yield

    def hold(self, position: int | None) -> None:
        """Keeps the messages from `position` on from a job in another process; None ends that.

        Does nothing where this process dispatches: what is truncated in the log is truncated in its queues, too.
        """

    # -- dispatching -----------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Dispatches up to the current confirmed offset. Raises StoreFailed."""
        goal = self._log.confirmed_offset
        if self.position >= goal:
            return
        while self.position < goal:
            with self._turnstile:
                pass
            with self._step_lock:
                self.step()
        self._advanced.notify()

    def try_catch_up(self) -> bool:
        """Like `catch_up`, but returns False at once if another thread runs a step, or keeps dispatch paused."""
        goal = self._log.confirmed_offset
        if self.position >= goal:
            return True
        while self.position < goal:
            if self._turnstile.locked() or not self._step_lock.acquire(blocking=False):
                return False
            try:
                self.step()
            finally:
                self._step_lock.release()
        self._advanced.notify()
        return True

    def step(self) -> None:
        """Dispatches the next records of one log file, or moves to the next file. No other step may run meanwhile."""
        if self.position >= self._log.confirmed_offset:
            return
        file = self._log.queue.find(self.position)
        if file is None or not file.acquire():
            self.position = max(self._log.min_offset, self._log.roll_next(self.position))
            return
        try:
            self._step_in(file)
        finally:
            file.release()

    def _step_in(self, file: MappedFile) -> None:
        data, base = file.map.view, file.from_offset
        stop = min(self._log.confirmed_offset - base, file.readable)
        start = self.position - base
        if self._damage:
            damage = self._next_damage(self.position)
            if damage is not None and damage.physical_offset <= self.position:
                self.skipped_bytes += damage.end - self.position
                self.position = damage.end
                return
            stop = stop if damage is None else min(stop, damage.physical_offset - base)
        piece = self._source.derive(data, base, start, stop)
        reached = piece.reached - base
        if reached > start:
            self._build(piece)
            self.timestamp = piece.newest
        if piece.reason == Reason.BLANK:
            reached = file.size
        elif piece.reason not in (Reason.STOP, Reason.FULL):
            reached = self._skip_damage(data, base, reached, stop, Reason(piece.reason))
        self.position = base + reached

    @contextlib.contextmanager
    def prefetching(self) -> Iterator[None]:
        """Inside, a second thread derives ahead of the steps. Only for recovery: it has the store to itself."""
        with (
            ThreadPoolExecutor(1, "penstock-dispatch-ahead") as pool,
            self.deriving_from(DerivePrefetch(pool, self.deriver)),
        ):
            yield

    @contextlib.contextmanager
    def deriving_from(self, source: DeriveSource) -> Iterator[None]:
        """Inside, steps get their pieces from `source`."""
        self._source = source
        try:
            yield
        finally:
            self._source = self.deriver

    def _next_damage(self, offset: int) -> DamagedRange | None:
        """Returns the first known damaged range that ends after this physical offset; None if there is none."""
        damage = self._damage
        at = bisect_right(damage, offset, key=lambda each: each.end)
        return damage[at] if at < len(damage) else None

    def _build(self, piece: DerivedPiece) -> None:
        claims: UnitClaims | None = None
        if self._starting:
            claims = UnitClaims(self._queues, piece.start, piece.reached)
            self.placeholders.log_is_whole = self._log.min_offset == 0
            self.placeholders.add(piece.placeholders)
        for topic, queue_id, runs, units in piece.queues:
            wanted = self._wanted(topic, queue_id, split_runs(runs, units), claims)
            if not wanted:
                continue
            queue = self._queues.find_or_add(topic, queue_id)
            if queue is None:
                log.warning("records of %r queue %d have no legal name and get no queue", topic, queue_id)
                continue
            if self._remove_restarted is not None and (restart := _restart(queue, wanted)) is not None:
                wanted = wanted[restart:]
                self._remove_restarted(queue, wanted[0].physical_offset)
                queue = self._queues.find_or_add(topic, queue_id)
                assert queue is not None, "its name was legal"
            added = 0
            for run in wanted:
                added += queue.append(run, no_gap_before=self._no_gap_before, placeholders=self.placeholders)
            if added and self._arrived:
                codes = np.frombuffer(units, UNIT)["tags_code"].astype(np.int64)
                self._arrived.notify(topic, queue_id, queue.max_offset, codes)
        if self._index is not None and len(piece.keys):
            self._index.append(*key_columns(piece.keys), buffer=None if claims is None else self._index_items)

    def _wanted(self, topic: str, queue_id: int, runs: list[QueueRun], claims: UnitClaims | None) -> list[QueueRun]:
        """Returns the runs of one queue without the units that the queue does not get."""
        if topic in self._deleted or (topic, queue_id) in self._restarts:
            begin = max(self._deleted.get(topic, 0), self._restarts.get((topic, queue_id), 0))
            runs = [part for run in runs for part in run.where(run.columns["offset"] >= begin)]
        if claims is not None and runs:
            queue = self._queues.find(topic, queue_id)
            masks = [claims.misplaced(queue, run) for run in runs]
            if wrong := sum(int(np.count_nonzero(mask)) for mask in masks):
                log.warning("%s queue %d: %d records cannot belong there", topic, queue_id, wrong)
                runs = [part for run, mask in zip(runs, masks, strict=True) for part in run.where(~mask)]
        return runs

    def tags_code(self, record: bytes, offset: int) -> int:
        """Computes the tags code that the unit of a valid record has. `offset` is the record's physical offset."""
        rows = row_at(record, offset, 0)
        kernels.tag_codes(record, offset, rows, self._delay_levels)
        return int(rows["tags_code"][0])

    def _skip_damage(self, data: memoryview, base: int, position: int, stop: int, reason: Reason) -> int:
        """Skips the invalid bytes at `position`. Returns the position of the next valid record, or `stop`."""
        found = next_valid(data, base, position + 1, stop)
        reached = stop if found < 0 else found
        self.skipped_bytes += reached - position
        self.skipped_ranges.append(DamagedRange(base + position, reached - position, reason.name))
        log.warning("no valid record at %d (%s): %d bytes skipped", base + position, reason.name, reached - position)
        return reached


def _restart(queue: ConsumeQueue, runs: list[QueueRun]) -> int | None:
    """Returns the number of the run at which a queue restarts at queue offset 0; None if the queue does not restart.

    Only a slave needs this. Its master may delete a topic and create it again. The slave may receive the new messages
    before it learns of the deletion.
    """
    last = max((number for number, run in enumerate(runs) if run.first == 0), default=None)
    if last is None or runs[last].physical_offset < max(queue.max_physical_offset, 0):
        return None
    return last if last or queue.max_offset else None
