"""What a replica reports about elections: to its health, its metrics, and administrators (request 907). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.broker.failover.consensus_engine import Mastership, Member, State, View
from penstock.broker.failover.election_rules import LACKS_MESSAGES, Part
from penstock.protocol.bodies.admin import HaMastership, HaReplica

SHOWN_MASTERS: Final = 20
"""Entries of the history that are reported."""
_ROLES: Final = {Part.LEAD: "master", Part.FOLLOW: "slave", Part.STAND: "candidate", Part.WAIT: "waiting"}


def role_of(part: Part) -> str:
    return _ROLES[part]


def why_not_electable(state: State, replica_id: int, member: Member | None) -> str:
    """Returns why a replica could not become master now, as far as others know it; empty if it could, or is it."""
    if member is None:
        return "it is not running"
    if member.why:
        return member.why
    if replica_id not in state.sync:
        return f"it is not in the sync set {list(state.sync)}: it may lack acknowledged messages"
    if member.learner:
        return "it is a learner"
    if state.paused and state.master != replica_id:
        return "elections are paused"
    if member.lacking:
        return LACKS_MESSAGES
    if member.damaged:
        return "its log has a gap, so others of the sync set must go first"
    return "it may have lost messages with its machine's memory, so others go first" if member.tainted else ""


def replicas_of(view: View) -> list[HaReplica]:
    """Returns all replicas of a view by id, also those that do not run."""
    state = view.state
    if state is None:
        return []
    return [_replica(state, each, view.members.get(each)) for each in sorted(state.ids.values())]


def _replica(state: State, replica_id: int, member: Member | None) -> HaReplica:
    known = HaReplica(id=replica_id, in_sync=replica_id in state.sync, why=why_not_electable(state, replica_id, member))
    if member is not None:
        known.address, known.epoch, known.end = member.address, member.epoch, member.end
        known.role = _ROLES[Part(member.role)] if member.role in set(Part) else member.role
    return known


def masterships_of(history: Iterable[Mastership]) -> list[HaMastership]:
    return [
        HaMastership(epoch=each.epoch, master=each.master, since=each.since, why=each.why, forced=each.forced)
        for each in history
    ]
