"""A replica whose log is lost says so to the others: none hands over to it, and none waits for it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from penstock.broker.failover.consensus_engine import ChangeKind, Leader, Member, State, SwitchoverOrder, View
from penstock.broker.failover.election_rules import LACKS_MESSAGES, RANK_S, Decision, Part, ReplicaState, decide
from penstock.broker.failover.sync_set import FollowerState, SyncSet

HELD = State(epoch=4, master=1, sync=(1, 2, 3), ids={"a": 1, "b": 2, "c": 3}, next_id=4)
WHOLE = Member(replica="c", incarnation="c.1", place="c", role=Part.FOLLOW, epoch=4, end=100)
MASTER = ReplicaState(
    name="a",
    incarnation="a.1",
    place="a",
    epoch=4,
    end=100,
    was_member=True,
    part=Part.LEAD,
    part_epoch=4,
    closed_since=9.0,
    sync_set=SyncSet(me=1, epoch=4, members=frozenset(HELD.sync)),
    followers={2: FollowerState(offset=100), 3: FollowerState(offset=100)},
)


def successor(asked: int | None, *, has_lease: bool = True, **said: bool | str) -> int:
    """To whom a master hands over at once; 0: to none. `asked`: by an order, to this one.

    Replica 2 says `said`; without a lease it says nothing, although the master sends it the log.
    """
    order = None if asked is None else SwitchoverOrder(id="o", to=asked)
    view = View(
        state=HELD,
        state_version=7,
        leader=Leader(id=1, epoch=4, incarnation="a.1"),
        leader_version=6,
        leader_is_mine=True,
        members={3: WHOLE} | ({2: msgspec.structs.replace(WHOLE, replica="b", **said)} if has_lease else {}),
        request=order,
        request_version=5,
    )
    transaction = decide(view, replace(MASTER, is_stopping=order is None), 10.0).transaction
    assert transaction is not None
    if transaction.what is ChangeKind.ANSWER:
        return 0
    assert transaction.what is ChangeKind.HAND_OVER
    return msgspec.json.decode(transaction.puts["state"], type=State).successor


@pytest.mark.parametrize("said", ["lacking", "damaged"])
def test_a_master_does_not_hand_over_to_a_replica_that_would_not_be_elected(said: str) -> None:
    for asked in (None, 0):
        assert successor(asked) == 2
        assert successor(asked, **{said: True}) == 3
    assert successor(2) == 2
    assert successor(2, **{said: True}) == 0, "it refuses, and goes on"


def test_a_master_does_not_hand_over_to_a_replica_that_cannot_be_elected_yet() -> None:
    """Its process was suspended: its lease has ended, and it has not noticed. The old master would be elected again."""
    assert successor(0, has_lease=False) == 3
    assert successor(2, has_lease=False) == 0
    assert successor(0, why="it is not healthy") == 3


def standing(me: ReplicaState, other: Member) -> Decision:
    view = View(state=msgspec.structs.replace(HELD, sync=(2, 3)), state_version=7, members={3: other})
    return decide(view, replace(me, name="b", place="b", part=Part.STAND, stands_since=10.0), 10.0)


def test_a_candidate_does_not_wait_for_a_replica_whose_log_is_lost() -> None:
    longer = msgspec.structs.replace(WHOLE, end=200)
    assert standing(MASTER, longer).again_s == pytest.approx(2 * RANK_S)
    elected = standing(MASTER, msgspec.structs.replace(longer, lacking=True)).transaction
    assert elected is not None
    assert elected.what is ChangeKind.ELECT


def test_a_replica_whose_log_is_lost_says_so_to_the_others() -> None:
    decision = standing(replace(MASTER, is_lacking=True), WHOLE)
    assert LACKS_MESSAGES in decision.why
    assert decision.transaction is not None
    assert decision.transaction.what is ChangeKind.PUBLISH
    assert msgspec.json.decode(decision.transaction.puts["members/2"], type=Member).lacking


def test_a_member_of_an_older_version_lacks_nothing() -> None:
    said = msgspec.json.decode(WHOLE.to_bytes())
    del said["lacking"]
    assert not msgspec.convert(said, Member).lacking
