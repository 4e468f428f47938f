"""`penstock store repair` and `penstock store rebuild`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import exits
from penstock.cli.consent import Yes, asked
from penstock.cli.options import AsJson, Config, Folder, Pairs, number, option
from penstock.cli.output import add_row, in_units, say, show, table, write, write_json
from penstock.cli.progress import ProgressLine
from penstock.errors import BadSettings
from penstock.store import Settings
from penstock.store import repair as mending
from penstock.store.folder import quiet_log
from penstock.store.rebuilding import InThreads, rebuild_by_ranges
from penstock.store.repair import LostMessages, RebuildReport, Rebuilt, RepairReport

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
_LOST_SHOWN = 4


def repair(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put right what can be put right.

    Every damaged range of the log is kept aside and covered by a valid record, so that RocketMQ walks past it too; log
    files get their size and missing ones are made; queues and index that are not what the log says are built anew;
    config files and a checkpoint that cannot be read are replaced. Whatever is replaced lies under penstock/quarantine/
    afterwards. The store must not be open. Exit status 1 if something could not be put right.

    Examples:

    \b
      penstock store repair data/store --dry-run
      penstock store repair data/store
    """
    with ProgressLine() as progress, quiet_log():
        report = mending.repair(
            folder,
            Settings.load(config, pairs or ()),
            dry_run=dry_run,
            progress=progress,
            may_exceed=asked(yes, progress),
        )
    if as_json:
        write_json({**msgspec.to_builtins(report), "lost_messages": report.lost_messages})
    else:
        _show_repair(report)
    for problem in report.problems:
        say(f"not repaired: {problem}.")
    if report.problems:
        raise typer.Exit(exits.PROBLEM)


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
    """Build queues and index anew from the log.

    All of them, or the queues of one topic, or one queue, or the index. They are built beside the old ones and take
    their place when they are complete; the old ones lie under penstock/quarantine/ then. The store must not be open.
    One that was cut short goes on where it was, if the log is still the same.

    Examples:

    \b
      penstock store rebuild data/store
      penstock store rebuild data/store --topic orders --queue 3
      penstock store rebuild data/store --index
    """
    if index and (topic is not None or queue is not None):
        raise BadSettings("--index goes without --topic and --queue: an index is of all topics")
    settings = Settings.load(config, pairs or ())
    report: RebuildReport
    with ProgressLine() as progress, quiet_log():
        how: dict[str, Any] = {"dry_run": dry_run, "progress": progress, "may_exceed": asked(yes, progress)}
        if index:
            report = mending.rebuild(folder, settings, index_only=True, **how)
        else:
            report = rebuild_by_ranges(folder, settings, InThreads(progress), topic=topic, queue_id=queue, **how)
    if as_json:
        write_json(msgspec.to_builtins(report))
    else:
        _show_rebuild(report)
    if not report.rebuilt:
        say(f"nothing was rebuilt: {folder} has no such queue, neither in its log nor among its queues.")
        raise typer.Exit(exits.PROBLEM)


# -- text ----------------------------------------------------------------------------------------------------------


def _show_repair(report: RepairReport) -> None:
    if report.found_nothing:
        write(f"{report.path}: nothing to repair in {in_units(report.log_end - report.log_begin)} of log.\n")
        return
    if report.ranges:
        columns = ("file", "at", "bytes", "why", "lost", "kept in")
        made = table(_titled("damaged ranges of the log", report.dry_run), *columns, right=("at", "bytes"))
        for each in report.ranges:
            kept = each.not_repaired or ", ".join(each.saved) or "all zero"
            add_row(made, each.file, each.physical_offset, each.size, each.reason, _lost(each.lost), kept)
        show(made, "")
    if report.changes:
        made = table(_titled("other files", report.dry_run), "file", "what", "kept in")
        for change in report.changes:
            add_row(made, change.path, change.what, change.saved or "-")
        show(made, "")
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be repaired" if report.dry_run else "repaired"
    repaired = [each for each in report.ranges if not each.not_repaired]
    write(
        f"{report.path}: {len(repaired)} of {len(report.ranges)} ranges {done}, {report.lost_messages} messages lost, "
        f"{len(report.rebuilt)} queues or indexes built anew.\n"
    )


def _show_rebuild(report: RebuildReport) -> None:
    show_rebuilt(report.rebuilt, report.dry_run)
    show_start(report.start)
    done = "would be built" if report.dry_run else "built"
    write(f"{report.path}: {len(report.rebuilt)} {done} from {in_units(report.log_end - report.log_begin)} of log.\n")


def show_rebuilt(rebuilt: list[Rebuilt], dry_run: bool) -> None:
    """What was built anew, as a table."""
    if rebuilt:
        made = table(_titled("built anew", dry_run), "what", "units", "why", "old files in", right=("units",))
        for each in rebuilt:
            add_row(made, each.what, each.units, each.reason, each.kept or "-")
        show(made, "")


def show_start(notes: list[str]) -> None:
    """What the start afterwards had to say."""
    if notes:
        made = table("the start reported", "")
        made.show_header = False
        for note in notes:
            add_row(made, note)
        show(made, "")


def _titled(title: str, dry_run: bool) -> str:
    return f"{title} (dry run: nothing was changed)" if dry_run else title


def _lost(lost: list[LostMessages]) -> str:
    shown = [f"{each.topic} queue {each.queue_id}: {_offsets(each)}" for each in lost[:_LOST_SHOWN]]
    more = sum(each.count for each in lost[_LOST_SHOWN:])
    return "; ".join([*shown, *([f"and {more} more"] if more else [])]) or "none known"


def _offsets(lost: LostMessages) -> str:
    return str(lost.first_offset) if lost.count == 1 else f"{lost.first_offset} to {lost.last_offset}"
