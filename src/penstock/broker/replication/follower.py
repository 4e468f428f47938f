"""A slave's side of replication: finds its master, makes sure that their logs agree, and takes over what comes.

Whole records only reach the store's log (`store.master_bytes`); under SYNC_FLUSH what is reported as taken is on disk.
A connection that breaks, or is silent for haHousekeepingInterval, is made anew: after a second, then less and less
often. Logs that differ are never mixed: the slave says what differs, serves what it has, and looks again once a minute.
Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final, cast

from penstock.broker.replication.master_link import MasterLink
from penstock.broker.replication.same_log import NotTheSameLog, check_same_log
from penstock.broker.replication.wire import EVERYTHING, FRAME, REPORT
from penstock.errors import PenstockError, Unreachable
from penstock.remoting.addresses import parse_address
from penstock.remoting.sockets import keep_alive
from penstock.store.master_bytes import BytesRefused, DamagedOnTheWay, MasterBytes
from penstock.store.prepare import Refused
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 15.0
_DIFFERENT_S: Final = 60.0
_CONNECT_S: Final = 5.0


class Follower:
    """Follows a master as long as it runs."""

    def __init__(self, store: MessageStore, link: MasterLink) -> None:
        assert store.master_bytes is not None, "only a slave follows"
        self._store = store
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._incoming: _Incoming | None = None
        self._report_is_due = False
        self.problem = ""
        """Why it does not follow now, in a sentence; empty while it does."""
        store.on_flush(self._flushed)

    @property
    def follows(self) -> bool:
        """Whether the master's log comes in."""
        return self._incoming is not None and self._incoming.has_begun

    @property
    def received_ms(self) -> int:
        """When something last came from the master, epoch ms; 0 if nothing ever did."""
        return 0 if self._incoming is None else self._incoming.received_ms

    @property
    def master_end(self) -> int:
        """How far the master's log goes, as far as it has sent it."""
        return 0 if self._incoming is None else self._incoming.master_end

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._link.close()

    # -- connecting ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                if not self._link.known.is_set():
                    self.problem = "no name server has told yet where the master is"
                    await self._link.known.wait()
                is_penstock = await check_same_log(self._store, self._link)
                began = await self._follow(is_penstock)
                retry_s = _FIRST_RETRY_S if began else retry_s
            except NotTheSameLog as error:
                self._say(str(error), logging.ERROR)
                await asyncio.sleep(_DIFFERENT_S)
                continue
            except PenstockError as error:
                self._say(f"the master cannot be followed now: {error}", logging.WARNING)
            except Exception:
                log.exception("the master cannot be followed now")
                self.problem = "the master cannot be followed now: see the log"
            await asyncio.sleep(retry_s)
            retry_s = min(retry_s * 2, _LONGEST_RETRY_S)

    def _say(self, problem: str, level: int) -> None:
        if problem != self.problem:
            log.log(level, "%s", problem)
        self.problem = problem

    async def _follow(self, gets_everything: bool) -> bool:
        """Until the connection is gone; says whether the log came in. Raises Unreachable or BytesRefused."""
        host, port = parse_address(self._link.log_address, "haMasterAddress")
        await asyncio.to_thread(self._store.flush)  # what is reported and what is here are the same then
        incoming = _Incoming(self._store, gets_everything)
        try:
            async with asyncio.timeout(_CONNECT_S):
                transport, _ = await self._loop.create_connection(lambda: incoming, host, port, ssl=self._link.tls)
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"cannot connect to {host}:{port}: {error or 'no answer'}") from None
        keep_alive(transport.get_extra_info("socket"))
        self._incoming = incoming
        log.info("follows the master at %s:%d from %d on", host, port, incoming.reported)
        try:
            await self._beat_until_gone(incoming)
        finally:
            transport.abort()
            assert self._store.master_bytes is not None
            self._store.master_bytes.forget_rest()
        self._incoming = None
        if incoming.refused is not None:
            raise incoming.refused
        self._say(incoming.why or "the master closed the connection", logging.WARNING)
        return incoming.has_begun

    async def _beat_until_gone(self, incoming: _Incoming) -> None:
        settings = self._store.settings
        silence_s = settings.ha_housekeeping_interval / 1000
        beat_s = min(settings.ha_send_heartbeat_interval, settings.ha_housekeeping_interval / 4) / 1000
        while not incoming.gone.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(incoming.gone.wait(), beat_s)
            if incoming.has_begun:
                self.problem = ""
            if self._loop.time() - incoming.heard_at > silence_s:
                incoming.end(f"the master was silent for {silence_s:g} s")
            incoming.report()

    # -- telling how far it is -------------------------------------------------------------------------------

    def _flushed(self) -> None:
        """On the thread that syncs."""
        if self._incoming is not None and not self._report_is_due:
            self._report_is_due = True
            try:
                self._loop.call_soon_threadsafe(self._report)
            except RuntimeError:  # the loop is gone
                self._report_is_due = False

    def _report(self) -> None:
        self._report_is_due = False
        if self._incoming is not None:
            self._incoming.report_if_new()


