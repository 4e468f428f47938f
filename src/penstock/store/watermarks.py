"""Watermarks: how far the log is appended, flushed, replicated and visible, and the puts that wait for it.

All four are physical offsets. They only grow, except when recovery truncates the log.

    appended      the end of the log; it moves with each append, and notifies no one
    flushed       on disk; the thread that syncs the log moves it
    replicated    acknowledged by replicas; the replication server moves it with `acknowledge`
    visible       what is dispatched and read: `stored`, as far as the replicas that have to have it do

`stored` is `flushed` under SYNC_FLUSH, else all readable records. Slaves are sent the log up to there.

Without a set of required replicas any slave's ack counts, and what is stored is visible, as in RocketMQ. `require` puts
a set into force: a put on a SYNC_MASTER then waits until every replica of the set has reported its record in the
present epoch, and consumers see no record before that. The master itself is not named in the set, so the empty set is
that of a master alone, whose puts wait for no replica. On a slave the master's `confirm` limits what is visible. What
was visible once stays visible.

A wait belongs to an epoch. A change of the role ends all waits for replicas before the role changes, forgets all
reports, and leaves a set that is in force empty: a new master is alone. Reports of another epoch are ignored.

`wait` and `wait_here` are the only ways to wait for the safety of a record. `Needs` says what a put waits for: the disk
under SYNC_FLUSH, a slave on a SYNC_MASTER. A change of the role changes the needs of later records only. A wait ends
with the status of its put: PUT_OK; FLUSH_DISK_TIMEOUT after syncFlushTimeout or `close`; FLUSH_SLAVE_TIMEOUT after
slaveTimeout, `close` or a change of the role; SLAVE_NOT_AVAILABLE if there is no set and no slave can acknowledge soon;
UNKNOWN_ERROR if the log could not be synced. A put that waits for both ends once both are decided. A slave's status
wins over FLUSH_DISK_TIMEOUT, as in RocketMQ, and UNKNOWN_ERROR wins over all.

Waits wait in one queue per watermark, in log order, so one sync or one ack ends all waits up to its offset. They are
handed to their sink in one call, on the thread that moved the watermark: an event loop is woken once for all of them.

Under SYNC_FLUSH the first who waits leads: it has the log synced for all who wait, in its own thread if it blocks in
`wait_here`, else in the flush thread. Those who come meanwhile wait. When the sync ends, the leader ends the waits that
it covers. If others wait, the first of them leads next. So one thread at a time leads, no other thread takes part, and
no put waits while no put leads. A leader returns when its sync does, even after its deadline.

The thread `penstock-deadlines` ends overdue waits. It is a thread of the store and not a timer of the event loop,
because puts wait without a loop, too, and only one place should decide between an ack and a timeout.

Thread-safe. Nothing is kept on disk: after a restart the flushed offset comes from recovery, and slaves report again.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.message import PutStatus
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.worker_thread import Listeners, Worker, noop

T = TypeVar("T")
_NO_LIMIT: Final = 2**63 - 1

_RANKS: Final = {
    PutStatus.PUT_OK: 0,
    PutStatus.FLUSH_DISK_TIMEOUT: 1,
    PutStatus.FLUSH_SLAVE_TIMEOUT: 2,
    PutStatus.SLAVE_NOT_AVAILABLE: 2,
    PutStatus.UNKNOWN_ERROR: 3,
}
"""Of two statuses of one wait the higher wins."""


class Needs(NamedTuple):
    """The watermarks that a put waits for."""

    flushed: bool
    replicated: bool


class Waiter(Generic[T]):
    """One wait for the safety of the log up to `end_offset`. `token` is the caller's own object."""

    __slots__ = ("end_offset", "leads", "missing", "reason", "sink", "status", "token")

    def __init__(self, end_offset: int, sink: Sink[T], token: T) -> None:
        self.end_offset = end_offset
        self.sink = sink
        self.token = token
        self.missing = 0
        """Number of watermarks that are still awaited."""
        self.leads = False
        """Whether this wait's caller has to have the log synced."""
        self.status = PutStatus.PUT_OK
        """The status of the put; final when the sink is called."""
        self.reason = ""
        """One sentence for every status except PUT_OK."""

    def note(self, status: PutStatus, reason: str) -> None:
        """Notes the status for one of the watermarks."""
        if _RANKS[status] > _RANKS[self.status]:
            self.status, self.reason = status, reason


