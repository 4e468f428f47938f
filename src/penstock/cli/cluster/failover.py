"""Verbs of `penstock cluster` for brokers that elect their master: they read and change what the engine holds.

They need the brokers' settings, from broker.conf as `penstock serve` finds it, or `--config`. Each change is one
transaction, made from what was read; if something else was changed meanwhile, nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.confirmation import Yes, confirm, describe_change
from penstock.cli.options import AsJson, Config, DryRun, Pairs
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.errors import BadSettings, NoAnswer, Refused
from penstock.human_units import format_time

if TYPE_CHECKING:
    from penstock.broker.failover.consensus_engine import Session, Transaction, View

_WAIT_S: Final = 30.0
_LOOK_S: Final = 0.05
ReplicaId = Annotated[int, typer.Argument(metavar="ID", help="The replica's id, as `members` shows it.", min=1)]
To = Annotated[int, typer.Option("--to", metavar="ID", help="The next master; otherwise the best one.", min=0)]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Yes, acknowledged messages that this replica lacks may be lost.")
]


@contextlib.contextmanager
def _engine(config: Any, pairs: list[str] | None) -> Iterator[Session]:
    """Opens a session without a lease. Raises BadSettings or EngineAway."""
    from penstock.broker.failover.failover_settings import engine_of
    from penstock.broker.settings import BrokerSettings
    from penstock.cli.configuration import find_config
    from penstock.store import Settings

    settings = Settings.load(find_config(config), pairs or [])
    broker = BrokerSettings.of(settings)
    if broker.failover == "off":
        raise BadSettings("failover is off in these settings; name the brokers' broker.conf with --config")
    session = engine_of(settings, broker)(False)
    try:
        yield session
    finally:
        session.close()


def _commit(session: Session, transaction: Transaction) -> View:
    from penstock.broker.failover.consensus_engine import Committed, Unknown

    outcome = session.commit(transaction)
    if isinstance(outcome, Committed):
        return outcome.view
    if isinstance(outcome, Unknown):
        raise NoAnswer(f"the engine did not answer, so it may have been done or not: {outcome.why}; look at `members`")
    raise Refused("something else was changed at the same time, and nothing was done; try again", code=0)


def members(config: Config = None, pairs: Pairs = None, as_json: AsJson = False) -> None:
    """List the replicas of a broker name: who is master, who may become it, and why not.

    Examples:

    \b
      penstock cluster members --config broker.conf
    """
    with _engine(config, pairs) as session:
        view = session.view()
    rows = _rows(view)
    if as_json:
        state = view.state
        about: dict[str, Any] = {"epoch": 0, "master": None, "sync": [], "paused": False}
        if state is not None:
            leads = view.leader.id if view.leader is not None else None
            about = {"epoch": state.epoch, "master": leads, "sync": list(state.sync), "paused": state.paused}
        write_json({**about, "replicas": rows})
        return
    if view.state is None:
        write("no broker has founded a set yet\n")
        return
    shown = table(
        "", "id", "address", "role", "epoch", "in sync", "log end", "why not", right=("id", "epoch", "log end")
    )
    for row in rows:
        in_sync = "yes" if row["in_sync"] else "no"
        add_row(shown, row["id"], row["address"], row["role"], row["epoch"], in_sync, row["end"], row["why"])
    show(shown)
    if view.state.paused:
        write_note("elections are paused.")
    if view.leader is None:
        write_note("there is no master.")


def _rows(view: View) -> list[dict[str, Any]]:
    from penstock.broker.failover.status import why_not_electable

    if view.state is None:
        return []
    rows: list[dict[str, Any]] = []
    for replica_id in sorted(view.state.ids.values()):
        member = view.members.get(replica_id)
        row: dict[str, Any] = {"id": replica_id, "in_sync": replica_id in view.state.sync}
        if member is None:
            rows.append({**row, "address": "", "role": "is not running", "epoch": 0, "end": 0, "why": ""})
            continue
        known = {"address": member.address, "role": member.role, "epoch": member.epoch, "end": member.end}
        rows.append({**row, **known, "why": why_not_electable(view.state, replica_id, member)})
    return rows


def history(config: Config = None, pairs: Pairs = None, as_json: AsJson = False) -> None:
    """List the last masters, newest first: when, who and why.

    Examples:

    \b
      penstock cluster history --config broker.conf
    """
    with _engine(config, pairs) as session:
        entries = session.history(100)
    if as_json:
        write_json(
            [
                {
                    "epoch": each.epoch,
                    "master": each.master,
                    "since": each.since,
                    "why": each.why,
                    "forced": each.forced,
                }
                for each in entries
            ]
        )
        return
    shown = table("", "epoch", "master", "since", "why", right=("epoch", "master"))
    for each in entries:
        add_row(shown, each.epoch, each.master, format_time(each.since), each.why)
    show(shown)


def switchover(
    to: To = 0,
    config: Config = None,
    pairs: Pairs = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Have the master hand over to another replica that has every message. Returns when that one is master.

    Examples:

    \b
      penstock cluster switchover --config broker.conf
      penstock cluster switchover --to 2 --config broker.conf
    """
    from penstock.broker.failover.operator_orders import switch_over

    with _engine(config, pairs) as session:
        before = session.view()
        order = switch_over(before, to, secrets.token_hex(8), time.time_ns() // 1_000_000)
        assert before.state is not None
        if dry_run:
            _write_dry(f"replica {before.state.master} would hand over to {to or 'the best replica'}", as_json)
            return
        began = time.monotonic()
        _commit(session, order)
        while True:
            view = session.view()
            if view.state is not None and view.state.epoch > before.state.epoch and view.leader is not None:
                break
            if view.request is None and view.leader is not None and time.monotonic() - began > 1.0:
                raise Refused("the master did not hand over: no other replica had every message in time", code=0)
            if time.monotonic() - began > _WAIT_S:
                raise NoAnswer(f"no other replica became master within {_WAIT_S:g} s; look at `members`")
            time.sleep(_LOOK_S)
    took = time.monotonic() - began
    if as_json:
        write_json({"master": view.state.master, "epoch": view.state.epoch, "seconds": round(took, 3)})
    else:
        write(f"replica {view.state.master} is master in epoch {view.state.epoch}, after {took:.2f} s\n")


def failover(
    to: Annotated[int, typer.Option("--to", metavar="ID", help="The next master.", min=1)],
    accept_loss: AcceptLoss = False,
    config: Config = None,
    pairs: Pairs = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a replica master that may lack acknowledged messages, because all that have them are lost.

    First make sure that the old master is down: one that cannot reach the engine may go on until its lease ends.

    Examples:

    \b
      penstock cluster failover --to 3 --accept-loss --config broker.conf
    """
    from penstock.broker.failover.operator_orders import force

    with _engine(config, pairs) as session:
        view = session.view()
        order = force(view, to, time.time_ns() // 1_000_000)
        assert view.state is not None
        lacks = "" if to in view.state.sync else f", and lacks what only {list(view.state.sync)} have"
        what = f"replica {to} becomes master of epoch {view.state.epoch + 1}{lacks}"
        if dry_run:
            _write_dry(what, as_json)
            return
        if not accept_loss:
            raise BadSettings(f"{what}; repeat it with --accept-loss")
        describe_change(what, dry_run=False)
        asyncio.run(confirm("Accept the loss?", yes))
        done = _commit(session, order)
    _write_done(done, f"replica {to} may elect itself now", as_json)


def pause(config: Config = None, pairs: Pairs = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Switch elections off, for maintenance. The master goes on, and is not replaced.

    Examples:

    \b
      penstock cluster pause --config broker.conf
    """
    _set_pause(config, pairs, paused=True, dry_run=dry_run, as_json=as_json)


def resume(config: Config = None, pairs: Pairs = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Switch elections on again.

    Examples:

    \b
      penstock cluster resume --config broker.conf
    """
    _set_pause(config, pairs, paused=False, dry_run=dry_run, as_json=as_json)


def _set_pause(config: Any, pairs: list[str] | None, *, paused: bool, dry_run: bool, as_json: bool) -> None:
    from penstock.broker.failover import operator_orders

    with _engine(config, pairs) as session:
        order = operator_orders.pause(session.view(), paused=paused)
        what = f"elections {'paused' if paused else 'on again'}"
        if dry_run:
            _write_dry(what, as_json)
            return
        _write_done(_commit(session, order), what, as_json)


def forget(
    replica_id: ReplicaId,
    config: Config = None,
    pairs: Pairs = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove a replica that will not come back. It must not run, nor be in the sync set.

    Examples:

    \b
      penstock cluster forget 3 --config broker.conf
    """
    from penstock.broker.failover import operator_orders

    with _engine(config, pairs) as session:
        order = operator_orders.forget(session.view(), replica_id)
        if dry_run:
            _write_dry(f"replica {replica_id} would be removed", as_json)
            return
        _write_done(_commit(session, order), f"replica {replica_id} is removed", as_json)


def _write_dry(what: str, as_json: bool) -> None:
    if as_json:
        write_json({"would": what})
    else:
        describe_change(what, dry_run=True)


def _write_done(view: View, what: str, as_json: bool) -> None:
    if as_json:
        state = view.state
        write_json({"done": what, "epoch": 0 if state is None else state.epoch})
    else:
        write(f"{what}\n")


VERBS: Final[dict[str, Callable[..., None]]] = {
    "members": members,
    "switchover": switchover,
    "failover": failover,
    "pause": pause,
    "resume": resume,
    "history": history,
    "forget": forget,
}
"""By name."""
