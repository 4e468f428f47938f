"""`verify` and `rebuild`, for `penstock` and `penstock pipeline`: audit stores, and rebuild their queues and index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.audit_and_rebuild_reports import MAX_THREADS, NoCrc, document, show_rebuilt, show_report, show_start
from penstock.cli.options import DryRun, number, option
from penstock.cli.output import write, write_json, write_note
from penstock.cli.progress import ProgressLine, Yes, confirm_quarantine
from penstock.cli.readonly_store import note_state
from penstock.cli.verbs_on_spark import EitherCall, JobCall, Paths, Stores, check_input, either_way, on_spark
from penstock.errors import BadSettings
from penstock.human_units import format_size
from penstock.store.audit.several_stores import Stores as FoundStores
from penstock.store.audit.several_stores import Verified, audit_in_turn
from penstock.store.readonly.store_folder import StoreFolder, find_paths, quiet_log
from penstock.store.rebuild import RebuildReport, ThreadRunner
from penstock.store.rebuild import rebuild as rebuild_store
from penstock.store.rebuild.plan import check_unused

if TYPE_CHECKING:
    from penstock.pipeline.jobs.job_input import JobInput

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

    given = job.find_stores(call.input(stores))
    with call.session("verify", light_java=True) as spark:
        results = job.verify(spark, given, check_crc=not no_crc)
    _report(given, results, call.as_json)
    reports = {each.path: each.report for each in results.values() if each.report is not None}
    if reports and not call.as_json and sum(report.figures.record_bytes for report in reports.values()) < _SMALL:
        write_note(f"for stores of this size, `penstock verify {next(iter(reports))}` prints the same at once.")
    _exit_status(results)


@either_way
def verify_stores(call: EitherCall, paths: Paths, no_crc: NoCrc = False) -> None:
    """Check every record, unit, key and config file of stores.

    Reads the files as they are on disk, and changes nothing. Runs in this process if the logs are small, and otherwise
    on Spark; stderr says which. Exit status 0: no errors, maybe notes; 1: errors; 2: a store could not be checked.

    Examples:

    \b
      penstock verify data/store
      penstock verify data/store data/other --json
      penstock verify data/store --master 'local[4]'
    """
    given = FoundStores.find(paths, call.config, call.pairs)
    if call.uses_spark("verify", given.folders.values()):
        from penstock.pipeline.jobs import verify as job

        with call.session("verify", light_java=True) as spark:
            results = job.verify(spark, given, check_crc=not no_crc)
    else:
        with ProgressLine() as progress:
            results = audit_in_turn(
                given,
                check_crc=not no_crc,
                workers=min(os.cpu_count() or 1, MAX_THREADS),
                progress=lambda done, total: progress("check the log", done, total),
            )
    _report(given, results, call.as_json)
    _exit_status(results)


def _report(given: FoundStores, results: dict[str, Verified], as_json: bool) -> None:
    if as_json:
        write_json(_document(results))
        return
    for folder in given.folders.values():
        note_state(folder, "showing the contents of the files")
    for each in results.values():
        if each.report is not None:
            show_report(Path(each.path), each.report)


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


def _exit_status(results: dict[str, Verified]) -> None:
    problems = [each.problem for each in results.values() if each.problem]
    for problem in problems:
        write_note(problem)
    if problems:
        raise typer.Exit(exit_codes.NOT_RUN)
    if any(each.report is not None and each.report.errors for each in results.values()):
        raise typer.Exit(exit_codes.PROBLEM)


RebuildTopic = Annotated[str | None, option("--topic", "T", "Only the queues of this topic.")]
RebuildQueue = Annotated[int | None, number("--queue", "N", "Only queues with this id.", low=0)]
Into = Annotated[Path | None, option("--into", "DIR", "Build into this directory; only read the store.")]
IndexOnly = Annotated[bool, typer.Option("--index", help="Only the index.")]


@on_spark
def rebuild(
    call: JobCall,
    stores: Stores = None,
    topic: RebuildTopic = None,
    queue: RebuildQueue = None,
    index: IndexOnly = False,
    into: Into = None,
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
    where = call.input(stores)
    check_input(where, only_stores=True)
    what = _Rebuild(topic, queue, index, into, dry_run)
    what.check(list(where.folders().values()))
    reports = _rebuild_on_spark(call, where, what, yes)
    _print_rebuilds(reports, call.as_json)
    if not call.as_json and not into and sum(report.log_end - report.log_begin for report in reports) < _SMALL:
        write_note(f"for stores of this size, `penstock rebuild {reports[0].path}` does the same at once.")


@either_way
def rebuild_stores(
    call: EitherCall,
    paths: Paths,
    topic: RebuildTopic = None,
    queue: RebuildQueue = None,
    index: IndexOnly = False,
    into: Into = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Rebuild queues and index of stores from the log.

    All of them, or the queues of one topic, or one queue, or the index. New files are built beside the old ones and
    replace them when complete; the old ones move to penstock/quarantine/. The stores must not be open, unless --into
    names another directory. An interrupted rebuild resumes if the log is unchanged. Runs in this process if the logs
    are small, and otherwise on Spark; stderr says which. Exit status 0: done; 1: no such queue; 2: could not run.

    Examples:

    \b
      penstock rebuild data/store
      penstock rebuild data/store --topic orders --queue 3
      penstock rebuild data/store --into /spare/derived
    """
    folders = [StoreFolder.find(path, call.config, call.pairs) for path in find_paths(paths)]
    what = _Rebuild(topic, queue, index, into, dry_run)
    what.check(folders)
    if call.uses_spark("rebuild", folders):
        reports = _rebuild_on_spark(call, call.input(paths), what, yes)
    else:
        with ProgressLine() as progress, quiet_log():
            reports = [
                rebuild_store(
                    folder.layout.root,
                    folder.settings,
                    ThreadRunner(progress),
                    topic=topic,
                    queue_id=queue,
                    index_only=index,
                    into=into,
                    dry_run=dry_run,
                    progress=progress,
                    may_exceed=confirm_quarantine(yes, progress),
                )
                for folder in folders
            ]
    _print_rebuilds(reports, call.as_json)


