"""A master's connection to one slave: the handshake, the slave's reports, and the bytes of the log.

The protocol is RocketMQ's. All numbers are big-endian, and nothing else is sent:

    slave to master     OFFSET  SIZE  DESCRIPTION
                             0     8  the offset up to which the slave has the log; also its heartbeat

    master to slave     OFFSET  SIZE  DESCRIPTION
                             0     8  physical offset of the bytes
                             8     4  number of bytes; 0: a heartbeat
                            12     n  the bytes, which never cross the end of a log file

A slave's first report says where the master begins to send. 0 means the start of the master's last file. -1 means the
start of the master's log; only Penstock's masters know it, RocketMQ's ignore it. -2 begins a handshake, in which both
sides compare the epochs of their logs, and other frames: see `handshake`. Slaves that shook hands are replicas with an
id, and may be in the set that every acknowledgement needs; all others are in none. Nothing is authenticated here (see
`replication_authentication`), and there is no checksum but that of the records.

The loop sends bytes that were just written. For a slave that is further behind, a thread sends (`CatchUpSender`),
because the bytes may have to come from disk; on an encrypted connection the thread reads and the loop sends. Use
everything from the loop's thread only, except `welcome`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple, cast

from penstock.broker.replication.handshake import (
    EPOCH_FRAME,
    EPOCH_REPORT,
    LENGTH,
    NO_CONFIRM,
    SHAKE_HANDS,
    Hello,
    Welcome,
    decode,
    encode,
    history_of,
    length_of,
    masters_ranges,
    ranges_of,
    sent_entries,
)
from penstock.broker.replication.log_bytes_for_slaves import (
    CHUNK,
    EVERYTHING,
    FRAME,
    REPORT,
    CatchUpSender,
    LogDeleted,
    frames,
)
from penstock.errors import BadFrame, PenstockError
from penstock.remoting.connection import Address, address_of
from penstock.remoting.sockets import keep_alive
from penstock.store.message_store import MessageStore
from penstock.store.replication.divergence import LogHistory, find_common
from penstock.store.replication.log_gaps import damage_beside, first_gap
from penstock.store.replication.replica_identity import replica_identity

log = logging.getLogger("penstock.broker")

_NOT_STARTED: Final = -1
_ONE_TURN: Final = 64 << 20
"""Bytes that a thread sends at most before it returns to the loop."""
_MAX_EARLY: Final = 4096
"""Bytes that a slave may send before its handshake is answered: some reports, if it is impatient."""


class MasterNames(NamedTuple):
    """What a slave must have in common with its master."""

    cluster: str
    broker: str


class Answer(NamedTuple):
    """A master's answer to a handshake, and what it has learnt of the slave."""

    welcome: Welcome
    lacks_part: bool = False
    """Whether the slave lacks a part of the log, before the end of what both have, that this master has."""


def welcome(
    store: MessageStore, names: MasterNames, hello: Hello, is_wanted: Callable[[], bool] = lambda: True
) -> Answer:
    """Answers a slave's handshake. May wait for the disk: the first one begins the epoch. Raises StoreFailed.

    Raises BadFrame if the slave's epochs contradict themselves. If `is_wanted` returns False meanwhile, the answer
    comes soon, and is of no use.
    """
    theirs = history_of(hello)
    if (hello.cluster, hello.broker) != names:
        return Answer(
            Welcome(
                why=f"it belongs to {hello.broker} of {hello.cluster}, and this master is {names.broker} of "
                f"{names.cluster}"
            )
        )
    epoch = store.roles.begin_epoch()
    if hello.epoch > epoch:
        return Answer(
            Welcome(
                epoch=epoch,
                why=f"it knows epoch {hello.epoch}, and this master is in epoch {epoch}: another broker became master "
                "since; restart this one as its slave, or as a master if it is to be one",
            )
        )
    begin, end = max(store.log.min_offset, 0), store.watermarks.stored
    own = LogHistory(sent_entries(store.epochs.entries), begin, max(begin, end))
    answer = Welcome(
        replica=replica_identity(store.engine.io, store.layout),
        epoch=epoch,
        entries=[(entry.epoch, entry.start) for entry in own.entries],
        begin=own.begin,
        end=own.end,
        cut=find_common(theirs, own).end,
        damage=masters_ranges(damage_beside(store, ranges_of(hello), is_wanted)),
    )
    gap = first_gap(ranges_of(hello), ranges_of(answer), answer.begin, answer.cut)
    return Answer(answer, lacks_part=gap is not None)


