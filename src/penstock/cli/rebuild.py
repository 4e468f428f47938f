"""`penstock pipeline rebuild`: queues and index from the log, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penstock.cli import exits
from penstock.cli.consent import Yes
from penstock.cli.on_spark import Confs, Master, Stores, check, place, session
from penstock.cli.options import AsJson, Config, Pairs, number, option
from penstock.cli.output import in_units, say, write, write_json
from penstock.cli.store_repair import DryRun, show_rebuilt, show_start
from penstock.errors import BadSettings

if TYPE_CHECKING:
    from penstock.store.rebuilding import RangesReport

_SMALL: Final = 1 << 30


def rebuild(
    stores: Stores = None,
    topic: Annotated[str | None, option("--topic", "T", "Only the queues of this topic.")] = None,
    queue: Annotated[int | None, number("--queue", "N", "Only queues with this id.", low=0)] = None,
    into: Annotated[Path | None, option("--into", "DIR", "Build into another folder; the store is only read.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Build queues and index anew from the log, by ranges of it.

    All of them, or the queues of one topic, or one queue; then the index is left alone. They are built beside the old
    ones and take their place when they are complete and checked; the old ones lie under penstock/quarantine/ then.
    Killed before that, the old ones are in force, and the same command goes on with what is not done yet. The store
    must not be open, unless --into names another folder; all hosts of a cluster must see it under one path. Exit status
    0: done; 1: there is no such queue; 2: it could not be run.

    Examples:

    \b
      penstock pipeline rebuild --store data/store
      penstock pipeline rebuild --store data/store --topic orders --queue 3
      penstock pipeline rebuild --store data/store --into /spare/derived
    """
    from penstock.pipeline.jobs.rebuild import rebuild as build
    from penstock.store.rebuilding.source import check_unused

    where = place(stores, config=config, pairs=pairs)
    check(where, only_stores=True)
    if into is not None and into.exists() and not into.is_dir():
        raise BadSettings(f"--into {into}: that is a file, and a folder is needed")
    for folder in () if into is not None else where.folders().values():
        check_unused(folder.layout)  # Spark need not be started to be told so
    with session("rebuild", master, conf, light_java=True) as spark:
        reports = build(
            spark,
            where,
            topic=topic,
            queue_id=queue,
            into=into,
            dry_run=dry_run,
            may_exceed=lambda needed, held, limit: yes,
        )
    if as_json:
        write_json([msgspec.to_builtins(report) for report in reports])
    else:
        for report in reports:
            _show(report)
    for report in reports:
        if not report.rebuilt:
            say(f"nothing was rebuilt: {report.path} has no such queue, neither in its log nor among its queues.")
    if not all(report.rebuilt for report in reports):
        raise typer.Exit(exits.PROBLEM)
    if not as_json and not into and sum(report.log_end - report.log_begin for report in reports) < _SMALL:
        say(f"for stores of this size, `penstock store rebuild {reports[0].path}` does the same at once.")


def _show(report: RangesReport) -> None:
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be built" if report.dry_run else "built"
    into = f" into {report.into}" if report.into else ""
    write(
        f"{report.path}: {len(report.rebuilt)} {done}{into} from {in_units(report.log_end - report.log_begin)} of log, "
        f"{report.records} records in {report.ranges} ranges.\n"
    )
    if report.resumed:
        write(f"{report.resumed} of the ranges had been built by an earlier run.\n")
    if report.damaged:
        say(f"{report.damaged} damaged ranges of the log were passed over; `penstock store repair` covers them")
    if report.in_log_order:
        names = ", ".join(report.in_log_order)
        say(f"built by one process, because their offsets go back somewhere in the log: {names}")
