"""The verb `penstock cluster drill`: shows what a failover looks like to a client, on a cluster made for it.

It ends everything that it started, also on Ctrl-C, SIGTERM and SIGHUP.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Pairs, number, option
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.demo.drill import DrillResult

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def drill(
    rounds: Annotated[
        int, number("--rounds", "N", "Rounds; each has one strike of each kind.", low=1, default=True)
    ] = 3,
    kill: Annotated[bool, typer.Option("--kill", help="Kill the master (SIGKILL); the default kind.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the master (SIGSTOP) until another one leads.")] = False,
    switchover: Annotated[bool, typer.Option("--switchover", help="Have the master hand over.")] = False,
    dcs: Annotated[
        str | None, option("--dcs", "HOST:PORT;…", "Use this running etcd; default: start the program `etcd`.")
    ] = None,
    namesrv: Annotated[
        str | None, option("--namesrv", "HOST:PORT;…", "Drill this existing test cluster; switchovers only.")
    ] = None,
    account: Annotated[
        Path | None, option("--account", "FILE", "With --namesrv: accessKey and secretKey, if it has aclEnable.")
    ] = None,
    trust: Annotated[
        Path | None, option("--trust", "FILE", "With --namesrv: use TLS, and trust these certificates (PEM).")
    ] = None,
    config: Config = None,
    pairs: Pairs = None,
    html: Annotated[Path | None, option("--html", "FILE", "Write a page with a chart to this file.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --namesrv: yes, change its master.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kill a master under load, and look for every acknowledged message.

    Starts three brokers, a name server and etcd on this machine, at free ports and in a temporary folder; sends a
    message every 5 ms; strikes the master; prints for each strike the outage as the client saw it, and what was
    acknowledged, lost and doubled; ends everything. --set gives settings to these brokers. With --namesrv and the
    brokers' settings it only switches over, on a cluster that runs already. Exit status 0: every acknowledged message
    is there once; 1: not so; 2: could not run.

    Examples:

    \b
      penstock cluster drill
      penstock cluster drill --rounds 1 --kill --pause --switchover --html drill.html
      penstock cluster drill --dcs 127.0.0.1:2379 --set failoverTtlMillis=10000
      penstock cluster drill --namesrv 10.0.0.5:9876 --config broker.conf --switchover --yes
    """
    from penstock.cli.cluster_connection import client_config
    from penstock.cli.configuration import find_config
    from penstock.demo.drill import Drill, page
    from penstock.demo.drill_clusters import BROKERS, ExistingCluster, MadeCluster, StrikeKind
    from penstock.demo.run import log_clients_to
    from penstock.store import Settings

    chosen = {StrikeKind.KILL: kill, StrikeKind.PAUSE: pause, StrikeKind.SWITCHOVER: switchover}
    kinds = [kind for kind, is_chosen in chosen.items() if is_chosen] or [StrikeKind.KILL]
    if namesrv is not None:
        if kinds != [StrikeKind.SWITCHOVER]:
            raise BadSettings(
                "the drill kills and pauses only brokers that it started itself; give --switchover alone with --namesrv"
            )
        if dcs is not None:
            raise BadSettings("--dcs is for a cluster that the drill makes; with --namesrv name the brokers' --config")
        if not yes:
            raise BadSettings(
                f"the drill sends test messages to the brokers of {namesrv} and changes their master {rounds} times; "
                "repeat it with --yes"
            )
    elif config is not None or account is not None or trust is not None:
        raise BadSettings("--config, --account and --trust are for an existing cluster; name it with --namesrv")
    if html is not None and not html.absolute().parent.is_dir():
        raise BadSettings("the folder of the page does not exist; create it, or name another file", path=html)
    with _signals_as_interrupt(), ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-drill-")))
        opened.enter_context(log_clients_to(folder / "clients.log"))
        if namesrv is None:
            write_note("starting three brokers and a name server.")
            made = opened.enter_context(MadeCluster(folder, dcs, pairs or ()))
            result = Drill(made, write_note).run(kinds * rounds, replicas=BROKERS)
        else:
            settings = Settings.load(find_config(config), pairs or [])
            given = opened.enter_context(ExistingCluster(client_config(namesrv, account, trust), settings))
            result = Drill(given, write_note).run(kinds * rounds)
    if html is not None:
        html.write_text(page(result), encoding="utf-8")
    if as_json:
        write_json(_document(result, html))
    else:
        _print_result(result, html)
    if not result.ok:
        raise typer.Exit(exit_codes.PROBLEM)


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """The first signal raises KeyboardInterrupt; the others are ignored, so that everything is ended."""

    def interrupt(*_: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    former = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


def _document(result: DrillResult, html: Path | None) -> dict[str, Any]:
    return {
        "ok": result.ok,
        "seconds": round(result.seconds, 3),
        "acknowledged": len(result.acked_at),
        "lost": len(result.lost),
        "doubled": len(result.doubled),
        "not_acknowledged": result.unanswered,
        "stored_without_acknowledgement": result.stored_unacknowledged,
        "html": None if html is None else str(html.absolute()),
        "strikes": [
            {
                "kind": each.kind.value,
                "at_seconds": round(each.at_s, 3),
                "struck": {"id": each.struck, "address": each.struck_address},
                "master": {"id": each.master, "address": each.master_address},
                "epoch": each.epoch,
                "outage_seconds": round(each.outage_s, 3),
                "acknowledged": each.acknowledged,
                "lost": each.lost,
                "doubled": each.doubled,
            }
            for each in result.strikes
        ],
    }


def _print_result(result: DrillResult, html: Path | None) -> None:
    columns = ("strike", "replica", "outage", "new master", "epoch", "acknowledged", "lost", "doubled")
    numbers = ("replica", "outage", "new master", "epoch", "acknowledged", "lost", "doubled")
    shown = table("", *columns, right=numbers)
    for each in result.strikes:
        counts = (each.acknowledged, each.lost, each.doubled)
        add_row(shown, each.kind.value, each.struck, f"{each.outage_s:.2f} s", each.master, each.epoch, *counts)
    show(shown)
    write(f"{result.verdict}; {result.others}\n")
    if html is not None:
        write(f"wrote the chart to {html}\n")
