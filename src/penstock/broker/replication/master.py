"""A master's side of replication: the port on which it accepts slaves, and when it sends them the log.

`slave_connection` has the protocol. The master sends only bytes that it has for certain: committed bytes, and under
SYNC_FLUSH only bytes on disk. So a slave is never ahead of its master after a crash. When a put waits for slaves, new
bytes are sent at once. Otherwise they are collected for a few milliseconds. In any case, the master looks for unsent
bytes ten times a second. It drops a slave that is silent for haHousekeepingInterval ms. The slave's address and, with
access control, the access file decide who may follow: see `_refusal`. Use everything from the loop's thread only,
except `send_now` and `send_soon`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.broker.access import Access
from penstock.broker.replication.replication_authentication import FollowTickets
from penstock.broker.replication.slave_connection import MasterNames, SlaveConnection
from penstock.namesrv.access import networks
from penstock.rate_limited_log import RateLimitedLog
from penstock.remoting.connection import Address
from penstock.remoting.sockets import listen
from penstock.remoting.tls import ServerTls, TlsMode
from penstock.store.message_store import MessageStore
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.broker")

_POLL: Final = "poll of slaves"
_POLL_S: Final = 0.1
_GATHER_S: Final = 0.005
"""Seconds that new bytes are collected if no put waits for them. Sending each message alone costs more than its put."""
_MAX_SLAVES: Final = 32
_HANDSHAKE_S: Final = 5.0
"""Limit of the TLS handshake, so that strangers do not keep descriptors."""
_GOODBYE_S: Final = 1.0
"""Limit for slaves to read what was sent to them before the listener stopped."""


class SlaveListener:
    """The port on which a master accepts slaves, and the connections to all slaves. Start and stop it once."""

    def __init__(
        self,
        store: MessageStore,
        names: MasterNames,
        allow_from: str,
        access: Access | None,
        tickets: FollowTickets,
        tls: ServerTls,
        tasks: Supervisor,
    ) -> None:
        """Raises BadSettings if `allow_from` is not a list of networks."""
        self._store = store
        self._names = names
        self._allowed = networks(allow_from, "haAllowFrom")
        self._access = access
        self._tickets = tickets
        self._tls = tls
        self._supervisor = tasks
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_MAX_SLAVES + 1, "penstock-catch-up")
        self._server: asyncio.Server | None = None
        self._thread = threading.get_ident()
        self._send_scheduled = False
        self._gather_scheduled = False
        self._sent_to = 0
        """The log's end at the last send. All bytes before it are sent or being sent."""
        self._confirmed = 0
        """Up to where consumers saw the log at the last send."""
        self._refusals = RateLimitedLog(log)
        self.slaves: set[SlaveConnection] = set()
        self.is_replica: Callable[[str, int], bool] = lambda name, replica_id: True
        """Whether a slave with this name of its store and this id is a replica that counts."""
        self._no_slaves = asyncio.Event()
        self._no_slaves.set()

    async def start(self, host: str, port: int) -> Address:
        """Starts to listen. Returns the address. Raises Unreachable."""
        listener = listen(host, port)
        where: Address = listener.getsockname()[:2]
        tls = self._tls.context if self._tls.mode is TlsMode.ENFORCING else None
        limit = None if tls is None else _HANDSHAKE_S
        self._server = await self._loop.create_server(self._accept, sock=listener, ssl=tls, ssl_handshake_timeout=limit)
        self._store.watermarks.on_slave_wait(self.send_now)
        self._store.watermarks.on_advance(self._on_advance)
        self._store.dispatcher.on_advance(self.send_soon)
        self._supervisor.every(_POLL_S, _POLL, self._poll)
        return where

    async def stop(self) -> None:
        """Stops listening and closes all connections, also those of slaves that do not read."""
        self._store.watermarks.remove_slave_wait_listener(self.send_now)
        self._store.watermarks.remove_advance_listener(self._on_advance)
        self._store.dispatcher.remove_advance_listener(self.send_soon)
        await self._supervisor.end(_POLL)
        if self._server is not None:
            self._server.close()
        for slave in list(self.slaves):
            slave.end()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._no_slaves.wait(), _GOODBYE_S)
        finally:  # also if the broker's own limit has passed
            for slave in list(self.slaves):
                slave.abort()
        await asyncio.to_thread(self._threads.shutdown)

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self) -> SlaveConnection:
        return SlaveConnection(
            self._store,
            self._names,
            self._threads,
            self._admit,
            self._replace,
            self._forget,
            lambda name, replica_id: self.is_replica(name, replica_id),
        )

    def _replace(self, slave: SlaveConnection) -> None:
        """Ends an older connection of the same replica, whose late reports must not count."""
        for other in [each for each in self.slaves if each is not slave and each.is_same(slave)]:
            other.replace()

    def _admit(self, slave: SlaveConnection) -> bool:
        """Takes an established connection over, unless the slave may not follow. That is logged, a line a second."""
        if why := self._refusal(slave.peer):
            self._refusals.warn(f"dropped {slave}: it may not follow: {why}")
            return False
        self.slaves.add(slave)
        self._no_slaves.clear()
        return True

    def _forget(self, slave: SlaveConnection) -> None:
        self.slaves.discard(slave)
        if not self.slaves:
            self._no_slaves.set()

    def allows(self, host: str) -> bool:
        """Whether slaves may connect from the address `host`: it is in haAllowFrom, or it is a loopback address."""
        address = ipaddress.ip_address(host)
        return address.is_loopback or any(address in network for network in self._allowed)

    def _refusal(self, peer: Address) -> str:
        """Returns why a slave at this host and port may not follow; an empty string if it may.

        RocketMQ's slaves do not authenticate, so the host must be in haAllowFrom. With access control, the access file
        must also list the host as white, or the slave must have a ticket, for which Penstock's slaves ask before they
        connect.
        """
        host = peer[0]
        if len(self.slaves) >= _MAX_SLAVES:
            return f"{_MAX_SLAVES} slaves are connected already"
        if not self.allows(host):
            return "its address is not in haAllowFrom"
        if self._access is None or self._access.accounts.is_white(host):
            return ""
        if not self._tickets.take(*peer):
            return "with access control, it must first ask for a ticket with an administrator's account (haAccountFile)"
        return ""

    # -- sending ---------------------------------------------------------------------------------------------

    def send_now(self) -> None:
        """Sends the new bytes at once, because a put waits for slaves. Many calls cause one send.

        Any thread may call this.
        """
        if not self._send_scheduled and self._has_more:
            self._send_scheduled = self._schedule(self._send)

    def _on_advance(self) -> None:
        (self.send_now if self._store.watermarks.needs.replicated and self._has_more else self.send_soon)()

    def send_soon(self) -> None:
        """Sends the new bytes, and those that follow, in a few milliseconds. Any thread may call this."""
        if not self._gather_scheduled and self._has_news:
            self._gather_scheduled = self._schedule(self._start_gathering)

    @property
    def _has_more(self) -> bool:
        return bool(self.slaves) and self._store.watermarks.stored > self._sent_to

    @property
    def _has_news(self) -> bool:
        """Whether there are new bytes, or replicas have to be told that consumers see more of the log."""
        marks = self._store.watermarks
        return self._has_more or (bool(self.slaves) and marks.required is not None and marks.visible > self._confirmed)

    def _schedule(self, callback: Callable[[], None]) -> bool:
        """Schedules a callback on the loop. Returns False if the loop is closed. Any thread may call this."""
        try:
            if threading.get_ident() == self._thread:
                self._loop.call_soon(callback)
            else:
                self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _start_gathering(self) -> None:
        self._loop.call_later(_GATHER_S, self._send_gathered)

    def _send_gathered(self) -> None:
        self._gather_scheduled = False
        if self._has_news:
            self._send()

    def _send(self) -> None:
        self._send_scheduled = False
        self._sent_to, self._confirmed = self._store.watermarks.stored, self._store.watermarks.visible
        for slave in list(self.slaves):
            self._send_to(slave)

    def _send_to(self, slave: SlaveConnection) -> None:
        """Sends new bytes to one slave. After an unexpected error it is dropped, and the others are served."""
        try:
            slave.send_more()
            slave.send_confirm()
        except Exception as error:
            log.exception("cannot send the log to %s", slave)
            slave.drop(repr(error))

    def _poll(self) -> None:
        settings, now = self._store.settings, self._loop.time()
        for slave in list(self.slaves):
            self._send_to(slave)
            if now - slave.heard_at > settings.ha_housekeeping_interval / 1000:
                slave.drop(f"it was silent for {settings.ha_housekeeping_interval} ms")
            elif now - slave.wrote_at >= settings.ha_send_heartbeat_interval / 1000:
                slave.send_heartbeat()