class SlaveConnection(asyncio.Protocol):
    """A master's connection to one slave: sends the log and reads the slave's reports.

    `admit` is called when the connection is established, and returns whether the slave may follow. `on_hello` is called
    when it has shaken hands, before it follows, and `on_close` when an established connection ends. `threads` has at
    least one thread per slave.
    """

    def __init__(
        self,
        store: MessageStore,
        names: MasterNames,
        threads: Executor,
        admit: Callable[[SlaveConnection], bool],
        on_hello: Callable[[SlaveConnection], object],
        on_close: Callable[[SlaveConnection], object],
        knows: Callable[[str, int], bool] = lambda name, replica_id: True,
    ) -> None:
        self._store = store
        self._knows = knows
        self._is_counted = False
        self._names = names
        self._threads = threads
        self._admit = admit
        self._on_hello = on_hello
        self._on_close = on_close
        self._is_shaking_hands = False
        self.hello: Hello | None = None
        """What the slave said of itself; None if it did not shake hands."""
        self.epoch = 0
        """The epoch of this master in which the slave shook hands."""
        self._lacks_part = False
        """Whether a gap in the slave's log is not mended."""
        self._confirmed = NO_CONFIRM
        """The confirm that was sent last."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._partial = bytearray()
        self._paused = False
        self._next = _NOT_STARTED
        self._sending_to = 0
        """The offset up to which a running thread may have sent the log; 0 if no thread runs."""
        self._catch_up: CatchUpSender | None = None
        self._is_encrypted = False
        self.peer: Address = ("", 0)
        self.acknowledged = 0
        """The offset up to which this slave has the log, by its own report."""
        self.acknowledged_ms = 0
        """When the slave last reported, in epoch ms."""
        self.heard_at = self.wrote_at = self._loop.time()

    @property
    def follows(self) -> bool:
        """Whether the slave has sent its first report, and so receives the log."""
        return self._next != _NOT_STARTED

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def sent(self) -> int:
        """The offset up to which the log was sent to this slave."""
        return max(self._next, 0)

    def __str__(self) -> str:
        return f"slave {self.peer[0]}:{self.peer[1]}"

    # -- asyncio.Protocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = opened = cast(asyncio.Transport, transport)
        self.peer = address_of(transport.get_extra_info("peername"))
        keep_alive(transport.get_extra_info("socket"))
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        opened.set_write_buffer_limits(high=CHUNK if self._is_encrypted else 0)
        if not self._admit(self):
            opened.abort()

    def data_received(self, data: bytes) -> None:
        """Reads reports. Of several, the first may say where to begin, and the last says how far the slave is."""
        self._partial += data
        if not self._is_open or len(self._partial) < REPORT.size:
            return
        self.heard_at = self._loop.time()
        if self.epoch:
            self._read_epoch_reports()
        elif self._is_shaking_hands:
            self._read_hello()
        elif not self.follows and REPORT.unpack_from(self._partial)[0] == SHAKE_HANDS:
            self._is_shaking_hands, self._partial = True, self._partial[REPORT.size :]
            self._read_hello()
        else:
            whole = len(self._partial) // REPORT.size * REPORT.size
            (first,), (offset,) = (
                REPORT.unpack_from(self._partial),
                REPORT.unpack_from(self._partial, whole - REPORT.size),
            )
            self._partial = self._partial[whole:]
            if self.follows or self._begin(first):
                self._on_report(offset)

    def _read_epoch_reports(self) -> None:
        whole = len(self._partial) // EPOCH_REPORT.size * EPOCH_REPORT.size
        if not whole:
            return
        (_, first), (epoch, offset) = (
            EPOCH_REPORT.unpack_from(self._partial),
            EPOCH_REPORT.unpack_from(self._partial, whole - EPOCH_REPORT.size),
        )
        self._partial = self._partial[whole:]
        if epoch != self.epoch or epoch != self._store.role.epoch:
            self.drop(f"it reports epoch {epoch}, and this broker is in epoch {self._store.role.epoch}")
        elif self.follows or self._begin(first):
            self._on_report(offset)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.send_more()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_counting()
        if self._catch_up is not None:
            self._catch_up.end()
        self._on_close(self)

    def end(self) -> None:
        """Closes the connection once all bytes written so far are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once. Does not depend on the loop, which may end before its next turn."""
        if self._catch_up is not None:
            self._catch_up.end()
        if self._transport is not None:
            self._transport.abort()

    def drop(self, why: str) -> None:
        """Aborts the connection, and logs why."""
        log.warning("dropped %s: %s", self, why)
        self.abort()

    def replace(self) -> None:
        """Drops the connection, because the same replica has another one. It counts for nothing from now on."""
        self._stop_counting()
        self.drop("the same replica has connected again")

    def _stop_counting(self) -> None:
        if self.follows:
            if self._is_counted:
                self._is_counted = False
                self._store.watermarks.slave_disconnected(self.replica)
            log.info("%s disconnected", self)
        self._next = _NOT_STARTED

    # -- handshake -------------------------------------------------------------------------------------------

    @property
    def replica(self) -> int | None:
        """The id of the replica; None if it did not shake hands."""
        return None if self.hello is None else self.hello.id

    def is_same(self, other: SlaveConnection) -> bool:
        """Whether this is a connection of the same replica. A slave that only says its id is another one."""
        return self.replica == other.replica and self.is_replica == other.is_replica

    @property
    def counts(self) -> bool:
        """Whether its reports may acknowledge messages."""
        return self.hello is None or (not self.hello.learner and not self._lacks_part and self.is_replica)

    @property
    def is_replica(self) -> bool:
        """Whether it is a replica of this master's set, if there is one; any slave with a handshake otherwise.

        A slave that was configured by hand may say any id, also that of a replica which is down.
        """
        return self.hello is not None and self._knows(self.hello.replica, self.hello.id)

    def _read_hello(self) -> None:
        try:
            if self.hello is not None:
                if len(self._partial) > _MAX_EARLY:
                    raise BadFrame(f"it sent {len(self._partial)} bytes before its handshake was answered")
                return
            if len(self._partial) < LENGTH.size:
                return
            end = LENGTH.size + length_of(self._partial)
            if len(self._partial) < end:
                return
            self.hello = decode(self._partial[LENGTH.size : end], Hello)
            self._partial = self._partial[end:]
        except BadFrame as error:
            self.drop(str(error))
            return
        answer = self._loop.run_in_executor(
            self._threads, welcome, self._store, self._names, self.hello, lambda: self._is_open
        )
        answer.add_done_callback(self._on_welcome)

    def _on_welcome(self, answer: asyncio.Future[Answer]) -> None:
        if answer.cancelled() or not self._is_open:
            return
        error = answer.exception()
        if error is not None:
            self.drop(str(error) if isinstance(error, PenstockError) else repr(error))
            return
        result, self._lacks_part = answer.result()
        self._write(encode(result))
        if result.why:
            log.warning("%s may not follow: %s", self, result.why)
            self.end()
            return
        if self._lacks_part:
            log.warning("%s has a gap in its log: until it is mended, its reports acknowledge nothing", self)
        self._on_hello(self)
        self.epoch, self._is_shaking_hands = result.epoch, False
        self.data_received(b"")

    def _header(self, offset: int, count: int) -> bytes:
        """Makes the header of a frame. Any thread may call this."""
        if not self.epoch:
            return FRAME.pack(offset, count)
        return EPOCH_FRAME.pack(offset, count, self.epoch, self._confirm)

    @property
    def _confirm(self) -> int:
        """The offset up to which consumers see the log, if replicas decide that."""
        marks = self._store.watermarks
        return NO_CONFIRM if marks.required is None else marks.visible

    @property
    def _end(self) -> int:
        """The offset up to which the log is sent.

        A slave without epochs cannot find out that a tail of its log was cut elsewhere, so it gets only what every
        replica of the set has.
        """
        marks = self._store.watermarks
        return marks.stored if self.epoch or marks.required is None else min(marks.stored, marks.visible)

    # -- reports ---------------------------------------------------------------------------------------------

    def _on_report(self, offset: int) -> None:
        if offset > max(self._next, self._sending_to):
            self.drop(f"it reports {offset} bytes of the log, but only {self._next} were sent")
            return
        self.acknowledged_ms = time.time_ns() // 1_000_000
        if self.counts != self._is_counted:
            self._count(offset)
        if offset > self.acknowledged:
            self.acknowledged = offset
            if self._is_counted:
                self._store.watermarks.acknowledge(offset, self.replica, self.epoch or None)

    def _count(self, offset: int) -> None:
        """Begins or ends to count the slave: the set has learnt that it is a replica, or has forgotten it."""
        self._is_counted = self.counts
        if self._is_counted:
            self._store.watermarks.slave_connected(self.replica, offset)
        else:
            self._store.watermarks.slave_disconnected(self.replica)

    def _begin(self, offset: int) -> bool:
        """Starts sending at the offset of the first report. If that is impossible, drops the slave; returns False."""
        queue, end = self._store.log.queue, self._store.watermarks.stored
        lowest = max(0, queue.min_offset)
        if offset == EVERYTHING:
            start = lowest
        elif offset == 0:
            start = max(self._end - self._end % queue.file_size, lowest)
        elif offset < lowest:
            self.drop(
                f"it needs the log from {offset}, but this log begins at {lowest}; start it with a copy of this store"
            )
            return False
        elif offset > end:
            self.drop(
                f"it has {offset} bytes of log, but this master only {end}: the logs differ; see the slave's log file"
            )
            return False
        else:
            start = offset
        self._next = start
        if self.counts:
            self._count(max(offset, 0))
        log.info("%s follows from offset %d%s", self, start, self._remark)
        self.send_more()
        return True

    @property
    def _remark(self) -> str:
        """What an operator must know of a slave that an elected master cannot count on."""
        if self.hello is not None and not self.is_replica:
            return "; the consensus engine does not know it, so it is outside the sync set and cannot become master"
        if self.hello is not None or self._store.watermarks.required is None:
            return ""
        return "; it has no epochs, as in RocketMQ 4.9, so it is outside the sync set and cannot become master"

    # -- sending ---------------------------------------------------------------------------------------------

    def send_more(self) -> None:
        """Sends the new bytes of the log, until the slave stops reading."""
        if self._paused or self._sending_to or not self.follows or not self._is_open:
            return
        if self.epoch and self.epoch != self._store.role.epoch:
            self.drop(f"this broker was in epoch {self.epoch} when it connected, and is in {self._store.role.epoch}")
            return
        end = self._end
        if end - self._next > CHUNK:
            self._start_thread(min(end, self._next + (CHUNK if self._is_encrypted else _ONE_TURN)))
            return
        try:
            self._confirmed = self._confirm
            while self._next < end and not self._paused:
                data, self._next = self._read(self._next, end)
                if not data:
                    return
                self._write(data)
        except LogDeleted as error:
            self.drop(str(error))

    def _read(self, start: int, end: int) -> tuple[bytes, int]:
        """Returns the frames of the log from `start` on as one copy, and the offset where they end."""
        batch = self._store.settings.ha_transfer_batch_size
        with frames(self._store.log.queue, start, end, batch, self._header) as (parts, reached):
            return b"".join(parts), reached

    def send_heartbeat(self) -> None:
        if self.follows and not self._paused and not self._sending_to:
            self._confirmed = self._confirm
            self._write(self._header(self._next, 0))

    def send_confirm(self) -> None:
        """Tells a replica how far consumers see the log, if that has moved since the last time."""
        if self.epoch and self._confirm > self._confirmed and self._is_open:
            self.send_heartbeat()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self.wrote_at = self._loop.time()
            self._transport.write(data)

    # -- catching up -----------------------------------------------------------------------------------------

    def _start_thread(self, end: int) -> None:
        """Lets a thread send the log up to `end`, or only read it if encrypted. The loop sends nothing meanwhile."""
        assert self._transport is not None
        done: asyncio.Future[int] | asyncio.Future[tuple[bytes, int]]
        if self._is_encrypted:
            done = self._loop.run_in_executor(self._threads, self._read, self._next, end)
        elif self._transport.get_write_buffer_size():
            return  # retried when the buffer is empty, or by the listener's poll
        else:
            if self._catch_up is None:
                batch = self._store.settings.ha_transfer_batch_size
                descriptor = self._transport.get_extra_info("socket").fileno()
                self._catch_up = CatchUpSender.of(self._store.log.queue, batch, descriptor, self._header)
            done = self._loop.run_in_executor(self._threads, self._catch_up.send, self._next, end)
        self._sending_to = end
        done.add_done_callback(self._on_thread_done)

    def _on_thread_done(self, done: asyncio.Future[int] | asyncio.Future[tuple[bytes, int]]) -> None:
        self._sending_to = 0
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or not self.follows or not self._is_open:
            return
        if error is not None:
            self.drop(str(error) if isinstance(error, PenstockError) else repr(error))
            return
        result = done.result()
        if isinstance(result, int):
            self._next, self.wrote_at = result, self._loop.time()
        else:
            data, self._next = result
            self._write(data)
        self.send_more()
