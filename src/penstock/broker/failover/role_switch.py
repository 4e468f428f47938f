"""The broker process that a keeper directs: one store and one broker, exchanged as a whole when the role changes.

A change of the role stops the broker, closes the store, opens it again (which carries out a cut that the last handshake
prepared), changes its role and starts another broker at the same listening socket. Clients that connect meanwhile wait
in the socket's queue. A master first refuses messages and fails the sends that wait: nothing is acknowledged in an
epoch that has ended.

The keeper's thread calls the methods of `Node`; each runs on the loop and returns when it is done, so that two changes
never overlap. Everything else is for the loop's thread, except `health`, which the lease's thread calls.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock import __version__
from penstock.broker.broker import Broker
from penstock.broker.failover.consensus_engine import ABSENT, Acks, Leader, State, View, boot_time
from penstock.broker.failover.election_rules import Failsafe, ReplicaState, may_write
from penstock.broker.failover.failover_settings import acks_of, limits_of
from penstock.broker.failover.lease import MasterHealth
from penstock.broker.failover.membership_file import Membership
from penstock.broker.failover.role_change_commands import RoleChange
from penstock.broker.failover.sync_set import FollowerState
from penstock.broker.replication.replication import LOOPBACK
from penstock.broker.settings import BrokerSettings
from penstock.clock import now_ms
from penstock.errors import StoreFailed, StoreInUse
from penstock.rate_limited_log import RateLimitedLog
from penstock.remoting.sockets import parse_address
from penstock.store.message_store import MessageStore
from penstock.store.replication.log_gaps import accept_all_gaps, lacks_messages
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.replication.replica_identity import replica_identity
from penstock.store.running_flags import StoreFault
from penstock.store.settings import BrokerRole

log = logging.getLogger("penstock.failover")
T = TypeVar("T")

_PROBE_S: Final = 0.2
_PROBE_AGAIN_S: Final = (0.05, 0.1, 0.0)
"""Pauses after each probe: the kernel ends a killed process's connections before it closes its ports, or after."""
_PING_S: Final = 0.25
_FENCE_S: Final = 0.1
_STOP_S: Final = 5.0
_CHANGE_S: Final = 20.0
"""Seconds that a change of the role may take: a disk that hangs must not keep the lease."""
_CLOSE_S: Final = 60.0
"""Seconds that the store may take to close before it is opened again; the process ends if it takes longer."""
_HEARD_MS: Final = 1000
_REMIND_S: Final = 60.0
_NEAR_BYTES: Final = 4 << 20
"""A follower that lacks less than this is near: sends can wait for it."""
_FENCED: Final = "this broker cannot reach the consensus engine, and another one may be the master"
_CLOSED: Final = "this broker hands over to another one; send again"


@dataclass(frozen=True, slots=True)
class Host:
    """What a node needs of the process around it."""

    settings: BrokerSettings
    open_store: Callable[[], MessageStore]
    """Opens the store as a slave's. May block."""
    make_broker: Callable[[MessageStore, BrokerSettings], Broker]
    bound: socket.socket
    """The socket at which each broker listens in turn."""
    on_serving: Callable[[Broker], object]
    """Called on the loop when a broker has started."""
    on_role: Callable[[RoleChange], object] = lambda change: None
    """Called on the loop when this replica serves as master or slave. Returns at once."""


