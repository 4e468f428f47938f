"""The port on which a master waits for its slaves, and all of them.

Slaves are sent what is new at once when a put waits for them; else what comes within a few milliseconds after it was
dispatched or synced goes together, and ten times a second in any case. A slave that is silent for
haHousekeepingInterval is cut off. Who may follow is decided by address, and where access is controlled by the access
file too: see `_refusal`. Belongs to the loop's thread, but for `hurry` and `gather`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.broker.access import Access
from penstock.broker.replication.slave_connection import SlaveConnection
from penstock.namesrv.access import networks
from penstock.remoting.connection import Address
from penstock.remoting.sockets import listen
from penstock.remoting.tls import ServerTls, TlsMode
from penstock.store.settings import BrokerRole
from penstock.store.store import MessageStore

_LOOK_S: Final = 0.1
_GATHER_S: Final = 0.005
"""So long messages come together for which nobody waits: sending each one costs master and slave more than a put."""
_MOST_SLAVES: Final = 32
_PROOF_S: Final = 60.0
"""So long after an administrator's signed request from its host a slave may connect."""


class SlaveListener:
    """Started once, stopped once."""

    def __init__(self, store: MessageStore, allow_from: str, access: Access | None, tls: ServerTls) -> None:
        """Raises BadSettings if `allow_from` names no networks."""
        self._store = store
        self._allowed = networks(allow_from, "haAllowFrom")
        self._access = access
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_MOST_SLAVES + 1, "penstock-catch-up")
        self._server: asyncio.Server | None = None
        self._thread = threading.get_ident()
        self._hurry_is_due = False
        self._gathers = False
        self._looked_at = 0
        """How far the log was when it was last sent: what lies before is sent, or is by who is still at it."""
        self._timer: asyncio.TimerHandle | None = None
        self.slaves: set[SlaveConnection] = set()

    async def start(self, host: str, port: int) -> Address:
        """Waits for slaves from now on; returns where. Raises Unreachable."""
        listener = listen(host, port)
        where: Address = listener.getsockname()[:2]
        tls = self._tls.context if self._tls.mode is TlsMode.ENFORCING else None
        self._server = await self._loop.create_server(self._slave, sock=listener, ssl=tls)
        self._store.replicas.on_wait(self.hurry)
        puts_wait = self._store.settings.broker_role is BrokerRole.SYNC_MASTER
        self._store.on_flush(self.hurry if puts_wait else self.gather)
        self._store.dispatcher.on_advance(self.gather)
        return where

    async def stop(self) -> None:
        """Takes no more slaves, and lets go of those that are there."""
        self._store.replicas.remove_wait_listener(self.hurry)
        self._store.dispatcher.remove_advance_listener(self.gather)
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.end()
        if self._server is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)
        await asyncio.to_thread(self._threads.shutdown)

    # -- slaves come and go ----------------------------------------------------------------------------------

    def _slave(self) -> SlaveConnection:
        slave = SlaveConnection(self._store, self._threads, self._refusal, self._gone)
        self.slaves.add(slave)
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)
        return slave

    def _gone(self, slave: SlaveConnection) -> None:
        self.slaves.discard(slave)

    def knows(self, host: str) -> bool:
        """Whether slaves may be at `host`: haAllowFrom, or this machine."""
        address = ipaddress.ip_address(host)
        return address.is_loopback or any(address in network for network in self._allowed)

    def _refusal(self, host: str) -> str:
        """Why a slave at `host` may not follow; empty if it may.

        RocketMQ's slaves cannot say who they are. So their address must be one of haAllowFrom, and where access is
        controlled the access file must name it as white, or somebody there must just have made a request that an
        administrator signed, as our slaves do before they connect.
        """
        if len(self.slaves) > _MOST_SLAVES:
            return f"there are {_MOST_SLAVES} connections already"
        if not self.knows(host):
            return "its address is not among haAllowFrom"
        if self._access is None or self._access.accounts.is_white(host):
            return ""
        proved_at = self._access.administered_from.get(host)
        if proved_at is None or time.monotonic() - proved_at > _PROOF_S:
            return "access is controlled, and nobody there has just signed a request as administrator (haAccountFile)"
        return ""

    # -- sending ---------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Somebody waits for slaves to have what is new. From any thread; many calls are one look."""
        if not self._hurry_is_due and self._has_news:
            self._hurry_is_due = self._call(self._send)

    def gather(self) -> None:
        """There may be something new. From any thread; what follows soon goes with it."""
        if not self._gathers and self._has_news:
            self._gathers = self._call(self._send_later)

    @property
    def _has_news(self) -> bool:
        return bool(self.slaves) and self._store.log.confirmed_offset > self._looked_at

    def _call(self, act: Callable[[], None]) -> bool:
        """Has the loop do something soon, and wakes it only if it is not this thread's. False if it is gone."""
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(act)
            else:
                self._loop.call_soon_threadsafe(act)
        except RuntimeError:  # and the slaves with it
            return False
        return True

    def _send_later(self) -> None:
        self._loop.call_later(_GATHER_S, self._send_gathered)

    def _send_gathered(self) -> None:
        self._gathers = False
        if self._has_news:
            self._send()

    def _send(self) -> None:
        self._hurry_is_due = False
        self._looked_at = self._store.log.confirmed_offset
        for slave in list(self.slaves):
            slave.send_more()

    def _look(self) -> None:
        settings, now = self._store.settings, self._loop.time()
        for slave in list(self.slaves):
            slave.send_more()
            if now - slave.heard_at > settings.ha_housekeeping_interval / 1000:
                slave.give_up(f"nothing was heard of it for {settings.ha_housekeeping_interval} ms")
            elif now - slave.wrote_at >= settings.ha_send_heartbeat_interval / 1000:
                slave.beat()
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self.slaves else None
