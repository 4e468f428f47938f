"""Why a replica could not become master, as others can tell it."""

from __future__ import annotations

import msgspec
import pytest

from penstock.broker.failover.consensus_engine import Leader, Member, State, View
from penstock.broker.failover.election_rules import Part
from penstock.broker.failover.status import replicas_of, why_not_electable

STATE = State(epoch=4, master=1, sync=(1, 2), ids={"a": 1, "b": 2, "c": 3}, next_id=4)
MEMBER = Member(replica="b", incarnation="b", address="127.0.0.1:2", role=Part.FOLLOW, epoch=4, end=100)


@pytest.mark.parametrize(
    ("replica_id", "member", "paused", "why"),
    [
        (2, MEMBER, False, ""),
        (1, MEMBER, True, ""),
        (2, MEMBER, True, "elections are paused"),
        (3, MEMBER, False, "it is not in the sync set [1, 2]: it may lack acknowledged messages"),
        (2, None, False, "it is not running"),
        (2, msgspec.structs.replace(MEMBER, learner=True), False, "it is a learner"),
        (2, msgspec.structs.replace(MEMBER, why="it waits"), False, "it waits"),
        (
            2,
            msgspec.structs.replace(MEMBER, damaged=True),
            False,
            "its log has a gap, so others of the sync set must go first",
        ),
        (
            2,
            msgspec.structs.replace(MEMBER, lacking=True),
            False,
            "its log lacks messages that it had acknowledged; is its disk mounted?",
        ),
        (
            2,
            msgspec.structs.replace(MEMBER, tainted=True),
            False,
            "it may have lost messages with its machine's memory, so others go first",
        ),
    ],
)
def test_a_replica_that_cannot_be_elected_has_a_reason(
    replica_id: int, member: Member | None, paused: bool, why: str
) -> None:
    state = msgspec.structs.replace(STATE, paused=paused)
    assert why_not_electable(state, replica_id, member) == why


def test_all_replicas_are_listed_also_those_that_do_not_run() -> None:
    leads = msgspec.structs.replace(MEMBER, replica="a", role=Part.LEAD)
    strange = msgspec.structs.replace(MEMBER, role="dances")
    view = View(state=STATE, leader=Leader(id=1, epoch=4, incarnation="a"), members={1: leads, 2: strange})
    found = replicas_of(view)
    assert [(each.id, each.role, each.in_sync) for each in found] == [
        (1, "master", True),
        (2, "dances", True),
        (3, "", False),
    ]
    assert replicas_of(View()) == []
