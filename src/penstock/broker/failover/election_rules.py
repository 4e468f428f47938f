"""What a replica does next, given a view of the engine and what it knows of itself. Pure: no clock, no I/O.

`decide` returns which part the replica has to play now (follow, stand for election, lead, wait) and at most one
transaction to attempt. The caller takes on the part first, then attempts the transaction, then reads the engine again:
what the engine holds is the truth, and a decision is made from it each time. Each transaction expects the versions that
the decision was made from, so that of two replicas that decide at once only one succeeds.

Who may be elected: a member of the sync set that is no learner and is healthy, while elections are not paused; under a
pause only the last master. A replica that lost its page cache (`ReplicaState.is_tainted`) lets the others go first; one
whose log is lost (`ReplicaState.is_lacking`) is elected only if an operator forces it. A replica whose log has a gap
(`ReplicaState.is_damaged`) stands only if all others of the set say that theirs have one, too, or the set has no
others: after a forced failover, for example. The replica with the longest log goes first of all, because then the least
has to be cut; any of them is safe.

A master whose lease has ended, because the engine was away, regains its leadership in the same epoch if no other was
elected meanwhile: the state is still its own, and the process is the one that leads this epoch.

A replica stops following before it stands for election. It is safe even so if a transaction of unknown outcome elects
it later: it has every byte that it acknowledged to the former master.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final

import msgspec

from penstock.broker.failover.consensus_engine import (
    ABSENT,
    HISTORY_LIMIT,
    LEADER,
    MAX_REPLICAS,
    REQUEST,
    STATE,
    Acks,
    ChangeKind,
    Leader,
    Mastership,
    Member,
    State,
    Transaction,
    View,
    history_key,
    member_key,
)
from penstock.broker.failover.sync_set import FollowerState, SyncSet

RANK_S: Final = 0.05
"""Seconds that a candidate waits for each one that goes before it."""
REGAIN_S: Final = 1.5
"""Seconds that a replica leaves to a master that it hears, whose lease has ended: usually the engine was away."""
SUCCESSOR_S: Final = 2.0
"""Seconds that the others leave to the replica to which a master handed over."""
LACKS_MESSAGES: Final = "its log lacks messages that it had acknowledged; is its disk mounted?"
"""Why a replica cannot be elected whose log is lost."""


class Part(StrEnum):
    """What a replica does in its set."""

    WAIT = "waits"
    FOLLOW = "follows"
    STAND = "stands for election"
    LEAD = "leads"


class Failsafe(StrEnum):
    """When a master goes on although it cannot renew its lease: see `may_write`."""

    PEERS = "peers"
    OFF = "off"
    ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times of the settings, in seconds."""

    election_wait_s: float = 10.0
    lag_s: float = 3.0
    """haMaxTimeSlaveNotCatchup."""
    hand_over_s: float = 10.0
    publish_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What a replica knows of itself."""

    name: str
    """The random name that lies in its store."""
    incarnation: str
    """The random name of this process."""
    place: str = ""
    address: str = ""
    ha_address: str = ""
    version: str = ""
    epoch: int = 0
    """The newest epoch of its log."""
    end: int = 0
    """Where its log ends."""
    was_member: bool = False
    """Whether its store has been in a set before."""
    is_tainted: bool = False
    """Whether it may have lost what it had acknowledged: it flushes asynchronously, ended uncleanly, and the machine
    has booted since."""
    is_lacking: bool = False
    """Whether its log lacks what it had acknowledged: a disk was lost, or is not mounted."""
    is_damaged: bool = False
    """Whether its log has a gap, or was cut at one and is not copied again yet: it lacks acknowledged messages."""
    is_learner: bool = False
    is_healthy: bool = True
    priority: int = 0
    acks: Acks = Acks.ALL
    is_fast: bool = True
    """failoverFast."""
    part: Part = Part.WAIT
    part_epoch: int = 0
    """The epoch in which it leads or follows."""
    stands_since: float = inf
    """When it stopped following to stand for election."""
    dead_leader: int = ABSENT
    """The version of the key `leader` whose process has ended: its connections broke, and its ports refuse new ones."""
    hears_master: bool = False
    """Whether the master that it follows has sent something within the last second or so."""
    leaderless_since: float = inf
    """Since when the engine has had no leader."""
    is_stopping: bool = False
    closed_since: float = inf
    """Since when it refuses writes in order to hand over."""
    published_at: float = -inf
    """When it last wrote its member key."""
    followers: Mapping[int, FollowerState] = field(default_factory=dict)
    sync_set: SyncSet | None = None
    """Of a master."""
    wall_ms: int = 0
    limits: Limits = Limits()

    def member(self, part: Part, why: str) -> Member:
        """Returns this replica's member key."""
        return Member(
            replica=self.name,
            incarnation=self.incarnation,
            place=self.place,
            address=self.address,
            ha_address=self.ha_address,
            role=part,
            epoch=self.epoch,
            end=self.end,
            tainted=self.is_tainted,
            lacking=self.is_lacking,
            damaged=self.is_damaged,
            learner=self.is_learner,
            priority=self.priority,
            version=self.version,
            why=why[:1000],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a replica does next."""

    part: Part
    epoch: int = 0
    """The epoch to lead or to follow in."""
    why: str = ""
    """What it waits for, or what is wrong; for people."""
    transaction: Transaction | None = None
    """To be attempted once the part is taken on."""
    sync_set: frozenset[int] | None = None
    """The set that the transaction writes, if it changes the set."""
    closes_writes: bool = False
    """Whether a master refuses writes, to hand over."""
    again_s: float = inf
    """Seconds after which to decide again, if nothing changes before."""


def decide(view: View, me: ReplicaState, now: float) -> Decision:
    """Returns what the replica `me` does next. `now` is by the clock of `me`'s times."""
    state = view.state
    if state is None:
        return _found(me)
    my_id = state.ids.get(me.name)
    if my_id is None:
        return _join(view, state, me)
    if (problem := _contradiction(view, state, me, my_id)) != "":
        return _wait(view, me, my_id, now, problem)
    leader = view.leader
    if _may_regain(view, state, me, my_id):
        return Decision(part=Part.LEAD, epoch=state.epoch, transaction=_regain(view, state, me, my_id))
    if leader is None and _may_regain_soon(state, me, now):
        return Decision(part=Part.FOLLOW, epoch=state.epoch, again_s=me.leaderless_since + REGAIN_S - now)
    if leader is None:
        return _stand(view, state, me, my_id, now, ChangeKind.ELECT, "the last master's lease has ended")
    if view.leader_is_mine:
        if (leader.id, leader.epoch, state.master) == (my_id, state.epoch, my_id):
            return _lead(view, state, me, my_id, now)
        return Decision(part=Part.WAIT, why="its leadership is void", transaction=_resign(view))
    if leader.id == my_id:
        return _stand(view, state, me, my_id, now, ChangeKind.RESTART, "the master's process was started again")
    if leader.epoch != state.epoch:
        return _stand(view, state, me, my_id, now, ChangeKind.TAKE_OVER, "the master's leadership is void")
    is_dead = me.dead_leader == view.leader_version and me.is_fast and state.acks is Acks.ALL
    if is_dead and _why_not(state, me, my_id) == "" and not _who_may_be_whole(view, state, me, my_id):
        return _stand(view, state, me, my_id, now, ChangeKind.TAKE_OVER, "the master's process has ended")
    publish = _publish(view, me, my_id, Part.FOLLOW, "", now)
    return Decision(part=Part.FOLLOW, epoch=state.epoch, transaction=publish, again_s=me.limits.publish_s)


# -- becoming a member -----------------------------------------------------------------------------------------------


def _found(me: ReplicaState) -> Decision:
    """The engine holds nothing: the first replica founds the set."""
    if me.was_member:
        why = (
            "the engine has no state of this broker name, but this store was in a set; restore the engine's data, or "
            "remove penstock/failover.json from the store that has every message, and start that one first"
        )
        return Decision(part=Part.WAIT, why=why)
    if me.is_learner:
        return Decision(part=Part.WAIT, why="no master has been elected yet, and a learner cannot be one")
    if me.part is not Part.STAND:
        return Decision(part=Part.STAND)
    state = State(
        epoch=me.epoch + 1,
        master=1,
        sync=(1,),
        ids={me.name: 1},
        next_id=2,
        since=me.wall_ms,
        why="the first replica",
        acks=me.acks,
    )
    return Decision(part=Part.STAND, transaction=_begin_epoch(ChangeKind.BOOTSTRAP, View(), state, me, 1))


def _join(view: View, state: State, me: ReplicaState) -> Decision:
    if me.end > 0 and me.epoch == 0:
        why = (
            "this store has messages, and the set was founded without it; move them aside, or found the set with this "
            "store: start it first"
        )
        return Decision(part=Part.WAIT, why=why)
    if len(state.ids) >= MAX_REPLICAS:
        why = f"the set has {MAX_REPLICAS} replicas; remove those that are gone with `penstock cluster forget`"
        return Decision(part=Part.WAIT, why=why)
    joined = msgspec.structs.replace(state, ids={**state.ids, me.name: state.next_id}, next_id=state.next_id + 1)
    transaction = Transaction(
        what=ChangeKind.JOIN, expected={STATE: view.state_version}, puts={STATE: joined.to_bytes()}
    )
    return Decision(part=Part.WAIT, why="joins the set", transaction=transaction)


def _contradiction(view: View, state: State, me: ReplicaState, my_id: int) -> str:
    """Returns why this replica may neither follow nor lead; empty if it may."""
    if me.epoch > state.epoch:
        return (
            f"this store has epoch {me.epoch}, and the engine only {state.epoch}: the engine's data is older than the "
            "store; restore the engine"
        )
    other = view.members.get(my_id)
    if other is not None and other.incarnation != me.incarnation and other.place != me.place:
        machine = other.place.partition(":")[0]  # the health page, which anyone may read, shows this; so no path
        return (
            f"another process, on {machine}, has the identity of this store; if this is a copy of that store, remove "
            "penstock/replica.json and penstock/failover.json from the copy"
        )
    return ""


def _wait(view: View, me: ReplicaState, my_id: int, now: float, why: str) -> Decision:
    transaction = _resign(view) if view.leader_is_mine else None
    other = view.members.get(my_id)
    if transaction is None and (other is None or other.place == me.place):
        transaction = _publish(view, me, my_id, Part.WAIT, why, now)
    return Decision(part=Part.WAIT, why=why, transaction=transaction, again_s=me.limits.publish_s)


def _publish(view: View, me: ReplicaState, my_id: int, part: Part, why: str, now: float) -> Transaction | None:
    """Returns the write of this replica's member key, if the engine's is not as it should be."""
    member, published = me.member(part, why), view.members.get(my_id)
    if published is not None and my_id in view.own_members:
        is_recent = now - me.published_at < me.limits.publish_s
        if (msgspec.structs.replace(published, end=member.end) if is_recent else published) == member:
            return None
    key = member_key(my_id)
    return Transaction(what=ChangeKind.PUBLISH, puts={key: member.to_bytes()}, leased=frozenset({key}))


# -- elections -------------------------------------------------------------------------------------------------------


def _why_not(state: State, me: ReplicaState, my_id: int) -> str:
    """Returns why this replica may not be elected; empty if it may."""
    if my_id not in state.sync:
        return f"it is not in the sync set {list(state.sync)}: it may lack acknowledged messages"
    if me.is_learner:
        return "it is a learner"
    if state.paused and state.master != my_id:
        return "elections are paused"
    if not me.is_healthy:
        return "it is not healthy"
    if me.is_lacking and not (state.forced == state.epoch and state.master == my_id):
        return LACKS_MESSAGES
    return "it is stopping" if me.is_stopping else ""


def _who_may_be_whole(view: View, state: State, me: ReplicaState, my_id: int) -> list[int]:
    """Returns the replicas to which one whose log has a gap leaves an election: those of the set that do not run, or
    run and say of no gap. None if this replica has no gap. Once a person has forced a failover to it, the set has no
    other.
    """
    if not me.is_damaged:
        return []
    damaged = {number for number, member in view.members.items() if member.damaged}
    return [each for each in state.sync if each != my_id and each not in damaged]


def _stand(view: View, state: State, me: ReplicaState, my_id: int, now: float, what: ChangeKind, why: str) -> Decision:
    """Stands for election: stops following, lets those with longer logs go first, then attempts `what`."""
    if (problem := _why_not(state, me, my_id)) != "":
        return _wait(view, me, my_id, now, f"there is no master, and this replica cannot be elected: {problem}")
    if whole := _who_may_be_whole(view, state, me, my_id):
        why = f"its log has a gap, and {whole} of the sync set may have every message; start it, or force a failover"
        return _wait(view, me, my_id, now, why)
    if what is ChangeKind.RESTART and me.is_tainted:
        why = "it may have lost messages with the machine's memory, so the other replicas go first"
        return _wait(view, me, my_id, now, why)
    if me.part is not Part.STAND:
        return Decision(part=Part.STAND, why=why)
    left = me.stands_since + _delay(view, state, me, my_id, what) - now
    if left > 0:
        publish = _publish(view, me, my_id, Part.STAND, "", now)
        return Decision(part=Part.STAND, why=why, transaction=publish, again_s=left)
    elected = msgspec.structs.replace(
        state,
        epoch=state.epoch + 1,
        master=my_id,
        sync=(my_id,),
        since=me.wall_ms,
        why=why,
        acks=me.acks,
        successor=0,
    )
    return Decision(part=Part.STAND, why=why, transaction=_begin_epoch(what, view, elected, me, my_id))


def _may_regain(view: View, state: State, me: ReplicaState, my_id: int) -> bool:
    """Whether this process leads the present epoch, and only its leader key is gone or on a lease that ends."""
    if me.part is not Part.LEAD or me.part_epoch != state.epoch or state.master != my_id or view.leader_is_mine:
        return False
    is_own = view.leader is None or (view.leader.id, view.leader.incarnation) == (my_id, me.incarnation)
    return is_own and not state.successor and _why_not(state, me, my_id) == ""


def _may_regain_soon(state: State, me: ReplicaState, now: float) -> bool:
    """Whether the master that this replica follows lives, and may be about to regain its leadership."""
    is_followed = me.part is Part.FOLLOW and me.part_epoch == state.epoch and me.hears_master
    return is_followed and not state.successor and now < me.leaderless_since + REGAIN_S


def _regain(view: View, state: State, me: ReplicaState, my_id: int) -> Transaction:
    return Transaction(
        what=ChangeKind.REGAIN,
        expected={STATE: view.state_version, LEADER: view.leader_version},
        puts={LEADER: _leader(state, me, my_id).to_bytes()},
        leased=frozenset({LEADER}),
    )


def _leader(state: State, me: ReplicaState, my_id: int) -> Leader:
    return Leader(id=my_id, epoch=state.epoch, incarnation=me.incarnation, address=me.address, ha_address=me.ha_address)


def _delay(view: View, state: State, me: ReplicaState, my_id: int, what: ChangeKind) -> float:
    """Returns how long this replica stands before it attempts to be elected."""
    gone = view.leader.id if view.leader is not None and what is ChangeKind.TAKE_OVER else 0
    others = {
        each: member
        for each, member in view.members.items()
        if each in state.sync and each not in (my_id, gone) and not (member.learner or member.lacking or member.why)
    }
    if state.successor == my_id or what is ChangeKind.RESTART:
        return 0.0
    if state.successor in others:
        return SUCCESSOR_S
    mine = (not me.is_damaged, not me.is_tainted, me.epoch, me.end, me.priority, -my_id)
    rank = sum(
        (not each.damaged, not each.tainted, each.epoch, each.end, each.priority, -number) > mine
        for number, each in others.items()
    )
    patience = me.limits.election_wait_s if me.is_tainted else 0.0
    return patience + (RANK_S * (rank + 1) if others else 0.0)


def _begin_epoch(what: ChangeKind, view: View, state: State, me: ReplicaState, my_id: int) -> Transaction:
    """Returns the transaction that makes this replica the master of the epoch in `state`."""
    former = () if view.state is None else view.state.sync
    entry = Mastership(epoch=state.epoch, master=my_id, since=state.since, why=state.why, start=me.end, sync=former)
    forgotten = state.epoch - HISTORY_LIMIT
    return Transaction(
        what=what,
        expected={STATE: view.state_version, LEADER: view.leader_version},
        puts={
            STATE: state.to_bytes(),
            LEADER: _leader(state, me, my_id).to_bytes(),
            history_key(state.epoch): entry.to_bytes(),
        },
        leased=frozenset({LEADER}),
        deletes=frozenset({history_key(forgotten)} if forgotten > 0 else ()),
    )


# -- leading ---------------------------------------------------------------------------------------------------------


def _lead(view: View, state: State, me: ReplicaState, my_id: int, now: float) -> Decision:
    if me.part is not Part.LEAD or me.part_epoch != state.epoch or me.sync_set is None:
        return Decision(part=Part.LEAD, epoch=state.epoch)
    if me.is_stopping or view.request is not None:
        return _hand_over(view, state, me, my_id, now)
    wanted = me.sync_set.next_set(me.followers, me.limits.lag_s)
    if wanted is not None:
        what = ChangeKind.EXPAND if wanted - me.sync_set.members else ChangeKind.SHRINK
        changed = msgspec.structs.replace(state, sync=tuple(sorted(wanted)))
        transaction = Transaction(
            what=what, expected={STATE: view.state_version}, mine=True, puts={STATE: changed.to_bytes()}
        )
        return Decision(part=Part.LEAD, epoch=state.epoch, transaction=transaction, sync_set=wanted)
    publish = _publish(view, me, my_id, Part.LEAD, "", now)
    again_s = RANK_S if me.sync_set.joining else me.limits.publish_s
    return Decision(part=Part.LEAD, epoch=state.epoch, transaction=publish, again_s=again_s)


def _hand_over(view: View, state: State, me: ReplicaState, my_id: int, now: float) -> Decision:
    """Hands over to a member of the set: refuses writes, waits until it has everything, and gives up the leadership.

    Only a member that can be elected at once: one that has no key in the engine has no lease, for example because its
    process was suspended, and one that says that its log is lost, or has a gap, would not be elected.
    """
    asked = 0 if view.request is None else view.request.to
    fit = {
        each
        for each, member in view.members.items()
        if not (member.learner or member.lacking or member.damaged or member.why)
    }
    others = {each: me.followers[each] for each in state.sync if each != my_id and each in me.followers}
    there = {each: follower for each, follower in others.items() if follower.is_connected and each in fit}
    target = asked if asked in there else 0
    if not asked and there:
        target = max(there, key=lambda each: (there[each].offset, _priority(view, each), -each))
    is_late = now - me.closed_since > me.limits.hand_over_s
    if not target or is_late or state.paused:
        if me.is_stopping:
            why = "the master stops, and no other replica has every message"
            return Decision(part=Part.LEAD, epoch=state.epoch, closes_writes=True, why=why, transaction=_resign(view))
        answer = Transaction(
            what=ChangeKind.ANSWER, expected={REQUEST: view.request_version}, deletes=frozenset({REQUEST})
        )
        return Decision(part=Part.LEAD, epoch=state.epoch, transaction=answer)
    if me.closed_since > now or there[target].offset < me.end:
        return Decision(part=Part.LEAD, epoch=state.epoch, closes_writes=True, again_s=RANK_S)
    handed = msgspec.structs.replace(state, successor=target)
    transaction = Transaction(
        what=ChangeKind.HAND_OVER,
        expected={STATE: view.state_version},
        mine=True,
        puts={STATE: handed.to_bytes()},
        deletes=frozenset({LEADER} if view.request is None else {LEADER, REQUEST}),
    )
    return Decision(part=Part.LEAD, epoch=state.epoch, closes_writes=True, transaction=transaction)


def _priority(view: View, replica_id: int) -> int:
    member = view.members.get(replica_id)
    return 0 if member is None else member.priority


def _resign(view: View) -> Transaction:
    return Transaction(
        what=ChangeKind.RESIGN,
        expected={LEADER: view.leader_version},
        mine=True,
        deletes=frozenset({LEADER}),
    )


def may_write(now: float, deadline: float, margin_s: float, failsafe: Failsafe, silent: frozenset[int] | None) -> bool:
    """Whether a master may take writes. `deadline` is when its lease may end.

    `silent` are the required replicas that it has not heard in its epoch for a while; None if it requires no other. A
    master that hears all of them may go on without the engine: the next master is one of them, and refuses its
    epoch from then on. A lone master stops at its deadline, so that a person can force another one safely after that.
    """
    if now < deadline - margin_s:
        return True
    if failsafe is Failsafe.OFF:
        return False
    if silent is None:
        return failsafe is Failsafe.ALONE
    return not silent
