"""Walks the log one step ahead of who builds queues and index from it, so that two cores share the work.

The kernel that walks runs without the GIL. What it finds lies in one of two arrays: the one that is being built from,
and the one that is being filled. The log's files must stay mapped meanwhile, and nobody else may dispatch.


Dispatch: follows the log and builds queues and index from what it finds.

One thread, woken by puts; a reader that needs the newest messages may run a step itself. It never passes the log's
confirmed offset, so under SYNC_FLUSH consumers see nothing that is not on disk. Each step is idempotent: what a
queue or the index already has is passed over. A crash loses nothing: recovery dispatches again. Records of a topic that
was deleted after they were stored get no units; the index has them all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.placeholder import find_placeholders
from penstock.format.rows import ROW, Reason
from penstock.store.commit_log import CommitLog
from penstock.store.consume_queue import ConsumeQueue, Picks, Placeholders
from penstock.store.consume_queues import QueuesAndIndex
from penstock.store.damage import DamagedRange
from penstock.store.mapped_file import MappedFile
from penstock.store.records import Claims
from penstock.store.running_flags import RunningFlags, Trouble
from penstock.store.worker import Listeners

Derived: TypeAlias = tuple[kernels.Rows, int, int, kernels.Ints, kernels.Longs]
"""What `kernels.derive` returns: rows, where it stopped, why, and the hashes of the keys with their rows."""
Derive: TypeAlias = Callable[[memoryview, int, int, int, kernels.Rows], Derived]
_Place: TypeAlias = tuple[int, int, int]


class Ahead(Protocol):
    """Who knows what the next records are before they are asked for."""

    def take(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        """The records of [start, stop) of a file that begins at `base`, or the first of them."""
        ...


class LookAhead:
    """The step that is being looked at, if any."""

    def __init__(self, pool: ThreadPoolExecutor, derive: Derive, rooms: tuple[kernels.Rows, kernels.Rows]) -> None:
        self._pool = pool
        self._derive = derive
        self._rooms = rooms
        self._turn = 0
        self._place: _Place | None = None
        self._coming: Future[Derived] | None = None

    def take(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        """The records of [start, stop), as many as an array holds; those behind them are looked at from now on."""
        if self._coming is not None and self._place == (base, start, stop):
            found = self._coming.result()
        else:
            if self._coming is not None:
                self._coming.result()  # of a place that is not wanted after all; its array is in use until then
            found = self._derive(data, base, start, stop, self._rooms[self._turn])
        self._turn = 1 - self._turn
        self._place = self._coming = None
        _, reached, reason, _, _ = found
        if reason == Reason.FULL:
            self._place = (base, reached, stop)
            self._coming = self._pool.submit(self._derive, data, base, reached, stop, self._rooms[self._turn])
        return found


log = logging.getLogger("penstock.store")
_BATCH_ROWS = 16_384
_RETRY_SECONDS = 0.1
Arrived = Callable[[str, int, int, npt.NDArray[np.int64]], None]
"""Called with topic, queue id, the queue's new maximum and the tags codes of what arrived."""


