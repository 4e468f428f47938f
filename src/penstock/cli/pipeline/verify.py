"""`penstock pipeline verify`: the audit of many stores at once, on Spark.

`penstock pipeline rebuild`: queues and index from the log, on Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Pairs, number, option, say_state
from penstock.cli.output import say, write, write_json
from penstock.cli.progress import Yes
from penstock.cli.reports import DryRun, NoCrc, document, show_rebuilt, show_report, show_start
from penstock.cli.spark import Confs, Master, Stores, check, place, session
from penstock.errors import BadSettings
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.pipeline.jobs.verify import Verified
    from penstock.store.rebuild import RangesReport

_SMALL: Final = 1 << 30


def verify(
    stores: Stores = None,
    as_json: AsJson = False,
    no_crc: NoCrc = False,
    master: Master = None,
    conf: Confs = None,
    config: Config = None,
    pairs: Pairs = None,
) -> None:
    """Check everything in stores: every record, unit, key and config file.

    The same as `penstock store verify`, of many stores at once and in parallel. Nothing is changed. Exit status 0: no
    error, perhaps notes; 1: errors; 2: some store could not be checked.

    Examples:

    \b
      penstock pipeline verify --store data/store
      penstock pipeline verify --store '/stores/*' --json
    """
    from penstock.pipeline.jobs import verify as job

    given = job.Stores.find(place(stores, config=config, pairs=pairs))
    with session("verify", master, conf, light_java=True) as spark:
        found = job.verify(spark, given, check_crc=not no_crc)
    if as_json:
        write_json(_document(found))
    else:
        for folder in given.folders.values():
            say_state(folder, "what follows is what the files say")
        _print_verified(found)
    _end(found)


def _document(found: dict[str, Verified]) -> dict[str, Any]:
    reports = [each.report for each in found.values() if each.report is not None]
    return {
        "errors": sum(len(report.errors) for report in reports),
        "notes": sum(len(report.notes) for report in reports),
        "stores": [
            {"store": name, "path": each.path, "problem": each.problem}
            if each.report is None
            else {"store": name, **document(Path(each.path), each.report)}
            for name, each in found.items()
        ],
    }


def _print_verified(found: dict[str, Verified]) -> None:
    reports = {each.path: each.report for each in found.values() if each.report is not None}
    for path, report in reports.items():
        show_report(Path(path), report)
    if reports and sum(report.figures.record_bytes for report in reports.values()) < _SMALL:
        say(f"for stores of this size, `penstock store verify {next(iter(reports))}` says the same at once.")


def _end(found: dict[str, Verified]) -> None:
    problems = [each.problem for each in found.values() if each.problem]
    for problem in problems:
        say(problem)
    if problems:
        raise typer.Exit(exit_codes.NOT_RUN)
    if any(each.report is not None and each.report.errors for each in found.values()):
        raise typer.Exit(exit_codes.PROBLEM)


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
    from penstock.store.rebuild.plan import check_unused

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
            _print_rebuilt(report)
    for report in reports:
        if not report.rebuilt:
            say(f"nothing was rebuilt: {report.path} has no such queue, neither in its log nor among its queues.")
    if not all(report.rebuilt for report in reports):
        raise typer.Exit(exit_codes.PROBLEM)
    if not as_json and not into and sum(report.log_end - report.log_begin for report in reports) < _SMALL:
        say(f"for stores of this size, `penstock store rebuild {reports[0].path}` does the same at once.")


def _print_rebuilt(report: RangesReport) -> None:
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be built" if report.dry_run else "built"
    into = f" into {report.into}" if report.into else ""
    write(
        f"{report.path}: {len(report.rebuilt)} {done}{into} from {format_size(report.log_end - report.log_begin)} of log, "
        f"{report.records} records in {report.ranges} ranges.\n"
    )
    if report.resumed:
        write(f"{report.resumed} of the ranges had been built by an earlier run.\n")
    if report.damaged:
        say(f"{report.damaged} damaged ranges of the log were passed over; `penstock store repair` covers them")
    if report.in_log_order:
        names = ", ".join(report.in_log_order)
        say(f"built by one process, because their offsets go back somewhere in the log: {names}")
