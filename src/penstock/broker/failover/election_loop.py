"""The keeper: reads the engine, decides by `election_rules`, has the broker play its part, and attempts transactions.

`Keeper.step` is one round: a view, what it means for the sync set, a decision, the part, at most one transaction. The
part comes before the transaction, and the required replicas before the write of a set. The keeper keeps nothing but
its part and the sync set: a step after a failure begins with what the engine holds.

`Node` is the broker process as a keeper sees it. Use a keeper from one thread; only `stop` may be called by others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Final, Protocol

from penstock.broker.failover.consensus_engine import (
    ChangeKind,
    Committed,
    Leader,
    Session,
    Unknown,
    View,
    boot_time,
)
from penstock.broker.failover.election_rules import Decision, Part, ReplicaState, decide
from penstock.broker.failover.sync_set import FollowerState, SyncSet

log = logging.getLogger("penstock.failover")

_SOON_S: Final = 0.02


class Node(Protocol):
    """The broker process that a keeper directs. Each call blocks until its effect is there."""

    def describe(self) -> ReplicaState:
        """Returns what the process knows of itself; the keeper adds its part."""

    def saw(self, view: View) -> None:
        """Notes what the engine holds, before a part is played."""

    def follow(self, my_id: int, leader: Leader) -> None:
        """Is a slave of this master from now on. Does nothing if it is already."""

    def stand(self) -> None:
        """Follows no master any more, and takes no writes."""

    def lead(self, my_id: int, epoch: int, required: frozenset[int]) -> None:
        """Is the master of this epoch; a send is acknowledged when all of `required` have it."""

    def wait(self, why: str) -> None:
        """Neither follows nor leads; takes no writes."""

    def require(self, required: frozenset[int]) -> None:
        """Exchanges the required replicas of a master."""

    def followers(self) -> Mapping[int, FollowerState]:
        """Returns the replicas that follow this master in its epoch, by id."""

    def log_end(self) -> int:
        """Returns where the log ends."""

    def close_writes(self) -> None:
        """Refuses writes of a master that hands over; those that are accepted have ended when it returns."""

    def open_writes(self) -> None:
        """Takes writes again."""


class Keeper:
    """Directs one replica."""

    def __init__(self, session: Session, node: Node, clock: Callable[[], float] = boot_time) -> None:
        self._session = session
        self._node = node
        self._clock = clock
        self.part = Part.WAIT
        self.part_epoch = 0
        self.why = ""
        """What the replica waits for; for people."""
        self.view = View()
        """The newest view."""
        self.sync_set: SyncSet | None = None
        """Of a master."""
        self._stands_since = inf
        self._closed_since = inf
        self._published_at = -inf
        self._leaderless_since = inf
        self._is_stopping = False
        self.has_resigned = False
        """Whether this replica has given up its leadership in order to stop."""

    # -- rounds ----------------------------------------------------------------------------------------------

    def use(self, session: Session) -> None:
        """Goes on with another session, because the lease of the former one has ended."""
        self._session = session

    def stop(self) -> None:
        """Has the next steps hand over. Any thread may call it."""
        self._is_stopping = True

    @property
    def is_leading(self) -> bool:
        return self.part is Part.LEAD

    def step(self) -> float:
        """Does one round. Returns the seconds after which the next one is due. Raises EngineAway or BadEngine."""
        view = self.view = self._session.view()
        known = self._node.describe()
        if view.leader is not None:
            self._leaderless_since = inf
        elif self._leaderless_since == inf:
            self._leaderless_since = self._clock()
        followers = self._update_set(view, known.limits.lag_s)
        me = replace(
            known,
            part=self.part,
            part_epoch=self.part_epoch,
            stands_since=self._stands_since,
            closed_since=self._closed_since,
            published_at=self._published_at,
            leaderless_since=self._leaderless_since,
            is_stopping=self._is_stopping,
            followers=followers,
            sync_set=self.sync_set,
        )
        self._node.saw(view)
        decision = decide(view, me, self._clock())
        self._play(decision, view, me)
        if decision.transaction is not None and self.part is decision.part:
            self._attempt(decision)
            return _SOON_S if decision.transaction.what is not ChangeKind.PUBLISH else decision.again_s
        return _SOON_S if me.part is not self.part else decision.again_s

    def _update_set(self, view: View, lag_s: float) -> Mapping[int, FollowerState]:
        """Has the right replicas required, before anything is written about them. Returns the followers."""
        if self.sync_set is None:
            return {}
        self._require(self.sync_set.seen(view).follow(self._followers(view), lag_s))
        self.sync_set = self.sync_set.applied(self._node.log_end())
        return self._followers(view)

    def _followers(self, view: View) -> Mapping[int, FollowerState]:
        """Returns the followers that the engine knows. No other id may come into the set."""
        known = () if view.state is None else view.state.ids.values()
        return {each: follower for each, follower in self._node.followers().items() if each in known}

    def _require(self, sync_set: SyncSet) -> None:
        before, self.sync_set = self.sync_set, sync_set
        if before is None or before.required != sync_set.required:
            self._node.require(sync_set.required)

    # -- parts -----------------------------------------------------------------------------------------------

    def _play(self, decision: Decision, view: View, me: ReplicaState) -> None:
        """Takes on the part of a decision."""
        self.why = decision.why
        part, is_new = decision.part, decision.part is not self.part or decision.epoch != self.part_epoch
        if is_new and self.part is Part.LEAD:
            self._leave()
        state = view.state
        my_id = 0 if state is None else state.ids.get(me.name, 0)
        if part is Part.LEAD and is_new:
            self._stands_since = inf
            sync_set = SyncSet.of(my_id, view)
            self._node.lead(my_id, decision.epoch, sync_set.required)
            self.sync_set = sync_set
        elif part is Part.FOLLOW:
            self._stands_since = inf
            if view.leader is not None:  # otherwise it goes on as it is
                self._node.follow(my_id, view.leader)
        elif part is Part.STAND and is_new:
            self._node.stand()
            self._stands_since = self._clock()
        elif part is Part.WAIT:
            self._stands_since = inf
            self._node.wait(decision.why)
        if is_new:
            log.info("this replica %s in epoch %d%s", part, decision.epoch, f": {decision.why}" if decision.why else "")
        self.part, self.part_epoch = part, decision.epoch
        self._set_writes(decision)

    def _leave(self) -> None:
        """Ends a leadership: nothing is acknowledged in its epoch from now on."""
        self._node.stand()
        self.sync_set = None
        self._closed_since = inf
        self.part, self.part_epoch = Part.WAIT, 0

    def _set_writes(self, decision: Decision) -> None:
        if self.part is not Part.LEAD:
            return
        if decision.closes_writes and self._closed_since == inf:
            self._node.close_writes()
            self._closed_since = self._clock()
        elif not decision.closes_writes and self._closed_since != inf:
            self._closed_since = inf
            self._node.open_writes()

    # -- transactions ----------------------------------------------------------------------------------------

    def _attempt(self, decision: Decision) -> None:
        transaction = decision.transaction
        assert transaction is not None
        if decision.sync_set is not None and self.sync_set is not None:
            self._require(self.sync_set.attempt(decision.sync_set))
        outcome = self._session.commit(transaction)
        if transaction.what is ChangeKind.PUBLISH and isinstance(outcome, Committed):
            self._published_at = self._clock()
            return
        if transaction.what in (ChangeKind.HAND_OVER, ChangeKind.RESIGN) and isinstance(outcome, Committed):
            self.has_resigned = self._is_stopping
        if isinstance(outcome, Unknown):
            log.warning("%s: no answer, so it is read again: %s", transaction.what, outcome.why)
        else:
            log.info(
                "%s: %s", transaction.what, "done" if isinstance(outcome, Committed) else "something else was first"
            )