class _Rebuild(NamedTuple):
    """What to rebuild, and where to."""

    topic: str | None
    queue_id: int | None
    index_only: bool
    into: Path | None
    dry_run: bool

    def check(self, folders: Sequence[StoreFolder]) -> None:
        """Checks the options before anything is read. Raises BadSettings, or StoreInUse."""
        if self.index_only and (self.topic is not None or self.queue_id is not None):
            raise BadSettings("--index goes without --topic and --queue: the index covers all topics")
        if self.into is not None and self.into.exists() and not self.into.is_dir():
            raise BadSettings(f"--into {self.into}: that is a file; it must be a directory")
        if self.into is not None and len(folders) > 1:
            raise BadSettings("--into takes one store: name a folder for each, one after the other")
        for folder in () if self.into is not None else folders:
            check_unused(folder.layout)


def _rebuild_on_spark(call: JobCall, where: JobInput, what: _Rebuild, yes: bool) -> list[RebuildReport]:
    from penstock.pipeline.jobs.rebuild import rebuild as build

    with call.session("rebuild", light_java=True) as spark:
        return build(spark, where, **what._asdict(), may_exceed=lambda needed, held, limit: yes)


def _print_rebuilds(reports: Sequence[RebuildReport], as_json: bool) -> None:
    """Prints the reports. Sets exit status 1 if there was nothing to rebuild in one of the stores."""
    if as_json:
        write_json([msgspec.to_builtins(report) for report in reports])
    else:
        for report in reports:
            _print_rebuilt(report)
    for report in reports:
        if not report.rebuilt:
            write_note(f"nothing was rebuilt: {report.path} has no such queue, neither in its log nor on disk.")
    if not all(report.rebuilt for report in reports):
        raise typer.Exit(exit_codes.PROBLEM)


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
