"""A slave's side of replication: finds its master, makes sure that their logs agree, and has what comes taken over.

A thread does that (`incoming`). A connection that breaks, or is silent for haHousekeepingInterval, is made anew: after
a second, then less and less often, and never before the thread of the old one has ended. Logs that differ are never
mixed: the slave says what differs, serves what it has, and looks again once a minute. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.broker.replication.incoming import Incoming
from penstock.broker.replication.master_link import MasterLink
from penstock.broker.replication.same_log import Master, NotTheSameLog, check_same_log
from penstock.errors import PenstockError, Unreachable
from penstock.remoting.addresses import parse_address
from penstock.remoting.sockets import keep_alive
from penstock.store.store import MessageStore

log = logging.getLogger("penstock.broker")

_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 15.0
_DIFFERENT_S: Final = 60.0
_CONNECT_S: Final = 5.0
"""For each of the addresses that a name has."""


async def look_up(host: str, port: int) -> list[Any]:
    """The addresses of a name, in the system's order."""
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


class Follower:
    """Follows a master as long as it runs."""

    def __init__(self, store: MessageStore, link: MasterLink) -> None:
        assert store.master_bytes is not None, "only a slave follows"
        self._store = store
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-follow")
        self._incoming: Incoming | None = None
        self.problem = ""
        """Why it did not follow when that was last tried, in a sentence."""
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
        self._thread.shutdown()
        self._link.close()

    # -- connecting ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                if not self._link.known.is_set():
                    self.problem = "no name server has told yet where the master is"
                    await self._link.known.wait()
                    self.problem = ""
                master = await check_same_log(self._store, self._link)
                began = await self._follow(master)
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

    async def _follow(self, master: Master) -> bool:
        """Until the connection is gone; says whether the log came in. Raises Unreachable or BytesRefused."""
        address = parse_address(self._link.log_address, "haMasterAddress")
        await asyncio.to_thread(self._store.flush)  # what is reported and what is here are the same then
        connected = await self._connect(address)
        incoming = Incoming(self._store, connected, self._link.tls, master)
        self._incoming = incoming
        log.info("follows the master at %s:%d from %d on", *address, self._store.log.queue.wrote_offset)
        running = self._loop.run_in_executor(self._thread, incoming.run)
        try:
            await asyncio.wait([running])
        finally:
            incoming.end("this broker stops")
            await asyncio.wait([running])
            incoming.close()
            self._incoming = None
        await running
        if incoming.refused is not None:
            raise incoming.refused
        self._say(incoming.why, logging.WARNING)
        return incoming.has_begun

    async def _connect(self, address: tuple[str, int]) -> socket.socket:
        """To the first of a name's addresses that answers. Raises Unreachable."""
        why = "it has no address"
        try:
            async with asyncio.timeout(_CONNECT_S):
                found = await look_up(*address)
        except OSError as error:
            found, why = [], str(error) or "no answer"
        for family, kind, protocol, _, where in found:
            connected = socket.socket(family, kind, protocol)
            try:
                await self._connect_to(connected, where)
            except OSError as error:
                connected.close()
                why = str(error) or "no answer"
            except BaseException:
                connected.close()
                raise
            else:
                return connected
        raise Unreachable(f"cannot connect to {address[0]}:{address[1]}: {why}")

    async def _connect_to(self, connected: socket.socket, where: Any) -> None:
        connected.setblocking(False)
        async with asyncio.timeout(_CONNECT_S):
            await self._loop.sock_connect(connected, where)
        keep_alive(connected)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a put waits for each report

    def _flushed(self) -> None:
        """On the thread that syncs."""
        incoming = self._incoming
        if incoming is not None:
            incoming.wake()
