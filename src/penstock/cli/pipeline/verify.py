"""`penstock pipeline verify` and `penstock pipeline rebuild`: audit stores on Spark, and rebuild their queues and
index.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.options import note_state, number, option
from penstock.cli.output import write, write_json, write_note
from penstock.cli.progress import Yes
from penstock.cli.reports import DryRun, NoCrc, document, show_rebuilt, show_report, show_start
from penstock.cli.spark import JobCall, Stores, check_input, on_spark
from penstock.errors import BadSettings
from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.pipeline.jobs.verify import Verified
    from penstock.store.rebuild import RebuildReport

_SMALL: Final = 1 << 30


@on_spark
def verify(call: JobCall, stores: Stores = None, no_crc: NoCrc = False) -> None:
    """Check every record, unit, key and config file of stores.

    The same as `penstock store verify`, for many stores in parallel. Changes nothing. Exit status 0: no errors, maybe
    notes; 1: errors; 2: a store could not be checked.

    Examples:

    \b
      penstock pipeline verify --store data/store
      penstock pipeline verify --store '/stores/*' --json
    """
    from penstock.pipeline.jobs import verify as job

    given = job.Stores.find(call.input(stores))
    with call.session("verify", light_java=True) as spark:
        results = job.verify(spark, given, check_crc=not no_crc)
    if call.as_json:
        write_json(_document(results))
    else:
        for folder in given.folders.values():
            note_state(folder, "showing the contents of the files")
        _print_verified(results)
    _exit_status(results)


def _document(results: dict[str, Verified]) -> dict[str, Any]:
    reports = [each.report for each in results.values() if each.report is not None]
    return {
        "errors": sum(len(report.errors) for report in reports),
        "notes": sum(len(report.notes) for report in reports),
        "stores": [
            {"store": name, "path": each.path, "problem": each.problem}
            if each.report is None
            else {"store": name, **document(Path(each.path), each.report)}
            for name, each in results.items()
        ],
    }


def _print_verified(results: dict[str, Verified]) -> None:
    reports = {each.path: each.report for each in results.values() if each.report is not None}
    for path, report in reports.items():
        show_report(Path(path), report)
    if reports and sum(report.figures.record_bytes for report in reports.values()) < _SMALL:
        write_note(f"for stores of this size, `penstock store verify {next(iter(reports))}` prints the same at once.")


def _exit_status(results: dict[str, Verified]) -> None:
    problems = [each.problem for each in results.values() if each.problem]
    for problem in problems:
        write_note(problem)
    if problems:
        raise typer.Exit(exit_codes.NOT_RUN)
    if any(each.report is not None and each.report.errors for each in results.values()):
        raise typer.Exit(exit_codes.PROBLEM)


@on_spark
def rebuild(
    call: JobCall,
    stores: Stores = None,
    topic: Annotated[str | None, option("--topic", "T", "Only the queues of this topic.")] = None,
    queue: Annotated[int | None, number("--queue", "N", "Only queues with this id.", low=0)] = None,
    into: Annotated[Path | None, option("--into", "DIR", "Build into this directory; only read the store.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Rebuild queues and index from the log, in parallel.

    All of them, or only the queues of one topic, or one queue; then the index is kept. New files are built beside the
    old ones and replace them when they are complete and checked; the old ones move to penstock/quarantine/. If the job
    is killed before that, the old files are unchanged, and the same command resumes. The store must not be open, unless
    --into names another directory; all hosts of a Spark cluster must see it under the same path. Exit status 0: done;
    1: no such queue; 2: could not run.

    Examples:

    \b
      penstock pipeline rebuild --store data/store
      penstock pipeline rebuild --store data/store --topic orders --queue 3
      penstock pipeline rebuild --store data/store --into /spare/derived
    """
    from penstock.pipeline.jobs.rebuild import rebuild as build
    from penstock.store.rebuild.plan import check_unused

    where = call.input(stores)
    check_input(where, only_stores=True)
    if into is not None and into.exists() and not into.is_dir():
        raise BadSettings(f"--into {into}: that is a file; it must be a directory")
    for folder in () if into is not None else where.folders().values():
        check_unused(folder.layout)  # raises before Spark starts
    with call.session("rebuild", light_java=True) as spark:
        reports = build(
            spark,
            where,
            topic=topic,
            queue_id=queue,
            into=into,
            dry_run=dry_run,
            may_exceed=lambda needed, held, limit: yes,
        )
    if call.as_json:
        write_json([msgspec.to_builtins(report) for report in reports])
    else:
        for report in reports:
            _print_rebuilt(report)
    for report in reports:
        if not report.rebuilt:
            write_note(f"nothing was rebuilt: {report.path} has no such queue, neither in its log nor on disk.")
    if not all(report.rebuilt for report in reports):
        raise typer.Exit(exit_codes.PROBLEM)
    if not call.as_json and not into and sum(report.log_end - report.log_begin for report in reports) < _SMALL:
        write_note(f"for stores of this size, `penstock store rebuild {reports[0].path}` does the same at once.")


def _print_rebuilt(report: RebuildReport) -> None:
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be rebuilt" if report.dry_run else "rebuilt"
    into = f" into {report.into}" if report.into else ""
    size = format_size(report.log_end - report.log_begin)
    write(
        f"{report.path}: {len(report.rebuilt)} {done}{into} from {size} of log, "
        f"{report.records} records in {report.ranges} ranges.\n"
    )
    if report.resumed:
        write(f"{report.resumed} of the ranges were built by an earlier run.\n")
    if report.damaged:
        write_note(f"{report.damaged} damaged ranges of the log were skipped; `penstock store repair` repairs them")
    if report.in_log_order:
        names = ", ".join(report.in_log_order)
        write_note(f"built by one process, because their offsets decrease somewhere in the log: {names}")