class Dispatcher:
    """The position up to which queues and index are complete, and the thread that moves it."""

    def __init__(
        self,
        commit_log: CommitLog,
        derived: QueuesAndIndex,
        delay_levels: tuple[int, ...],
        flags: RunningFlags,
    ) -> None:
        self._log = commit_log
        self._queues = derived.queues
        self._index = derived.index
        self._delay_levels = delay_levels
        self._flags = flags
        self._topics = kernels.TopicTable()
        self._room = np.empty(_BATCH_ROWS, ROW)
        self._items = bytearray()
        self._ahead: Ahead | None = None
        self._step_lock = threading.Lock()
        self._turnstile = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = True
        """A start, or a repair: nobody looks yet, and records may have units already. Else they were just put."""
        self.position = 0
        """Physical offset up to which everything is dispatched. Only steps and `move_to` change it."""
        self.timestamp = 0
        """Store time of the newest record that is dispatched."""
        self.skipped_bytes = 0
        """Bytes of the log that were passed over because no valid record lies there."""
        self._damage: tuple[DamagedRange, ...] = ()
        self.passed_over: list[DamagedRange] = []
        """Ranges without a valid record that were not known, found at a start."""
        self._no_gap_before = -1
        self.placeholders = Placeholders()
        self._selects: Callable[[str, int], bool] | None = None
        self._deleted: Mapping[str, int] = {}
        self._restarts: Mapping[tuple[str, int], int] = {}
        self._remove_restarted: Callable[[ConsumeQueue, int], object] | None = None
        self._arrived: Listeners[[str, int, int, npt.NDArray[np.int64]]] = Listeners()
        self._advanced: Listeners[[]] = Listeners()
        self._gather_seconds = 0.0

    # -- what it is told -------------------------------------------------------------------------------------

    def on_arrival(self, arrived: Arrived) -> None:
        """Calls back, on the thread that dispatches, whenever messages became visible in a queue."""
        self._arrived.add(arrived)

    def on_advance(self, advanced: Callable[[], object]) -> None:
        """Calls back whenever the position has moved, on the thread that moved it."""
        self._advanced.add(advanced)

    def remove_advance_listener(self, advanced: Callable[[], object]) -> None:
        self._advanced.remove(advanced)

    def gather(self, seconds: float) -> None:
        """Lets messages come together for so long before the thread dispatches them; readers do not wait for it."""
        self._gather_seconds = seconds

    def set_deleted(self, deleted: Mapping[str, int], restarts: Mapping[tuple[str, int], int] | None = None) -> None:
        """Topics that were deleted, and single queues that began again at offset 0, each with a physical offset.

        Records before that offset get no units. Without `restarts` those known so far stay. The mappings must not
        change afterwards.
        """
        self._deleted = deleted
        if restarts is not None:
            self._restarts = restarts

    @property
    def deleted(self) -> Mapping[str, int]:
        """Topics that were deleted: their records before this physical offset get no units."""
        return self._deleted

    @property
    def restarts(self) -> Mapping[tuple[str, int], int]:
        """The same for single queues, by topic and queue id: where they began again at offset 0."""
        return self._restarts

    def on_restart(self, remove: Callable[[ConsumeQueue, int], object]) -> None:
        """In a slave: `remove` removes a queue whose messages begin at 0 again, from a physical offset on.

        It raises StoreFailed if it cannot.
        """
        self._remove_restarted = remove

    def set_damage(self, damage: Sequence[DamagedRange]) -> None:
        """Known ranges without a valid record, in log order: dispatch continues exactly behind each."""
        self._damage = tuple(damage)

    def build_only(self, selects: Callable[[str, int], bool] | None) -> None:
        """Which queues are built, by topic and queue id; None: all."""
        self._selects = selects

    def move_to(self, position: int) -> None:
        """Everything before this physical offset counts as dispatched. Nothing may be dispatching."""
        self.position = position

    def advance_timestamp(self, timestamp: int) -> None:
        """Records up to this store time are dispatched."""
        self.timestamp = max(self.timestamp, timestamp)

    @contextlib.contextmanager
    def refusing_gaps_before(self, position: int) -> Iterator[None]:
        """Within it, GapInQueue is raised where a queue lacks records before `position`: the log may have them."""
        self._no_gap_before = position
        try:
            yield
        finally:
            self._no_gap_before = -1

    # -- running ---------------------------------------------------------------------------------------------

    def end_start(self) -> None:
        """Start or repair is over: from now on records are dispatched that were just put."""
        self._starting = False

    def start(self) -> None:
        self.end_start()
        self._thread = threading.Thread(target=self._run, name="penstock-dispatch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            self._log.set_follower_asleep(True)
            if self.behind <= 0:
                self._wake.wait()
                self._wake.clear()
            self._log.set_follower_asleep(False)
            if self._gather_seconds:
                self._ending.wait(self._gather_seconds)
            while not self._try_catch_up() and not self._closed:
                self._wake.clear()
                self._wake.wait(_RETRY_SECONDS)

    def _try_catch_up(self) -> bool:
        """False if the disk has no room for queues or index: puts are refused until it has."""
        try:
            self.catch_up()
        except StoreFailed as error:
            trouble = Trouble.LOGICS_QUEUE_ERROR
            if not self._flags.bits & trouble:
                log.error("dispatch waits: %s", error)
            self._flags.raise_trouble(trouble, f"messages cannot be dispatched: {error}")
            return False
        self._flags.clear(Trouble.LOGICS_QUEUE_ERROR)
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
        """Bytes of the log that may be dispatched and are not yet."""
        return self._log.confirmed_offset - self.position

    @contextlib.contextmanager
    def standstill(self) -> Iterator[None]:
        """Nothing is dispatched inside; however busy dispatch is, it lets whoever asks for this go first."""
        with self._turnstile, self._step_lock:
            yield

    # -- working ---------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Dispatches everything that is confirmed now. Raises StoreFailed."""
        goal = self._log.confirmed_offset
        if self.position >= goal:
            return
        while self.position < goal:
            with self._turnstile:
                pass
            with self._step_lock:
                self.step()
        self._advanced.notify()

    def step(self) -> None:
        """Dispatches the next records of one file, or moves to the next file."""
        if self.position >= self._log.confirmed_offset:
            return
        file = self._log.queue.find(self.position)
        if file is None or not file.hold():
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
            ahead = self._next_damage()
            if ahead is not None and ahead.physical_offset <= self.position:
                self.skipped_bytes += ahead.end - self.position
                self.position = ahead.end
                return
            stop = stop if ahead is None else min(stop, ahead.physical_offset - base)
        rows, reached, reason, hashes, numbers = self._derived(data, base, start, stop)
        if len(rows):
            self._build(rows, hashes, numbers)
            self.timestamp = int(rows["store_timestamp"][-1])
        if reason == Reason.BLANK:
            reached = file.size
        elif reason not in (Reason.STOP, Reason.FULL):
            reached = self._pass_over(data, base, reached, stop, Reason(reason))
        self.position = base + reached

    def _derived(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        """What the next records are and where they go; while that is built, those behind them are looked at."""
        if self._ahead is None:
            return self.derive_here(data, base, start, stop)
        return self._ahead.take(data, base, start, stop)

    def derive_here(self, data: memoryview, base: int, start: int, stop: int) -> Derived:
        """What the next records are, found out now."""
        return self._derive(data, base, start, stop, self._room)

    @property
    def topics(self) -> kernels.Topics:
        """The numbers that topics have in what a step takes."""
        return self._topics

    def _derive(self, data: memoryview, base: int, start: int, stop: int, room: kernels.Rows) -> Derived:
        return kernels.derive(data, base, start, stop, self._topics, self._delay_levels, room)

    @contextlib.contextmanager
    def looking_ahead(self) -> Iterator[None]:
        """Within it, a second thread walks ahead of the steps: for who dispatches much, and has the store to itself."""
        rooms = self._room, np.empty(_BATCH_ROWS, ROW)
        with (
            ThreadPoolExecutor(1, "penstock-dispatch-ahead") as pool,
            self.taking_from(LookAhead(pool, self._derive, rooms)),
        ):
            yield

    @contextlib.contextmanager
    def taking_from(self, ahead: Ahead) -> Iterator[None]:
        """Within it, steps take what the next records are from somebody who has looked at them before."""
        self._ahead = ahead
        try:
            yield
        finally:
            self._ahead = None

    def _next_damage(self) -> DamagedRange | None:
        """The known range that begins next, or that the position lies in."""
        at = bisect_right(self._damage, self.position, key=lambda each: each.end)
        return self._damage[at] if at < len(self._damage) else None

    def _build(self, rows: kernels.Rows, hashes: kernels.Ints, numbers: kernels.Longs) -> None:
        claims: Claims | None = None
        groups = kernels.group_rows(rows)
        if self._starting:
            claims = Claims(self._queues, rows)
            self.placeholders.log_is_whole = self._log.min_offset == 0
            if sum(len(picks) for _, _, picks in groups) < len(rows):  # placeholders have no units
                self.placeholders.add(find_placeholders(rows, self._topics.name))
        for topic_id, queue_id, picks in groups:
            topic = self._topics.name(topic_id)
            picks = self._belonging(topic, queue_id, rows, picks, claims)
            if not len(picks):
                continue
            queue = self._queues.find_or_add(topic, queue_id)
            if queue is None:
                log.warning(
                    "%d records of %r queue %d have no legal name and get no queue", len(picks), topic, queue_id
                )
                continue
            if self._remove_restarted is not None and (again := _begin_of_last(queue, rows, picks)) > 0:
                picks = picks[again - 1 :]
                self._remove_restarted(queue, int(rows["physical_offset"][picks[0]]))
                queue = self._queues.find_or_add(topic, queue_id)
                assert queue is not None, "it had a legal name"
            is_new = queue.append(rows, picks, no_gap_before=self._no_gap_before, placeholders=self.placeholders)
            if is_new and self._arrived:
                self._arrived.notify(topic, queue_id, queue.max_offset, rows["tags_code"][picks])
        if self._index is not None:
            offsets, times = rows["physical_offset"][numbers], rows["store_timestamp"][numbers]
            self._index.append(hashes, offsets, times, room=None if claims is None else self._items)

    def _belonging(self, topic: str, queue_id: int, rows: kernels.Rows, picks: Picks, claims: Claims | None) -> Picks:
        """Those of the rows that name a queue which get units there."""
        if self._selects is not None and not self._selects(topic, queue_id):
            return picks[:0]
        if topic in self._deleted or (topic, queue_id) in self._restarts:
            begin = max(self._deleted.get(topic, 0), self._restarts.get((topic, queue_id), 0))
            picks = picks[rows["physical_offset"][picks] >= begin]
        if claims is not None and len(picks):
            wrong = claims.denied(self._queues.find(topic, queue_id), rows, picks)
            if wrong.any():
                log.warning("%s queue %d: %d records cannot belong there", topic, queue_id, np.count_nonzero(wrong))
                picks = picks[~wrong]
        return picks

    def tags_code(self, record: bytes, offset: int) -> int:
        """The tags code of the unit of a valid record that lies at `offset`."""
        rows, _, _ = kernels.walk(record, offset, 0, len(record), False, None, 1)
        kernels.tag_codes(record, offset, rows, self._delay_levels)
        return int(rows["tags_code"][0])

    def _pass_over(self, data: memoryview, base: int, position: int, stop: int, reason: Reason) -> int:
        """No valid record here, yet the log goes on: finds where it does."""
        found = kernels.find_record(data, base, position + 1, stop, True)
        reached = stop if found < 0 else found
        self.skipped_bytes += reached - position
        if self._starting:
            self.passed_over.append(DamagedRange(base + position, reached - position, reason.name))
        log.warning(
            "no valid record at %d (%s): %d bytes are passed over", base + position, reason.name, reached - position
        )
        return reached


def _begin_of_last(queue: ConsumeQueue, rows: kernels.Rows, picks: Picks) -> int:
    """Which pick, counted from 1, a queue begins anew with; 0 if it goes on.

    Only a slave meets that: it may see messages of a topic that was deleted and made again before it is told so.
    """
    begins = np.flatnonzero(rows["queue_offset"][picks] == 0)
    if not len(begins):
        return 0
    last = int(begins[-1])
    is_new = int(rows["physical_offset"][picks[last]]) >= max(queue.max_physical_offset, 0)
    return last + 1 if is_new and (last or queue.max_offset) else 0
