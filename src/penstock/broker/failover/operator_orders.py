"""What an operator changes in the engine: each order is one transaction, made from a view. Pure.

An order that contradicts the view raises BadOrder and changes nothing. `force` is the only one that can lose
acknowledged messages, and says so to the person who confirms it.
"""

from __future__ import annotations

import msgspec

from penstock.broker.failover.consensus_engine import (
    LEADER,
    REQUEST,
    STATE,
    ChangeKind,
    Mastership,
    State,
    SwitchoverOrder,
    Transaction,
    View,
    history_key,
    member_key,
)
from penstock.errors import PenstockError


class BadOrder(PenstockError):
    """An order does not fit what the engine holds."""


def switch_over(view: View, to: int, name: str, wall_ms: int) -> Transaction:
    """Asks the master to hand over to the replica `to`; 0: to the best one. `name` is the order's own id."""
    state = _state(view)
    if view.leader is None:
        raise BadOrder("there is no master that could hand over; wait for an election, or force one")
    if state.paused:
        raise BadOrder("elections are paused; resume them first")
    if view.request is not None:
        raise BadOrder("another switchover is under way; wait for its end")
    others = [each for each in state.sync if each != state.master]
    if to == state.master:
        raise BadOrder(f"replica {to} is the master already")
    if (to and to not in others) or not others:
        which = f"replica {to} is" if to else "no other replica is"
        raise BadOrder(f"{which} in the sync set {list(state.sync)}, so it may lack acknowledged messages")
    request = SwitchoverOrder(id=name, to=to, since=wall_ms)
    return Transaction(
        what=ChangeKind.ORDER, expected={STATE: view.state_version, REQUEST: 0}, puts={REQUEST: request.to_bytes()}
    )


def force(view: View, to: int, wall_ms: int) -> Transaction:
    """Makes the replica `to` the only one that can be elected, whatever it lacks."""
    state = _state(view)
    if to not in state.ids.values():
        raise BadOrder(f"there is no replica {to}; the set has {sorted(state.ids.values())}")
    epoch = state.epoch + 1
    why = f"a person chose replica {to} and accepted loss"
    forced = msgspec.structs.replace(
        state, epoch=epoch, master=to, sync=(to,), since=wall_ms, why=why, forced=epoch, successor=to, paused=False
    )
    entry = Mastership(epoch=epoch, master=to, since=wall_ms, why=why, sync=state.sync, forced=True)
    return Transaction(
        what=ChangeKind.FORCE,
        expected={STATE: view.state_version},
        puts={STATE: forced.to_bytes(), history_key(epoch): entry.to_bytes()},
        deletes=frozenset({LEADER, REQUEST}),
    )


def pause(view: View, *, paused: bool) -> Transaction:
    """Switches elections off, or on again."""
    state = _state(view)
    if state.paused == paused:
        raise BadOrder(f"elections are {'paused' if paused else 'on'} already")
    changed = msgspec.structs.replace(state, paused=paused)
    return Transaction(what=ChangeKind.PAUSE, expected={STATE: view.state_version}, puts={STATE: changed.to_bytes()})


def forget(view: View, replica_id: int) -> Transaction:
    """Removes a replica that will not come back. Its id is not given again."""
    state = _state(view)
    if replica_id not in state.ids.values():
        raise BadOrder(f"there is no replica {replica_id}; the set has {sorted(state.ids.values())}")
    if replica_id in state.sync:
        raise BadOrder(f"replica {replica_id} is in the sync set {list(state.sync)}; it has acknowledged messages")
    if replica_id in view.members:
        raise BadOrder(f"replica {replica_id} is running; stop it first")
    ids = {name: each for name, each in state.ids.items() if each != replica_id}
    changed = msgspec.structs.replace(state, ids=ids)
    return Transaction(
        what=ChangeKind.FORGET,
        expected={STATE: view.state_version, member_key(replica_id): 0},
        puts={STATE: changed.to_bytes()},
    )


def _state(view: View) -> State:
    if view.state is None:
        raise BadOrder("no broker has founded a set under this prefix; check dcsPrefix, brokerClusterName, brokerName")
    return view.state