class _Incoming(asyncio.Protocol):
    """One connection to a master: takes frames apart, hands their bytes on, and reports."""

    def __init__(self, store: MessageStore, gets_everything: bool) -> None:
        """`gets_everything`: the master can send its whole log to a slave that has nothing."""
        assert store.master_bytes is not None
        self._store = store
        self._gets_everything = gets_everything
        self._taken: MasterBytes = store.master_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._at = self._left = 0
        self.has_begun = False
        self.reported = -1
        self.refused: PenstockError | None = None
        self.why = ""
        self.master_end = 0
        self.received_ms = 0
        self.heard_at = self._loop.time()
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._gets_everything and self._taken.is_empty:
            self._transport.write(REPORT.pack(EVERYTHING))
        else:
            self.report()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.gone.set()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self.received_ms = time.time_ns() // 1_000_000
        if self.refused is not None or self._transport is None:
            return
        try:
            if self._store.flush_failure:
                raise BytesRefused(self._store.flush_failure)
            self._take_apart(memoryview(data))
        except DamagedOnTheWay as error:
            self.end(str(error))
        except (PenstockError, Refused) as error:
            self.refused = error if isinstance(error, PenstockError) else BytesRefused(str(error))
            self.end(str(error))
        else:
            self.report_if_new()

    def _take_apart(self, data: memoryview) -> None:
        """Bytes of one file that came together are handed on together, however many frames they came in."""
        pieces: list[memoryview] = []
        start, file_size = self._at, self._store.log.queue.file_size
        while data:
            if self._left:
                piece = data[: self._left]
                pieces.append(piece)
                data = data[len(piece) :]
                self._at += len(piece)
                self._left -= len(piece)
                if self._at % file_size == 0:
                    self._hand_on(start, pieces)
                    pieces, start = [], self._at
                continue
            wanted = FRAME.size - len(self._head)
            self._head += data[:wanted]
            data = data[wanted:]
            if len(self._head) == FRAME.size:
                at, self._left = FRAME.unpack(self._head)
                self._head = b""
                self._check(at)
                if at != self._at or not pieces:
                    self._hand_on(start, pieces)
                    pieces, start = [], at
                self._at = at
        self._hand_on(start, pieces)

    def _check(self, at: int) -> None:
        file_size = self._store.log.queue.file_size
        if at < 0 or not 0 <= self._left <= file_size - at % file_size:
            raise BytesRefused(
                f"the master sent {self._left} bytes at {at}, across the end of a file; mappedFileSizeCommitLog must "
                "be the same on both sides"
            )
        self.has_begun = True
        self.master_end = max(self.master_end, at + self._left)

    def _hand_on(self, offset: int, pieces: list[memoryview]) -> None:
        if pieces:
            self._taken.take(offset, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    # -- reporting -------------------------------------------------------------------------------------------

    @property
    def _safe_end(self) -> int:
        """What may be reported: under SYNC_FLUSH what is on disk."""
        return min(self._store.log.confirmed_offset, self._taken.end)

    def report_if_new(self) -> None:
        if self._safe_end != self.reported:
            self.report()

    def report(self) -> None:
        """Tells the master how far the log is here; also the heartbeat."""
        if self._transport is not None and not self._transport.is_closing():
            self.reported = self._safe_end
            self._transport.write(REPORT.pack(self.reported))

    def end(self, why: str) -> None:
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()