class BrokerNode:
    """A replica. Create it on the loop, with the store open as a slave's."""

    def __init__(self, host: Host, store: MessageStore) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._store = store
        self.broker: Broker | None = None
        """The broker that serves; None until the engine has given this replica an id, and during a change."""
        self.membership = Membership(store)
        if self.membership.is_lacking:
            log.error("this log lacks messages that it had acknowledged: it is not elected before it has copied them")
        self._not_noted = RateLimitedLog(log, every_s=_REMIND_S)
        """What could not be written about this replica. Each round tries again."""
        self._name = replica_identity(store.engine.io, store.layout)
        self._incarnation = secrets.token_hex(8)
        self._id = 0
        self._epoch = 0
        """The epoch that this replica leads; 0 if it does not."""
        self._was_master: bool | None = None
        """Whether the last broker was a master's; None if there was none."""
        self._known_epoch = 0
        """The epoch of the newest view."""
        self._forced = 0
        """The newest epoch that an operator forced, accepting that messages are lost; 0 if there was none."""
        self._ids: Mapping[str, int] = {}
        """The replicas that the engine knows: ids by the names of their stores."""
        self._followed: Leader | None = None
        self._dead_leader = ABSENT
        self._leader_version = ABSENT
        self._pinged_at = boot_time()
        self._heard: frozenset[int] = frozenset()
        self._changing = asyncio.Lock()
        self._change_began: float | None = None
        """When the change of the role began that is under way."""
        self._uncut_size: int | None = None
        """Bytes of the log, if a part of it is to be cut."""
        self.fenced = ""
        """Why this master takes no messages; empty if it takes them, or is none."""
        self.elections_won = 0
        self.role_changes = 0
        self.tails_cut = 0
        self.tail_bytes_cut = 0
        self.wake: Callable[[], object] = lambda: None
        """Has the keeper look again."""
        self.deadline: Callable[[], float] = boot_time
        """When the lease may end."""
        self.on_lost: Callable[[BaseException], object] = lambda error: None
        """Called on the loop if a change of the role fails: the process cannot go on."""

    # -- what the keeper calls -------------------------------------------------------------------------------

    def describe(self) -> ReplicaState:
        store, broker = self._store, self._host.settings
        return ReplicaState(
            name=self._name,
            incarnation=self._incarnation,
            place=f"{platform.node()}:{store.layout.root.absolute()}",
            address=store.settings.store_host,
            ha_address=f"{broker.broker_ip2 or LOOPBACK}:{store.settings.ha_listen_port}",
            version=__version__,
            epoch=store.epochs.last,
            end=store.watermarks.appended,
            was_member=self.membership.id != 0,
            is_tainted=self.membership.is_tainted,
            is_lacking=self.membership.is_lacking,
            is_damaged=self._is_damaged(),
            is_learner=broker.async_learner,
            is_healthy=not self.health(broker.failover_ttl_millis / 1000 / 3).why_not,
            priority=broker.broker_election_priority,
            acks=acks_of(broker),
            is_fast=broker.failover_fast,
            dead_leader=self._dead_leader,
            hears_master=self._hears_master(),
            wall_ms=now_ms(),
            limits=limits_of(broker),
        )

    def _is_damaged(self) -> bool:
        """Whether the log has a gap; also if that cannot be found out, or cannot be noted."""
        try:
            return lacks_messages(self._store)
        except (StoreFailed, OSError) as error:
            self._not_noted.warn(f"this log counts as one with a gap, because its gaps cannot be noted: {error}")
            return True

    def _hears_master(self) -> bool:
        broker = self.broker
        return broker is not None and now_ms() - broker.replication.heard_ms < _HEARD_MS

    def saw(self, view: View) -> None:
        state, self._leader_version = view.state, view.leader_version
        if state is not None:
            self._known_epoch, self._forced, self._ids = state.epoch, state.forced, state.ids
        if state is not None and (my_id := state.ids.get(self._name, 0)) != 0:
            if self.membership.id != my_id:
                self.membership.joined(my_id)
            if state.master != my_id or self._epoch == state.epoch or state.forced == state.epoch:
                self._note(state)

    def _note(self, state: State) -> None:
        """Notes a state in which this replica follows, leads, or was forced to lead. It may wait for the disk.

        So one that was elected leads first: a disk that hangs while the role changes is noticed.
        """
        try:
            self.membership.seen(state, has_confirmed=self._has_confirmed(state))
        except StoreFailed as error:
            self._not_noted.warn(f"what the engine holds of this replica cannot be noted: {error}")

    def _has_confirmed(self, state: State) -> bool:
        """Whether a replica that lacked messages at its start has them again: see `Membership.seen`.

        A log with a gap proves nothing, nor does a master that acknowledges what only it has: it confirms nothing.
        """
        if not self.membership.is_lacking or state.acks is not Acks.ALL or self._is_damaged():
            return False
        return self._call(self._has_copied(state.epoch))

    async def _has_copied(self, epoch: int) -> bool:
        """Whether the master of this epoch sends its log, and all that it has confirmed is here."""
        broker, leader = self.broker, self._followed
        if broker is None or leader is None or leader.epoch != epoch or not broker.replication.follows:
            return False
        return self._store.watermarks.has_confirmed

    def follow(self, my_id: int, leader: Leader) -> None:
        if self._followed != leader or self._id != my_id or self._epoch:
            self._call(self._follow(my_id, leader))

    def stand(self) -> None:
        self._call(self._stand())

    def wait(self, why: str) -> None:
        if self._epoch or self._followed is not None:
            self._call(self._stand())

    def lead(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        self._call(self._lead(my_id, epoch, required))

    def require(self, required: frozenset[int]) -> None:
        if self._host.settings.all_ack_in_sync_state_set:
            self._store.require_replicas(required - {self._id})

    def followers(self) -> Mapping[int, FollowerState]:
        return self._call(self._followers())

    def log_end(self) -> int:
        return self._store.watermarks.appended

    def close_writes(self) -> None:
        self._call(self._close_writes())

    def open_writes(self) -> None:
        self._call(self._open_writes())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # -- the part ---------------------------------------------------------------------------------------------

    async def _follow(self, my_id: int, leader: Leader) -> None:
        async with self._changing:
            if self.broker is None or self._epoch or self._id != my_id:
                await self._exchange(my_id, 0, frozenset())
            assert self.broker is not None
            self._followed, self._dead_leader = leader, ABSENT
            accepts_loss = self._forced > self._store.epochs.last
            await self.broker.replication.follow(
                leader.ha_address, leader.address, leader.epoch, accepts_loss=accepts_loss
            )

    async def _stand(self) -> None:
        async with self._changing:
            if self._epoch:
                await self._exchange(self._id, 0, frozenset())
            elif self.broker is not None:
                await self.broker.replication.stop_following()
            self._followed = None

    async def _lead(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        async with self._changing:
            self.elections_won += 1
            await self._exchange(my_id, epoch, required)

    async def _exchange(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        """Stops the broker that runs, and starts one as the master of `epoch`; 0: as a slave without a master."""
        self._change_began = boot_time()
        await self._exchange_all(my_id, epoch, required)
        self._change_began = None

    async def _exchange_all(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        began = time.monotonic()
        self._followed = None
        if self.broker is not None:
            await self._stop_broker("this broker is not the master any more; send to the new one")
            await self._open_again()
        store, settings = self._store, self._host.settings
        if epoch:
            name = BrokerRole.SYNC_MASTER if acks_of(settings) is Acks.ALL else BrokerRole.ASYNC_MASTER
            await asyncio.to_thread(store.change_role, Role(name, epoch))
            await asyncio.to_thread(accept_all_gaps, store)
            if settings.all_ack_in_sync_state_set:
                store.require_replicas(required - {my_id})
        broker = self._host.make_broker(store, settings.with_changes(broker_id=0 if epoch else my_id))
        self.role_changes += self._was_master is not (epoch != 0)
        self._id, self._epoch, self._was_master = my_id, epoch, epoch != 0
        broker.replication.on_lost_master(self._on_lost_master)
        broker.replication.on_cut(self._on_cut)
        broker.replication.count_only(self._is_replica)
        broker.registration.may_register = self._may_register
        tasks = broker.state.tasks
        tasks.every(_PING_S, "ping of the loop", self._ping)
        if epoch:
            tasks.every(_FENCE_S, "fence of the lease", self._fence)
        bound = self._host.bound
        host, port = bound.getsockname()[:2]
        await broker.start(host, port, bound.dup())
        self.broker = broker
        self._ping()
        self._fence()
        self._host.on_serving(broker)
        role = f"the master of epoch {epoch}" if epoch else f"a slave with id {my_id}"
        log.info("this broker is %s after %.3f s", role, time.monotonic() - began)
        known = max(epoch, self._known_epoch)
        address = store.settings.store_host
        self._host.on_role(RoleChange(epoch != 0, known, settings.broker_name, my_id, address))

    async def _open_again(self) -> None:
        """Opens the closed store, which carries out a cut that is due."""
        deadline = time.monotonic() + _CLOSE_S
        while True:
            try:
                self._store = await asyncio.to_thread(self._host.open_store)
                break
            except StoreInUse:  # a slow disk: the store is being closed in a thread for longer than the broker waited
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_PING_S)
        before, self._uncut_size = self._uncut_size, None
        if before is not None:
            self.tails_cut += 1
            self.tail_bytes_cut += max(0, before - _log_size(self._store))

    async def _stop_broker(self, why: str) -> None:
        broker, self.broker = self.broker, None
        assert broker is not None
        if self._epoch:
            broker.write_guard.close("failover", why)
            self._store.watermarks.close(why)
        self._epoch, self.fenced = 0, ""
        await broker.stop(_STOP_S, unregister=False)  # its next registration does that, and harms no successor

    async def stop(self, limit_s: float | None = None) -> bool:
        """Stops the broker and closes the store. Call it when the keeper has ended.

        A master unregisters nothing: its successor may have the id 0 already. If there is none, name servers remove
        this broker when its connection ends.
        """
        if self.broker is None:
            await asyncio.to_thread(self._store.close)
        elif not await self.broker.stop(limit_s, unregister=not self._epoch):
            return False
        await asyncio.to_thread(self.membership.stopped)
        return True

    def _on_cut(self, why: str) -> None:
        """Opens the store again: that cuts the tail that the master does not have, which is set aside already."""
        log.warning("the store is opened again, to cut what the master does not have: %s", why)
        self._uncut_size = _log_size(self._store)
        task = asyncio.create_task(self._reopen())
        task.add_done_callback(self._reopened)

    async def _reopen(self) -> None:
        async with self._changing:
            if not self._epoch:
                await self._exchange(self._id, 0, frozenset())
        self.wake()

    def _reopened(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the store cannot be opened again, and the broker leaves: %s", error)
            self.on_lost(error)

    @property
    def id(self) -> int:
        """The id of this replica in its set; 0 if it has none yet."""
        return self._id

    @property
    def required(self) -> int:
        """The number of replicas that must have a message before it is acknowledged; 0 if this is not the master."""
        return len(self._store.watermarks.required or ()) + 1 if self._epoch else 0

    # -- leading ----------------------------------------------------------------------------------------------

    async def _followers(self) -> Mapping[int, FollowerState]:
        broker, end = self.broker, self._store.watermarks.stored
        if broker is None:
            return {}
        reports = self._store.watermarks.reports
        return {
            each.replica_id: FollowerState(
                offset=reports.get(each.replica_id, 0),
                behind_s=each.behind_s,
                is_near=end - reports.get(each.replica_id, 0) < _NEAR_BYTES,
                is_learner=each.is_learner,
            )
            for each in broker.replication.replicas()
        }

    def _is_replica(self, name: str, replica_id: int) -> bool:
        """Whether the engine gave this id to the store of this name."""
        return self._ids.get(name) == replica_id

    async def _close_writes(self) -> None:
        if self.broker is not None:
            self.broker.write_guard.close("failover", _CLOSED)

    async def _open_writes(self) -> None:
        if self.broker is not None:
            self.broker.write_guard.open("failover")

    def _fence(self) -> None:
        """Refuses messages while the lease may have ended, unless every required replica is heard.

        Has the keeper look again when a replica has come or gone.
        """
        broker = self.broker
        if broker is None or not self._epoch:
            return
        heard = frozenset(each.replica_id for each in broker.replication.replicas())
        if heard != self._heard:
            self._heard = heard
            self.wake()
        required = self._store.watermarks.required or frozenset()
        silent = required - heard if required else None
        ttl_s = self._host.settings.failover_ttl_millis / 1000
        if may_write(boot_time(), self.deadline(), ttl_s / 5, Failsafe(self._host.settings.failsafe), silent):
            if self.fenced:
                broker.registration.changed()
            self.fenced = ""
            broker.write_guard.open("lease")
        else:
            self.fenced = _FENCED
            broker.write_guard.close("lease", _FENCED)

    def _may_register(self) -> bool:
        """Whether this broker may tell name servers its role. A master that woke up late first finds out its own."""
        self._fence()
        return not self.fenced

    # -- watching ---------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        self._pinged_at = boot_time()

    def health(self, limit_s: float) -> MasterHealth:
        """Returns whether this broker may be the master. `limit_s` is how long its loop may be silent."""
        store = self._store
        if store.watermarks.failure is not None:
            return MasterHealth(store.watermarks.failure, is_final=True)
        if store.dead_threads:
            return MasterHealth(f"threads of the store have ended: {', '.join(store.dead_threads)}", is_final=True)
        if store.flags.bits & ~StoreFault.DISK_FULL and self.broker is not None and self._epoch:
            return MasterHealth("the store refuses messages")
        if self.broker is not None and boot_time() - self._pinged_at > limit_s:
            return MasterHealth(f"the broker's loop has not turned for {boot_time() - self._pinged_at:.1f} s")
        if (began := self._change_began) is not None and boot_time() - began > _CHANGE_S:
            return MasterHealth(f"a change of the role has taken {boot_time() - began:.1f} s so far")
        if (seconds := store.watermarks.sync_seconds) > limit_s:
            return MasterHealth(f"a sync of the log has taken {seconds:.1f} s so far")
        return MasterHealth()

    def _on_lost_master(self) -> None:
        """The connection to the master has ended: if its process has, too, there is no need to wait for its lease."""
        leader, version = self._followed, self._leader_version
        if leader is not None and self._host.settings.failover_fast:
            task = asyncio.create_task(self._probe(leader, version))
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _probe(self, leader: Leader, version: int) -> None:
        for pause_s in _PROBE_AGAIN_S:
            refused = await asyncio.gather(*(_refuses(each) for each in (leader.address, leader.ha_address)))
            if self._followed != leader:
                return
            if all(refused):
                log.warning("the master at %s is gone: its ports refuse connections", leader.address)
                self._dead_leader = version
                self.wake()
                return
            await asyncio.sleep(pause_s)


def _log_size(store: MessageStore) -> int:
    return store.watermarks.appended - max(store.log.min_offset, 0)


async def _refuses(address: str) -> bool:
    """Whether the machine at an address answers that nothing listens there."""
    try:
        host, port = parse_address(address, "the master's address")
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
