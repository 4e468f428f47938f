"""A replica whose log has a gap leaves an election to those that may be whole, until a person decides otherwise."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.broker.failover.consensus_engine import STATE, ChangeKind, Leader, Member, State, View
from penstock.broker.failover.election_rules import Decision, Part, ReplicaState, decide
from penstock.broker.failover.operator_orders import force

HELD = State(epoch=4, master=1, sync=(1, 2, 3), ids={"a": 1, "b": 2, "c": 3}, next_id=4)
ME = ReplicaState(
    name="b", incarnation="b.1", place="b", epoch=4, end=100, was_member=True, is_damaged=True, part=Part.STAND
)
OTHER = Member(replica="c", incarnation="c.1", place="c", role=Part.STAND, epoch=4, end=90)


def decided(me: ReplicaState, state: State, **members: Member) -> Decision:
    """What a replica decides when it has stood for long, and there is no leader. `members`: those that run, as r1…"""
    running = {int(name[1:]): member for name, member in members.items()}
    return decide(View(state=state, members=running, state_version=7), replace(me, stands_since=0.0), 1000.0)


def test_a_replica_with_a_gap_is_not_elected_while_another_of_the_set_may_be_whole() -> None:
    damaged = msgspec.structs.replace(OTHER, damaged=True)
    for members in ({}, {"r3": OTHER}, {"r3": damaged}, {"r1": damaged}):
        decision = decided(ME, HELD, **members)
        assert decision.part is Part.WAIT, f"{members}: 1 or 3 may have every message"
        assert "its log has a gap, and [" in decision.why
        assert "force a failover" in decision.why
        assert decision.transaction is not None
        assert decision.transaction.what is ChangeKind.PUBLISH
        assert b'"damaged":true' in decision.transaction.puts["members/2"], "the others can see it"
    assert decided(replace(ME, is_damaged=False), HELD).transaction.what is ChangeKind.ELECT  # type: ignore[union-attr]


def test_if_all_of_the_set_have_gaps_the_longest_log_is_elected() -> None:
    damaged = msgspec.structs.replace(OTHER, damaged=True)
    decision = decided(ME, HELD, r1=damaged, r3=damaged)
    assert decision.part is Part.STAND
    assert decision.transaction is not None
    assert decision.transaction.what is ChangeKind.ELECT


def test_a_replica_with_a_gap_that_is_alone_in_its_set_is_elected() -> None:
    decision = decided(replace(ME, name="a"), msgspec.structs.replace(HELD, sync=(1,)))
    assert decision.transaction is not None
    assert decision.transaction.what is ChangeKind.ELECT


def test_a_forced_failover_is_the_way_out_for_a_replica_with_a_gap() -> None:
    view = View(state=HELD, state_version=7)
    forced = msgspec.json.decode(force(view, 2, 0).puts[STATE], type=State)
    decision = decided(ME, forced)
    assert decision.part is Part.STAND
    assert decision.transaction is not None
    assert decision.transaction.what is ChangeKind.ELECT


def test_a_replica_with_a_gap_goes_on_following_although_the_masters_process_seems_dead() -> None:
    """A whole one of the set takes over; and if the master lives after all, it is followed."""
    leader = Leader(id=1, epoch=4, incarnation="a.1")
    view = View(state=HELD, leader=leader, leader_version=5, state_version=7)
    me = replace(ME, part=Part.FOLLOW, part_epoch=4, dead_leader=5)
    assert decide(view, me, 1000.0).part is Part.FOLLOW
    assert decide(view, replace(me, is_damaged=False), 1000.0).part is Part.STAND


def test_a_master_that_comes_back_with_a_gap_lets_its_slaves_go_first() -> None:
    leader = Leader(id=1, epoch=4, incarnation="a.0")
    view = View(state=HELD, leader=leader, leader_version=5, state_version=7)
    me = replace(ME, name="a", place="a", stands_since=0.0)
    assert decide(view, me, 1000.0).part is Part.WAIT
    restarted = decide(view, replace(me, is_damaged=False), 1000.0).transaction
    assert restarted is not None
    assert restarted.what is ChangeKind.RESTART