Sink = Callable[[list[Waiter[T]]], object]
"""Takes waits that have ended, in log order. It must not block, and must not raise."""


class _Line:
    """The waits for one watermark, in log order. All have the same time limit, so the first one is the next overdue."""

    def __init__(self, limit_ms: int) -> None:
        self.limit_s = limit_ms / 1000
        self._waits: deque[tuple[int, float, Waiter[Any]]] = deque()

    def add(self, waiter: Waiter[Any]) -> float:
        """Adds a wait. Returns its deadline. Searches its place from the end, because most puts are the newest."""
        waits, deadline = self._waits, time.monotonic() + self.limit_s
        waiter.missing += 1
        place = len(waits)
        while place and waits[place - 1][0] > waiter.end_offset:
            place -= 1
        waits.insert(place, (waiter.end_offset, deadline, waiter))
        return deadline

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def first(self) -> Waiter[Any] | None:
        return self._waits[0][2] if self._waits else None

    @property
    def next_deadline(self) -> float:
        return self._waits[0][1] if self._waits else inf

    def pop_reached(self, offset: float) -> Iterable[Waiter[Any]]:
        """Removes and yields the waits for the log up to `offset`."""
        waits = self._waits
        while waits and waits[0][0] <= offset:
            yield waits.popleft()[2]

    def pop_overdue(self, now: float) -> Iterable[Waiter[Any]]:
        waits = self._waits
        while waits and waits[0][1] <= now:
            yield waits.popleft()[2]


