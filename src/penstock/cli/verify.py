"""`penstock pipeline verify`: the audit of many stores at once, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from penstock.cli import exits
from penstock.cli.audit_report import NoCrc, document, show_report
from penstock.cli.on_spark import Confs, Master, Stores, place, session
from penstock.cli.opening import say_state
from penstock.cli.options import AsJson, Config, Pairs
from penstock.cli.output import say, write_json

if TYPE_CHECKING:
    from penstock.pipeline.jobs.verify import Verified

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
        _show(found)
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


def _show(found: dict[str, Verified]) -> None:
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
        raise typer.Exit(exits.NOT_RUN)
    if any(each.report is not None and each.report.errors for each in found.values()):
        raise typer.Exit(exits.PROBLEM)
