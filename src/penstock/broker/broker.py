"""The broker: a store, its tables, and the concerns that answer requests.

Start order: the store is opened and recovered before the broker is created. The broker reads its tables and assembles
its handlers; then it listens, registers with name servers, and delivers delayed messages. So a half-started broker
serves no client, and no route leads to a broker that does not listen yet.

While the broker refuses messages (`write_guard`), because it stops, hands over, or its lease may have ended, it stores
none of its own either: it delivers no delayed messages, and checks no transactions.

Stop order: refuse new messages (SERVICE_NOT_AVAILABLE, so that clients send elsewhere); unregister; stop delayed
delivery; answer the held pulls, also those that wait for the disk, and the sends that wait for the disk or a slave;
close the port; save the tables; close the store. A step that exceeds the time limit is cut off. This loses no
acknowledged message: every such message is in the log, and the next start recovers the store.

Use a broker from the thread of its event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from penstock.broker.access import RELOAD_EVERY_S, Access, IsLocal, is_local, only_local
from penstock.broker.admin import BrokerAdmin
from penstock.broker.admin.accounts import AdminAccounts
from penstock.broker.admin.administrators_log import ActLog
from penstock.broker.consumers import Clients
from penstock.broker.filters import SqlCompiler, compile_sql
from penstock.broker.long_polling import HeldPulls
from penstock.broker.offsets import Offsets
from penstock.broker.operations_as_plain_calls import ClientRequests, Core, Guard, Operation, WriteGuard, host_text
from penstock.broker.pull import MovedOffsets, Pulls, SlaveReads
from penstock.broker.query import MessageQueries
from penstock.broker.registration import BrokerRegistration
from penstock.broker.remoting.administration import administration_handlers
from penstock.broker.remoting.calls_to_clients import RemotingClientRequests
from penstock.broker.remoting.compiled_requests import OrdinaryRequests, is_chosen
from penstock.broker.remoting.heartbeats_and_locks import client_handlers
from penstock.broker.remoting.send_and_pull import message_handlers
from penstock.broker.remoting.signatures import Signatures
from penstock.broker.replication.replication import SAMPLE_S as REPLICATION_SAMPLE_S
from penstock.broker.replication.replication import Replication, check_role, shown_settings
from penstock.broker.request_reply import RequestReply
from penstock.broker.retry import SendBacks
from penstock.broker.send import SendChecks, Sends
from penstock.broker.send_acks import PendingAcks
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import SAMPLE_S, StoreWatch
from penstock.broker.table_persistence import BrokerState, HealthReport
from penstock.broker.tracing import start_tracing
from penstock.broker.transactions import TransactionCheck, Transactions, all_may_publish, make_half
from penstock.clock import now_ms
from penstock.errors import Unreachable
from penstock.namesrv.name_server import NameServer
from penstock.namesrv.route_table import RegisteredBroker as BrokerIdentity
from penstock.protocol.bodies.admin import HaElections
from penstock.protocol.frame import MAX_FRAME
from penstock.remoting.connection import Address
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.server import Server
from penstock.remoting.tls import ServerTls, server_tls
from penstock.store.message_store import MessageStore

log = logging.getLogger("penstock.broker")

_FRAME_SLACK: Final = 1 << 20
"""Bytes that a frame may have on top of the largest message."""
_LARGEST_FRAME: Final = 128 << 20
"""Ceiling of the frames that follow maxMessageSize: half of the bytes that incomplete frames may take in all."""
_GATHER_S: Final = 0.01
"""Seconds that the dispatch thread collects messages before it dispatches them. Held pulls do not wait that long: the
loop itself dispatches for them. The thread should run rarely, because each run takes the GIL from the loop."""
_SLAVE_GATHER_S: Final = 0.02
"""The same for a slave. It is longer because copying the log comes first: the master waits for that, and few consumers
pull from a slave."""
_EXPIRE_EVERY_S: Final = 10.0
_LOCKS_EVERY_S: Final = 60.0
_WATCH_EVERY_S: Final = 1.0


class Concern(Protocol):
    """A class with operations for clients."""

    def operations(self) -> tuple[Operation, ...]: ...


class Broker:
    """One broker. Create, start and stop it once, within one event loop. `stop` also closes the store."""

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings | None = None,
        *,
        name_server: NameServer | None = None,
        access: Access | None = None,
        local: IsLocal = is_local,
        compile_sql: SqlCompiler = compile_sql,
        clock: Callable[[], int] = now_ms,
        elections: Callable[[], HaElections] | None = None,
    ) -> None:
        """`name_server` is the name server embedded in this process, if any. `access` overrides the settings.
        `elections` says how the elections of this broker stand, if it is elected.

        Without access control, only peers for which `local` returns True may send administration requests. Raises
        BadSettings, or BadStore if a table cannot be read.
        """
        self.state = state = BrokerState(
            store, settings or BrokerSettings.of(store.settings), clock, elections=elections
        )
        self.store = store
        store.dispatcher.set_batch_delay(_SLAVE_GATHER_S if store.role.takes_replica_bytes else _GATHER_S)
        self.held = HeldPulls(store)
        self.pending_acks = PendingAcks(store, state.settings)
        self.pending_acks.supervise(state.tasks)
        check_role(store.role, state.settings.now)
        self.identity = _identity(store, state.settings.now)
        epoch = 0 if state.settings.now.failover == "off" else store.role.epoch
        self.registration = BrokerRegistration(
            self.identity, state.topics, state.settings, state.tasks, name_server, epoch
        )
        self._tls: ServerTls = server_tls(store.settings.broker)
        self.access = access or Access.of(state.settings.now)
        self.replication = Replication(state, self.registration, self.access, self._tls)
        self._stopping: asyncio.Task[bool] | None = None
        state.tasks.on_leave.append(self._leave)
        requests = RemotingClientRequests()
        may_publish = all_may_publish if self.access is None else self.access.may_publish
        self.transaction_check = TransactionCheck(
            store, state.topics, state.offsets, state.clients, requests, state.settings, clock, may_publish
        )
        derived = {"useTLS": str(self._tls.peeks).lower(), **shown_settings(store, state.settings.now)}
        in_frames = self._limits().frame_bytes - _FRAME_SLACK
        self.administration = BrokerAdmin(
            state, self.held, self.pending_acks, requests, compile_sql, derived, max_message_size=in_frames
        )
        self._queries = MessageQueries(store)
        self.write_guard = WriteGuard()
        state.delayed.may_append = self.transaction_check.may_append = self._accepts_messages
        if self.replication.is_slave:
            self.write_guard.close("role", "this broker is a slave and does not accept messages; send to its master")
        self.core = self._assemble(requests, local, compile_sql)
        """All that this broker does for its clients, as plain calls."""
        self.handlers = {
            **message_handlers(self.core, state.settings),
            **client_handlers(self.core),
            **administration_handlers(self.core),
        }
        """Handlers of remoting by request code."""
        self._serve_frames = self._ordinary_requests()
        self._server = self._make_server()
        self._second_server: Server | None = None

    @property
    def server(self) -> Server:
        return self._server

    def _follows(self) -> bool:
        return self.replication.follows

    # -- assembly --------------------------------------------------------------------------------------------

    def _assemble(self, requests: ClientRequests, local: IsLocal, compile_sql: SqlCompiler) -> Core:
        state, store, clock, acks = self.state, self.store, self.state.clock, self.pending_acks
        tracing = start_tracing()
        self._is_guarded = tracing is not None or self.access is not None
        guards: list[Guard] = [self.write_guard] if tracing is None else [tracing, self.write_guard]
        if self.access is None:
            core = Core(only_local(local, self.replication.may_ask), [*guards, ActLog()])
        else:
            rights = self.access.guard(store)
            core = Core(self.access.admission(self.replication.may_ask), [*guards, rights, ActLog()])
        checks = SendChecks(state.topics, state.groups, state.settings, clock)
        self._sends = Sends(
            store,
            state.topics,
            checks,
            state.settings,
            acks,
            self.held,
            state.hooks,
            state.counters,
            make_half,
        )
        transactions = Transactions(store, acks, self.held, state.counters, self.write_guard)
        transactions.on_end.append(self.transaction_check.on_end)
        followed = self._follows if self.replication.is_slave else None
        reads = SlaveReads(state.settings, followed, corrects=store.settings.offset_check_in_slave)
        self._pulls = Pulls(state, self.held, MovedOffsets(store, state.settings, clock), reads, compile_sql)
        self._offsets = Offsets(store, state.offsets, state.topics, state.groups)
        concerns: tuple[Concern, ...] = (
            self._sends,
            RequestReply(store, state.clients, requests, checks, state.settings, clock, self.write_guard),
            SendBacks(state, acks, self.write_guard),
            self._pulls,
            transactions,
            self._offsets,
            self._queries,
            Clients(state.clients, state.groups, state.topics, state.settings, requests, compile_sql),
            state.locks,
            self.administration,
            AdminAccounts(self.access, self.identity, state.settings),
            self.replication.status,
            self.replication.tickets,
        )
        for concern in concerns:
            core.add(*concern.operations())
        return core

    def _ordinary_requests(self) -> OrdinaryRequests | None:
        if self._is_guarded or self.replication.is_slave or not is_chosen():
            return None
        frame_bytes = self._limits().frame_bytes
        parts = self._sends, self.pending_acks, self._pulls, self.held, self._offsets
        return OrdinaryRequests(self.state, *parts, self._accepts_messages, frame_bytes)

    def _accepts_messages(self) -> bool:
        return not self.write_guard.why_not

    def _make_server(self) -> Server:
        return Server(
            self.handlers,
            limits=self._limits(),
            tls=self._tls,
            before=None if self.access is None else Signatures(self.access),
            serve_frames=self._serve_frames,
            tasks=self.state.tasks,
            on_refused=self.state.counters.count_refused,
        )

    def _limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            frame_bytes=min(max(MAX_FRAME, self.store.settings.max_message_size + _FRAME_SLACK), _LARGEST_FRAME),
            idle_s=float(self.state.settings.now.server_channel_max_idle_time_seconds),
        )

    # -- running ---------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> Address:
        """Starts serving at `host` and `port`, or on the socket `bound`. Returns the address. Raises Unreachable.

        `port` should be the port in the store's settings, because every record and every route contains that port.
        """
        tasks = self.state.tasks
        tasks.watch_loop()
        if note := frames_note(self.store.settings.max_message_size):
            log.warning("%s", note)
        where = await self._server.start(host, port, bound)
        self.state.start_saving()
        for_slaves = await self.replication.start_listening()
        await self._listen_two_below(*where)
        self.registration.start("" if for_slaves is None else host_text(*for_slaves))
        self.replication.start_following()
        if self.store.role.delivers:
            self.state.delayed.start()
            tasks.every(lambda: self.transaction_check.interval_s, "transaction check", self.transaction_check.round)
        tasks.every(REPLICATION_SAMPLE_S, "samples of replication", self.replication.status.sample)
        tasks.every(_EXPIRE_EVERY_S, "expiry of clients", self.state.clients.expire)
        tasks.every(_LOCKS_EVERY_S, "expiry of queue locks", self.state.locks.drop_expired)
        watch = StoreWatch(self.store)
        watch.check_dispatch()
        tasks.every(_WATCH_EVERY_S, "watch of the store", watch.check)
        tasks.every(SAMPLE_S, "samples of counters", self.administration.sample)
        if self.access is not None:
            tasks.every(RELOAD_EVERY_S, "reload of accounts", self.access.reload_if_changed)
        return where

    async def _listen_two_below(self, host: str, port: int) -> None:
        """Listens at `port` minus 2 as well: for RocketMQ's clients up to 4.5.0, which send and pull there by default,
        and its slaves, which copy topics from there. A port that is taken is a warning.
        """
        if port <= 2:
            return
        second = self._make_server()
        try:
            await second.start(host, port - 2)
        except Unreachable as error:
            log.warning("RocketMQ's slaves, and its clients up to 4.5.0, cannot use this broker: %s", error)
        else:
            self._second_server = second

    @property
    def connections(self) -> int:
        """The number of open connections of clients."""
        servers = [self._server] if self._second_server is None else [self._server, self._second_server]
        return sum(len(server.connections) for server in servers)

    def health(self) -> HealthReport:
        """Returns whether the broker does all that it should, and if not, why. Costs nothing worth mentioning."""
        return self.state.health()

    def _leave(self) -> None:
        """Stops as at SIGTERM, because a task has ended without which the broker must not go on."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(None, unregister=True))

    async def stop(self, limit_s: float | None = None, *, unregister: bool = True) -> bool:
        """Stops in the order of the module's docstring. Returns whether every step finished within `limit_s` seconds.

        `limit_s` defaults to the setting stopLimitMillis. A second call waits for the first, and returns the same.
        Without `unregister`, name servers are told nothing: a broker of this address registers again soon.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(limit_s, unregister=unregister))
        return await asyncio.shield(self._stopping)

    async def _stop(self, limit_s: float | None, *, unregister: bool) -> bool:
        limit = self.state.settings.now.stop_limit_millis / 1000 if limit_s is None else limit_s
        deadline = asyncio.get_running_loop().time() + limit
        in_time = await _within(self._stop_serving(limit, unregister=unregister), deadline)
        saved = await _within(self._save(), deadline)
        closed = await _within(asyncio.to_thread(self.store.close), deadline)
        for done, step in (
            (in_time, "sending its last replies"),
            (saved, "saving its tables"),
            (closed, "closing the store"),
        ):
            if not done:
                log.error("the broker stopped before %s: the time limit passed, or it failed", step)
        return in_time and saved and closed

    async def _stop_serving(self, limit_s: float, *, unregister: bool) -> None:
        self.write_guard.close("stop", "this broker is stopping; send to another one")
        await self.state.tasks.stop()
        await self.registration.stop(unregister=unregister)
        self.state.delayed.stop()
        self.state.scheduler.stop()
        self.held.release_all()
        queries_end = asyncio.to_thread(self._queries.stop)  # the running query may read from the disk for long
        with contextlib.suppress(TimeoutError):
            drained = asyncio.gather(queries_end, self.held.drained(), self.pending_acks.drained())
            await asyncio.wait_for(drained, limit_s / 3)
        await self.replication.stop()
        if self._second_server is not None:
            await self._second_server.stop(limit_s / 6)
        await self._server.stop(limit_s / 3)

    async def _save(self) -> None:
        if not await self.state.persister.stop():
            log.error("some tables could not be saved; their previous files are unchanged")


async def _within(coroutine: Coroutine[Any, Any, None], deadline: float) -> bool:
    left = deadline - asyncio.get_running_loop().time()
    try:
        await asyncio.wait_for(coroutine, max(left, 0.1))
    except TimeoutError:
        return False
    except Exception:  # the steps after it must still run: the store is closed last
        log.exception("a step of stopping the broker failed")
        return False
    return True


def frames_note(max_message_size: int) -> str:
    """Returns what does not follow a maxMessageSize above the frames of RocketMQ's protocol; empty if all does."""
    if max_message_size + _FRAME_SLACK <= MAX_FRAME:
        return ""
    taken = min(max_message_size, _LARGEST_FRAME - _FRAME_SLACK)
    cut = "" if taken == max_message_size else f"this broker takes messages of at most {taken} bytes; and "
    return (
        f"maxMessageSize={max_message_size}: {cut}clients read frames of at most {MAX_FRAME} bytes, so they cannot "
        f"pull messages of more than about {(MAX_FRAME - _FRAME_SLACK) >> 20} MiB; RocketMQ's do with a higher "
        "com.rocketmq.remoting.frameMaxLength"
    )


def _identity(store: MessageStore, settings: BrokerSettings) -> BrokerIdentity:
    return BrokerIdentity(
        name=settings.broker_name,
        address=store.settings.store_host,
        cluster=settings.broker_cluster_name,
        broker_id=settings.broker_id,
    )
