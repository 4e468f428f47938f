"""Changes of the role of an open store, and what depends on the role: the epoch, and a slave's log.

A store without epochs has no epoch file, and its role has epoch 0: that costs nothing. It gets epochs when a replica
follows it, when it follows a master that has them, or with the first `RoleChanges.change`. From then on each mastership
has an epoch of its own, whether an election or a person decided on it: a start as a master enters the next one. Its
entry is written before the first append, or when the first replica asks for it, so a store that is only opened keeps
its epochs. Calls that change something must not overlap; the broker makes them one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from penstock.errors import BadSettings, StoreFailed
from penstock.store.append import PutPath
from penstock.store.background_threads import StoreThreads
from penstock.store.encode_message import PutRefused
from penstock.store.engine_parts import Engine
from penstock.store.replication.epochs import Entries
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.replication.replica_log import ReplicaLog
from penstock.store.retention.topic_deletion import TopicCleaner

log = logging.getLogger("penstock.store")


def limit_to_confirmed(engine: Engine, confirmed: int, in_sync_set: bool) -> None:
    """A slave with epochs shows no more at its start than consumers may have seen before: its tail may be cut.

    `confirmed` is 0 if that is not known. A slave of a sync set then shows nothing until its master says more; one
    without a set shows everything, as in RocketMQ.
    """
    if (confirmed or in_sync_set) and engine.epochs.entries and engine.log.role.takes_replica_bytes:
        engine.log.watermarks.confirm(confirmed)


def enter_first_epoch(engine: Engine) -> None:
    """Sets the epoch of the role at a start. A master's is a new one, if the store has epochs at all."""
    epochs, watermarks = engine.epochs, engine.log.watermarks
    if watermarks.role.takes_replica_bytes:
        watermarks.enter_epoch(epochs.last)
    elif epochs.entries:
        watermarks.enter_epoch(epochs.last + 1)
        engine.log.begin_epoch_with(partial(epochs.begin, epochs.last + 1))


class RoleChanges:
    """Exchanges the role of a store, and adjusts its parts."""

    def __init__(
        self,
        engine: Engine,
        topics: TopicCleaner,
        put_path: PutPath,
        threads: StoreThreads,
        flush: Callable[[], object],
    ) -> None:
        """Adjusts the parts to the role at the start. `flush` syncs the log up to its end."""
        self._engine = engine
        self._log, self._epochs, self._dispatcher = engine.log, engine.epochs, engine.dispatcher
        self._watermarks = engine.log.watermarks
        self._root = engine.layout.root
        self._topics = topics
        self._put_path = put_path
        self._threads = threads
        self._flush = flush
        self.replica_log: ReplicaLog | None = None
        """Appends the bytes of the master's log; None unless the store is a slave."""
        self._on_role()

    def change(self, role: Role) -> None:
        """See `MessageStore.change_role`."""
        if role.takes_replica_bytes and self._engine.only_appends:
            raise BadSettings("a store whose setting `dispatch` is external cannot become a slave; set dispatch=inline")
        try:
            while not self._try_change(role):
                pass
        except PutRefused as refused:
            raise StoreFailed(refused.reason, path=self._root) from None
        log.info("the role is %s in epoch %d", role, role.epoch)
        self._watermarks.role_changed()

    def _try_change(self, role: Role) -> bool:
        """Exchanges the role; returns False if a slave has received bytes meanwhile, which must be dispatched first."""
        takes_over = self._log.role.takes_replica_bytes and role.accepts_puts
        self._check_epoch(role)
        if takes_over:
            self._watermarks.unlimit()
            self._flush()
            self._dispatcher.catch_up()
        with self._dispatcher.paused(), self._log.exclusive():
            self._check_epoch(role)
            if takes_over:
                if (position := self._dispatcher.position) < self._watermarks.appended:
                    return False
                self._topics.cut_to_log()
                queues = self._engine.queues
                self._log.take_over(position, ((each.topic, each.queue_id, each.max_offset) for each in queues))
            if role.accepts_puts:
                self._epochs.begin(role.epoch, self._watermarks.appended)
            self._log.begin_epoch_with(None)
            self._log.change_role(role)
            self._on_role()
        return True

    def _check_epoch(self, role: Role) -> None:
        known = max(self._log.role.epoch, self._epochs.last)
        if role.epoch <= known:
            raise BadSettings(f"the epoch of the role must be above {known}, not {role.epoch}")

    def _on_role(self) -> None:
        """Adjusts the parts of the store to its role."""
        self.replica_log = ReplicaLog(self._log) if self._log.role.takes_replica_bytes else None
        self._topics.on_role()
        self._put_path.on_role()
        if any(self._watermarks.needs):
            self._threads.add(self._watermarks.deadlines)

    def begin_epoch(self) -> int:
        """Returns the epoch of this master, which is on disk then. A store without epochs gets its first one.

        Raises StoreFailed, also if this is a slave.
        """
        try:
            with self._log.exclusive():
                self._log.check_is_master()
                if not self._log.role.epoch:
                    self._watermarks.enter_epoch(1)
                    self._log.begin_epoch_with(partial(self._epochs.begin, 1))
                self._log.begin_epoch()
                return self._log.role.epoch
        except PutRefused as refused:
            raise StoreFailed(refused.reason, path=self._root) from None

    def follow_epochs(self, entries: Entries) -> None:
        """Takes over the epochs of the master that this slave follows from now on, before it takes the first byte.

        They are on disk when this returns. The caller has checked that this log is a prefix of the master's. Raises
        StoreFailed, also if the master's last epoch is older than one that this slave knows, and if this is a master.
        """
        newest = entries[-1].epoch if entries else 0
        if self.replica_log is None:
            raise StoreFailed(
                f"this is no slave, but {self._log.role}, and follows no master; make it a slave first", path=self._root
            )
        if newest < self._log.role.epoch:
            raise StoreFailed(
                f"the master is in epoch {newest}, and this slave knows epoch {self._log.role.epoch}: the master was "
                "replaced, or has an older store; start the right one again as a master",
                path=self._root,
            )
        self._epochs.adopt(entries)
        self._watermarks.enter_epoch(newest)
        self.replica_log.enter_epoch(newest)
