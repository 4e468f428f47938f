"""`penstock store recover`, `repair` and `rebuild`: the verbs that change a store. No process may have it open."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.audit_and_rebuild_reports import show_rebuilt, show_start, titled
from penstock.cli.options import AsJson, Config, DryRun, Folder, Pairs, number, option
from penstock.cli.output import add_row, show, table, write, write_json, write_note
from penstock.cli.progress import ProgressLine, Yes, confirm_quarantine
from penstock.errors import BadSettings, BadStore, StoreFailed
from penstock.human_units import format_size
from penstock.store import MessageStore, RecoveryReport, Settings
from penstock.store import repair as repairing
from penstock.store.readonly.infer_file_sizes import fit_to_files
from penstock.store.readonly.store_folder import StoreFolder, quiet_log
from penstock.store.rebuild import RebuildReport, ThreadRunner
from penstock.store.rebuild import rebuild as build
from penstock.store.repair import LostMessages, RepairReport


def recover(
    folder: Folder, config: Config = None, pairs: Pairs = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Recover a store without serving it.

    Does what a start does: truncates and quarantines the torn tail, notes and skips damage, completes queues and index
    from the log, and closes cleanly. Exit status 0: the store can be served, whatever was found; 1: it cannot, and one
    sentence says why; 2: not tried, as with a store in use.

    Examples:

    \b
      penstock store recover data/store
      penstock store recover data/store --json
    """
    place = StoreFolder.find(folder, config, pairs)
    try:
        with ProgressLine() as progress, quiet_log():
            settings, problem = fit_to_files(place.settings, place.files, place.layout)
            if problem and settings.message_index_enable:
                raise BadStore(problem)
            with MessageStore.open(
                folder,
                settings,
                progress=progress.report,
                may_exceed=confirm_quarantine(yes, progress),
            ) as store:
                report = store.report
                messages = sum(queue.max_offset - queue.min_offset for queue in store.queues)
    except (BadStore, StoreFailed) as error:
        write_note(f"the store cannot be served: {error}.")
        raise typer.Exit(exit_codes.PROBLEM) from None
    if as_json:
        write_json({"path": str(folder.absolute()), "messages": messages, **msgspec.to_builtins(report)})
    else:
        _show(str(folder.absolute()), messages, report)


def _show(path: str, messages: int, report: RecoveryReport) -> None:
    lines: dict[str, Any] = {
        "last exit": "clean" if report.clean_exit else "crashed",
        "log": f"ends at {report.log_end}; scanned from {report.walked_from}",
        "queues": f"{messages} messages; {report.units_added} units added, {report.units_cut} truncated",
        "torn": f"{report.torn_bytes} bytes at the end",
        "damage": f"{len(report.damage)} ranges, {format_size(sum(each.size for each in report.damage))}",
        "quarantine": ", ".join(report.kept_aside) or "nothing",
    }
    grid = table(f"{path} can be served", "", "")
    grid.show_header = False
    for name, value in lines.items():
        add_row(grid, name, value)
    show(grid, "")
    if report.notes:
        notes = table("findings", "")
        notes.show_header = False
        for note in report.notes:
            add_row(notes, note)
        show(notes, "")


_MAX_LOST_SHOWN = 4


def repair(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Repair the log, queues, index and config files.

    Covers every damaged range of the log with a valid record, so that RocketMQ skips it, too; extends short log files
    and creates missing ones; rebuilds queues and index that do not match the log; replaces config files and a
    checkpoint that cannot be read. Replaced bytes and files go to penstock/quarantine/. The store must not be open.
    Exit status 1: something could not be repaired.

    Examples:

    \b
      penstock store repair data/store --dry-run
      penstock store repair data/store
    """
    with ProgressLine() as progress, quiet_log():
        report = repairing.repair(
            folder,
            Settings.load(config, pairs or ()),
            dry_run=dry_run,
            progress=progress,
            may_exceed=confirm_quarantine(yes, progress),
        )
    if as_json:
        write_json({**msgspec.to_builtins(report), "lost_messages": report.lost_messages})
    else:
        _show_repair(report)
    for problem in report.problems:
        write_note(f"not repaired: {problem}.")
    if report.problems:
        raise typer.Exit(exit_codes.PROBLEM)


def rebuild(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    topic: Annotated[str | None, option("--topic", "T", "Only the queues of this topic.")] = None,
    queue: Annotated[int | None, number("--queue", "N", "Only queues with this id.", low=0)] = None,
    index: Annotated[bool, typer.Option("--index", help="Only the index.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild queues and index from the log.

    All of them, or the queues of one topic, or one queue, or the index. New files are built beside the old ones and
    replace them when complete; the old ones move to penstock/quarantine/. The store must not be open. An interrupted
    rebuild resumes if the log is unchanged.

    Examples:

    \b
      penstock store rebuild data/store
      penstock store rebuild data/store --topic orders --queue 3
      penstock store rebuild data/store --index
    """
    if index and (topic is not None or queue is not None):
        raise BadSettings("--index goes without --topic and --queue: the index covers all topics")
    settings = Settings.load(config, pairs or ())
    with ProgressLine() as progress, quiet_log():
        report = build(
            folder,
            settings,
            ThreadRunner(progress),
            topic=topic,
            queue_id=queue,
            index_only=index,
            dry_run=dry_run,
            progress=progress,
            may_exceed=confirm_quarantine(yes, progress),
        )
    if as_json:
        write_json(msgspec.to_builtins(report))
    else:
        _show_rebuild(report)
    if not report.rebuilt:
        write_note(f"nothing was rebuilt: {folder} has no such queue, neither in its log nor on disk.")
        raise typer.Exit(exit_codes.PROBLEM)


# -- text --


def _show_repair(report: RepairReport) -> None:
    if report.found_nothing:
        write(f"{report.path}: nothing to repair in {format_size(report.log_end - report.log_begin)} of log.\n")
        return
    if report.ranges:
        columns = ("file", "at", "bytes", "reason", "lost", "saved in")
        grid = table(titled("damaged ranges of the log", report.dry_run), *columns, right=("at", "bytes"))
        for each in report.ranges:
            saved = each.not_repaired or ", ".join(each.saved) or "all zero"
            add_row(grid, each.file, each.physical_offset, each.size, each.reason, _lost(each.lost), saved)
        show(grid, "")
    if report.changes:
        grid = table(titled("other files", report.dry_run), "file", "what", "saved in")
        for change in report.changes:
            add_row(grid, change.path, change.what, change.saved or "-")
        show(grid, "")
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be repaired" if report.dry_run else "repaired"
    repaired = [each for each in report.ranges if not each.not_repaired]
    write(
        f"{report.path}: {len(repaired)} of {len(report.ranges)} ranges {done}, {report.lost_messages} messages lost, "
        f"{len(report.rebuilt)} queues or indexes rebuilt.\n"
    )


def _show_rebuild(report: RebuildReport) -> None:
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be rebuilt" if report.dry_run else "rebuilt"
    size = format_size(report.log_end - report.log_begin)
    write(f"{report.path}: {len(report.rebuilt)} {done} from {size} of log.\n")


def _lost(lost: list[LostMessages]) -> str:
    shown = [f"{each.topic} queue {each.queue_id}: {_offsets(each)}" for each in lost[:_MAX_LOST_SHOWN]]
    more = sum(each.count for each in lost[_MAX_LOST_SHOWN:])
    return "; ".join([*shown, *([f"and {more} more"] if more else [])]) or "none known"


def _offsets(lost: LostMessages) -> str:
    return str(lost.first_offset) if lost.count == 1 else f"{lost.first_offset} to {lost.last_offset}"