class Watermarks:
    """The watermarks of one log, and the waits for them."""

    def __init__(self, queue: MappedFileQueue, settings: Settings) -> None:
        self._queue = queue
        self._sync_flush = settings.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._max_lag = settings.ha_slave_fallbehind_max
        self.role = Role(settings.broker_role)
        """Exchanged with `change_role`."""
        self._changed_at = -1
        """The end of the log at the last change of the role; -1 if there was none."""
        self._slaves_before = False
        """Whether a put has had to wait for a slave under any role before the present one."""
        self._required: frozenset[int] | None = None
        """The replicas, without this one, that must have a record before it is acknowledged; None: any slave will do"""
        self._min_in_sync = settings.min_in_sync_replicas
        self._reports: dict[int, int] = {}
        """By replica id, the physical offset up to which it has the log, by its reports in the present epoch."""
        self._joined: set[int] = set()
        """The replicas that are connected."""
        self._replicated = 0
        """Physical offset up to which puts count as replicated; _NO_LIMIT for a master that is alone in its set."""
        self._limit = _NO_LIMIT
        """Physical offset after which nothing is visible, however much is stored."""
        self._failed: list[Waiter[Any]] = []
        """Waits that a change of the role has ended and whose sinks are not called yet."""
        self.connected_slaves = 0
        self.failure: str | None = None
        """Why a sync of the log failed; None if none has. After a failure the log is never synced again."""
        self._syncing_since: float | None = None
        self._gate = threading.Lock()
        self._disk = _Line(settings.sync_flush_timeout)
        self._slaves = _Line(settings.slave_timeout)
        self._closed: str | None = None
        """Why no put can wait any more; None while puts can."""
        self._lead: Callable[[], object] = noop
        self._wake_flush: Callable[[], object] = noop
        self._has_leader = False
        """Whether a thread syncs the log, or has been chosen to do it next."""
        self._wanted = 0
        """Physical offset up to which the log has to be synced: for waits, or by `sync_soon`."""
        self._progress = (0, 0)
        """`_wanted` and `flushed` at the end of the last lead. If neither has moved, another sync would be in vain."""
        self._alarm = inf
        """When the deadline thread wakes next, at the latest."""
        self.deadlines = DeadlineThread(self)
        """Ends overdue waits. The store starts it if its puts wait for anything."""
        self._no_slave_since = ""
        """Why puts of a former role were not acknowledged."""
        self._on_advance: Listeners[[]] = Listeners()
        self._on_slave_wait: Listeners[[]] = Listeners()
        self._on_role_change: Listeners[[Role]] = Listeners()

    @property
    def appended(self) -> int:
        """Physical offset at which the log ends."""
        return self._queue.wrote_offset

    @property
    def flushed(self) -> int:
        """Physical offset up to which the log is on disk."""
        return self._queue.flushed_where

    @property
    def stored(self) -> int:
        """Physical offset up to which this replica has the log, as safely as flushDiskType says. Slaves may get it."""
        return self._queue.flushed_where if self._sync_flush else self._queue.max_offset

    @property
    def replicated(self) -> int:
        """Physical offset up to which all required replicas have the log; without a set, at least one slave."""
        return min(self._replicated, self.appended) if self._required is not None else self._replicated

    @property
    def visible(self) -> int:
        """Physical offset up to which consumers may see records."""
        stored, limit = self._queue.flushed_where if self._sync_flush else self._queue.max_offset, self._limit
        return stored if stored < limit else limit

    @property
    def is_limited(self) -> bool:
        """Whether an append, or a sync, is not enough to make a record visible."""
        return self._limit != _NO_LIMIT

    @property
    def has_confirmed(self) -> bool:
        """Whether this slave has all that its master has last said is confirmed. False if none has said anything."""
        return self._limit <= self.stored

    @property
    def confirmed(self) -> int:
        """Physical offset up to which consumers may have seen the log, if replicas decide that; else 0."""
        return self.visible if self.is_limited or self._required is not None else 0

    @property
    def required(self) -> frozenset[int] | None:
        """The replicas that must have a record before it is acknowledged, without this one; None: any slave will do."""
        return self._required

    @property
    def reports(self) -> dict[int, int]:
        """By replica id, the physical offset that it reported last in the present epoch."""
        return dict(self._reports)

    @property
    def has_enough_replicas(self) -> bool:
        """Whether the set in force, with this replica, has minInSyncReplicas members. True without a set."""
        return self._required is None or len(self._required) + 1 >= self._min_in_sync

    @property
    def epoch(self) -> int:
        """The epoch of the present role."""
        return self.role.epoch

    @property
    def needs(self) -> Needs:
        """What a put waits for under the present role."""
        return Needs(self._sync_flush, self.role.waits_for_slave)

    @property
    def may_wait(self) -> bool:
        """Whether a put has to ask `wait` how it ends: under the present role, or because it may be older than it."""
        return self._sync_flush or self.role.waits_for_slave or self._slaves_before

    # -- listeners -------------------------------------------------------------------------------------------

    def on_advance(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when `flushed` or `visible` may have moved, except by an append, and after a failure.

        It runs on the thread that moved the watermark, after the waits were ended.
        """
        self._on_advance.add(callback)

    def remove_advance_listener(self, callback: Callable[[], object]) -> None:
        self._on_advance.remove(callback)

    def on_slave_wait(self, callback: Callable[[], object]) -> None:
        """Calls `callback`, on any thread, when a put starts to wait for a slave: the server must send the log now."""
        self._on_slave_wait.add(callback)

    def remove_slave_wait_listener(self, callback: Callable[[], object]) -> None:
        self._on_slave_wait.remove(callback)

    def on_role_change(self, callback: Callable[[Role], object]) -> None:
        """Calls `callback` with the new role, on the thread that changed it."""
        self._on_role_change.add(callback)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, end_offset: int, sink: Sink[T], token: T) -> Waiter[T]:
        """Calls `sink` once the log is safe up to `end_offset`, or it is certain that it is not in time.

        `sink` is called at once, on this thread, if there is nothing to wait for.
        """
        waiter = Waiter(end_offset, sink, token)
        try:
            is_over = self._begin(waiter)
        finally:
            if waiter.leads:
                self._wake_flush()
        if is_over:
            sink([waiter])
        return waiter

    def wait_here(self, end_offset: int) -> Waiter[Any]:
        """Returns once the log is safe up to `end_offset`, or it is certain that it is not in time.

        This thread syncs the log if it has to lead. If an exception interrupts it, the flush thread leads instead.
        """
        waiter = Waiter(end_offset, _unblock, _thread.allocate_lock())
        waiter.token.acquire()
        try:
            self._begin(waiter)
            while waiter.leads or waiter.missing:
                if waiter.leads:
                    self._lead()
                    self.pass_lead(waiter)
                else:
                    waiter.token.acquire()
        except BaseException:
            self._abandon(waiter)
            raise
        return waiter

    def _begin(self, waiter: Waiter[Any]) -> bool:
        """Adds a wait to the lines of the watermarks that it needs. Returns whether there is nothing to wait for."""
        end_offset, deadline, awaits_slave = waiter.end_offset, inf, False
        with self._gate:
            if self._sync_flush and self._queue.flushed_where < end_offset:
                if self._closed is None:
                    deadline = self._disk.add(waiter)
                    waiter.leads = self._take_lead(end_offset)
                else:
                    waiter.note(*self._not_on_disk(self._closed))
            is_old = end_offset <= self._changed_at
            if is_old and self._slaves_before:
                waiter.note(PutStatus.FLUSH_SLAVE_TIMEOUT, self._no_slave_since)
            elif not is_old and self.role.waits_for_slave and self._replicated < end_offset:
                awaits_slave = self._closed is None and self._is_slave_near(end_offset)
                if self._closed is not None:
                    waiter.note(PutStatus.FLUSH_SLAVE_TIMEOUT, _no_ack(self._closed))
                elif awaits_slave:
                    deadline = min(deadline, self._slaves.add(waiter))
                else:
                    waiter.note(PutStatus.SLAVE_NOT_AVAILABLE, _NO_SLAVE)
            is_sooner = deadline < self._alarm
            if is_sooner:
                self._alarm = deadline
            is_over = not waiter.missing
        if is_sooner:
            self.deadlines.wake()
        if awaits_slave:
            self._on_slave_wait.notify()
        return is_over

    def _is_slave_near(self, end_offset: int) -> bool:
        """Whether a slave is connected and the acks are less than haSlaveFallbehindMax bytes behind `end_offset`.

        A set is always waited for: the caller of `require` decides when a replica is not worth it any more.
        """
        if self._required is not None:
            return True
        return self.connected_slaves > 0 and end_offset - self._replicated < self._max_lag

    # -- leading ---------------------------------------------------------------------------------------------

    def on_lead(self, lead: Callable[[], object], wake_flush: Callable[[], object]) -> None:
        """`lead` syncs the log on the thread of a leader; it must not raise what it can report. `wake_flush` has the
        flush thread lead: it calls `pass_lead` after its sync.
        """
        self._lead, self._wake_flush = lead, wake_flush

    def sync_soon(self, end_offset: int) -> None:
        """Has the log synced up to `end_offset`, although no put waits for it. Does nothing under ASYNC_FLUSH."""
        if self._sync_flush:
            with self._gate:
                leads = self._take_lead(end_offset)
            if leads:
                self._wake_flush()

    def _take_lead(self, end_offset: int) -> bool:
        """Asks for a sync up to `end_offset`. Returns whether the caller has to lead. The caller holds the gate."""
        self._wanted = max(self._wanted, end_offset)
        leads = not self._has_leader and self._closed is None
        self._has_leader = self._has_leader or leads
        return leads

    def pass_lead(self, leader: Waiter[Any] | None = None) -> None:
        """Ends the lead of a thread, after its sync. If more has to be synced, the first who waits leads next.

        That is the flush thread if the first is an asynchronous caller.
        """
        with self._gate:
            if leader is not None:
                leader.leads = False
            progress = self._wanted, self._queue.flushed_where
            self._has_leader = progress[0] > progress[1] and progress != self._progress and self._closed is None
            self._progress = progress
            first = self._disk.first
            follower = first if self._has_leader and first is not None and first.sink is _unblock else None
            if follower is not None:
                follower.leads = True
            has_leader = self._has_leader
        if follower is not None:
            _unblock([follower])
        elif has_leader:
            self._wake_flush()

    def _abandon(self, waiter: Waiter[Any]) -> None:
        """Leaves a wait whose thread was interrupted. If it leads, or is chosen to, the flush thread leads instead."""
        with self._gate:
            waiter.sink = _ignore
            leads, waiter.leads = waiter.leads, False
        if leads:
            self._wake_flush()

    # -- changing the role -----------------------------------------------------------------------------------

    def enter_epoch(self, epoch: int) -> None:
        """Sets the epoch of the present role: at the start, and when a slave follows the master of a newer epoch."""
        with self._gate:
            self.role = Role(self.role.name, epoch)

    def change_role(self, role: Role) -> None:
        """Ends all waits for slaves, then exchanges the role. An ack that comes later would be one to another master.

        The caller holds the put lock, and calls `role_changed` when it has released it.
        """
        with self._gate:
            self._slaves_before = self._slaves_before or self.role.waits_for_slave
            self._changed_at, self._no_slave_since = self.appended, _no_slave_since(role)
            former = self._slaves.pop_reached(inf)
            self._failed += _end(former, PutStatus.FLUSH_SLAVE_TIMEOUT, self._no_slave_since)
            self._reports.clear()
            self._joined.clear()
            stays_limited = role.takes_replica_bytes and (self.is_limited or self._required is not None)
            self._limit = self.visible if stays_limited else _NO_LIMIT
            self._required = None if self._required is None else frozenset()
            self._replicated = 0 if self._required is None else _NO_LIMIT
            self.role = role

    def role_changed(self) -> None:
        """Calls the sinks of the waits that the change of the role has ended, then the listeners."""
        with self._gate:
            failed, self._failed = self._failed, []
        _deliver(failed)
        self._on_advance.notify()
        self._on_role_change.notify(self.role)

    # -- moving ----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Ends the waits that `flushed` has reached. To be called after each sync, and each commit of the pool."""
        with self._gate:
            ended = _end(self._disk.pop_reached(self.flushed))
        _deliver(ended)
        self._on_advance.notify()

    def sync_began(self, at: float | None) -> None:
        """Notes that a sync of the log began at this time, by time.monotonic; None: that it has ended."""
        self._syncing_since = at

    @property
    def sync_seconds(self) -> float:
        """For how long the present sync of the log has been running; 0 if there is none."""
        began = self._syncing_since
        return 0.0 if began is None else time.monotonic() - began

    # -- replicas --------------------------------------------------------------------------------------------

    def require(self, replicas: frozenset[int] | None) -> None:
        """Puts a set of replicas into force at once: acknowledged and visible is what all of them have.

        This replica is not named. While it is not known which of two sets holds, the caller requires both. None ends
        the rule: any slave's ack counts, and what is stored is visible. It has no effect while this is a slave.
        """
        with self._gate:
            if self.role.accepts_puts:
                self._limit = _NO_LIMIT if replicas is None else self.visible
                self._replicated = self._replicated if self._required is not None else 0
            self._required = replicas
            for replica in self._reports.keys() - self._joined - (replicas or frozenset()):
                del self._reports[replica]
            ended = self._count()
        _deliver(ended)
        self._on_advance.notify()

    def slave_connected(self, replica: int | None = None, offset: int = 0) -> None:
        """A slave follows. `replica` has the log up to `offset`, which replaces what it reported before; None is a
        slave that does not say which one it is, and is in no set.
        """
        with self._gate:
            self.connected_slaves += 1
            if replica is None:
                return
            self._joined.add(replica)
            self._reports.pop(replica, None)
        self.acknowledge(offset, replica)

    def slave_disconnected(self, replica: int | None = None) -> None:
        """A slave has gone. A replica of the set stays required, and its last report counts."""
        with self._gate:
            self.connected_slaves -= 1
            if replica is not None:
                self._joined.discard(replica)
                if replica not in (self._required or ()):
                    self._reports.pop(replica, None)

    def acknowledge(self, offset: int, replica: int | None = None, epoch: int | None = None) -> None:
        """Records that a slave has the log up to `offset`. Ends the waits for it.

        Ignores the report of another epoch than the present one, and of a replica that is not connected.
        """
        with self._gate:
            if epoch is not None and epoch != self.role.epoch:
                return
            if replica is not None:
                if offset <= self._reports.get(replica, -1) or replica not in self._joined:
                    return
                self._reports[replica] = offset
            if self._required is None:
                if offset <= self._replicated:
                    return
                self._replicated = offset
            before = self._limit
            ended = self._count()
            is_moved = self._limit != before
        _deliver(ended)
        if is_moved:
            self._on_advance.notify()

    def _count(self) -> list[Waiter[Any]]:
        """Moves `replicated` and the limit of `visible` to what the set has. Returns the waits that this ends.

        `replicated` moves back if a replica has come back with less than it had. What is visible does not.
        """
        if self._required is not None and self.role.accepts_puts:
            self._replicated = min((self._reports.get(each, 0) for each in self._required), default=_NO_LIMIT)
            self._limit = max(self._replicated, self.visible)
        return _end(self._slaves.pop_reached(self._replicated))

    def confirm(self, offset: int) -> None:
        """Takes the offset up to which the master of this slave shows its log; from now on this slave shows no more."""
        with self._gate:
            before = self._limit
            self._limit = max(offset, self.visible)
            is_moved = self._limit != before
        if is_moved:
            self._on_advance.notify()

    def unlimit(self) -> None:
        """Shows all that is stored: this slave is about to become a master, alone in its set."""
        with self._gate:
            self._limit = _NO_LIMIT
        self._on_advance.notify()

    # -- time and failures -----------------------------------------------------------------------------------

    def end_overdue(self) -> float | None:
        """Ends the waits whose time is over. Returns the seconds until the next deadline; None if nothing waits."""
        disk, slaves, now = self._disk, self._slaves, time.monotonic()
        not_on_disk = f"stored, but not on disk after {disk.limit_s:g} seconds"
        who = "no slave has" if self._required is None else "not all replicas of the sync set have"
        no_ack = f"stored, but {who} acknowledged it after {slaves.limit_s:g} seconds"
        with self._gate:
            disk_waits = len(disk)
            ended = _end(disk.pop_overdue(now), PutStatus.FLUSH_DISK_TIMEOUT, not_on_disk)
            ended += _end(slaves.pop_overdue(now), PutStatus.FLUSH_SLAVE_TIMEOUT, no_ack)
            self._alarm = alarm = min(disk.next_deadline, slaves.next_deadline)
            is_late = disk_waits != len(disk)
        if is_late:  # if an exception took the leader away at the wrong moment, the flush thread leads
            self._wake_flush()
        _deliver(ended)
        return None if alarm == inf else max(alarm - now, 0.0)

    def fail(self, reason: str) -> None:
        """Records that a sync of the log failed, for good. Ends all waits."""
        self.failure = reason
        self.close(reason)
        self._on_advance.notify()

    def close(self, reason: str) -> None:
        """Ends all waits, and every later one at once: what is not safe now is never reported as safe. Idempotent."""
        with self._gate:
            self._closed = self._closed or reason
            ended = _end(self._disk.pop_reached(self.flushed))
            ended += _end(self._disk.pop_reached(inf), *self._not_on_disk(reason))
            ended += _end(self._slaves.pop_reached(inf), PutStatus.FLUSH_SLAVE_TIMEOUT, _no_ack(reason))
        _deliver(ended)

    def _not_on_disk(self, reason: str) -> tuple[PutStatus, str]:
        """The end of a wait for the disk after `close`: the record is in the log, unless a sync failed."""
        if self.failure is not None:
            return PutStatus.UNKNOWN_ERROR, reason
        return PutStatus.FLUSH_DISK_TIMEOUT, f"stored, but it was not on disk in time: {reason}"


_NO_SLAVE: Final = "stored, but no slave is connected, or all are too far behind (haSlaveFallbehindMax)"


def _no_ack(reason: str) -> str:
    return f"stored, but no slave had acknowledged it in time: {reason}"


def _no_slave_since(role: Role) -> str:
    return f"stored, but this broker became {role} before the slaves acknowledged it"


def _end(waiters: Iterable[Waiter[Any]], status: PutStatus = PutStatus.PUT_OK, reason: str = "") -> list[Waiter[Any]]:
    """Notes that these waiters miss one watermark less. Returns those that now miss none."""
    ended: list[Waiter[Any]] = []
    for waiter in waiters:
        if reason:
            waiter.note(status, reason)
        waiter.missing -= 1
        if not waiter.missing:
            ended.append(waiter)
    return ended


def _unblock(waiters: list[Waiter[Any]]) -> None:
    """Wakes threads that block in `wait_here`. One that is awake already, because it leads, sees its end by itself."""
    for waiter in waiters:
        try:
            waiter.token.release()
        except RuntimeError:  # the lock is free already
            continue


def _ignore(waiters: list[Waiter[Any]]) -> None:
    """The sink of abandoned waits."""


def _deliver(ended: list[Waiter[Any]]) -> None:
    """Calls each sink once with all of its waits."""
    if len(ended) == 1:
        ended[0].sink(ended)
        return
    by_sink: dict[Sink[Any], list[Waiter[Any]]] = {}
    for waiter in ended:
        by_sink.setdefault(waiter.sink, []).append(waiter)
    for sink, waiters in by_sink.items():
        sink(waiters)


class DeadlineThread(Worker):
    """The thread that ends overdue waits. It sleeps until the oldest wait is overdue, even if that ends earlier.

    So a busy store wakes it once per time limit, not once per put.
    """

    def __init__(self, watermarks: Watermarks) -> None:
        super().__init__("penstock-deadlines", None)
        self._watermarks = watermarks

    def work(self) -> None:
        while not self._stopping.is_set():
            seconds = self._watermarks.end_overdue()
            if seconds is None:
                return
            self._wake.wait(seconds)
            self._wake.clear()

    def finish(self) -> None:
        """Leaves the remaining waits to `Watermarks.close`."""
