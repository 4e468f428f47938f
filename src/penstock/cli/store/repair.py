"""`penstock store recover`: what a start does, without serving.

`penstock store repair` and `penstock store rebuild`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Folder, Pairs, number, option
from penstock.cli.output import add_row, say, show, table, write, write_json
from penstock.cli.progress import ProgressLine, Yes, asked
from penstock.cli.reports import DryRun, show_rebuilt, show_start, titled
from penstock.errors import BadSettings, BadStore, StoreFailed
from penstock.store import MessageStore, RecoveryReport, Settings
from penstock.store import repair as mending
from penstock.store.readonly.geometry import fit_to_files
from penstock.store.readonly.store_folder import StoreFolder, quiet_log
from penstock.store.rebuild import InThreads, rebuild_by_ranges
from penstock.store.repair import LostMessages, RebuildReport, RepairReport
from penstock.units import format_size


def recover(
    folder: Folder, config: Config = None, pairs: Pairs = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Do what a start does, without serving: recover, report, close cleanly.

    What a crash tore is cut off and kept aside, damage is noted and passed over, queues and index are completed from
    the log. Exit status 0 when the store can be served, whatever was found; 1 when it cannot, and a sentence says why;
    2 when this could not even be tried, as with a store in use.

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
                progress=progress.tell,
                may_exceed=asked(yes, progress),
            ) as store:
                report = store.report
                messages = sum(queue.max_offset - queue.min_offset for queue in store.queues)
    except (BadStore, StoreFailed) as error:
        say(f"the store cannot be served: {error}.")
        raise typer.Exit(exit_codes.PROBLEM) from None
    if as_json:
        write_json({"path": str(folder.absolute()), "messages": messages, **msgspec.to_builtins(report)})
    else:
        _show(str(folder.absolute()), messages, report)


def _show(path: str, messages: int, report: RecoveryReport) -> None:
    found: dict[str, Any] = {
        "last exit": "clean" if report.clean_exit else "crashed",
        "log": f"ends at {report.log_end}; walked from {report.walked_from} on",
        "queues": f"{messages} messages; {report.units_added} units were missing, {report.units_cut} were cut off",
        "torn": f"{report.torn_bytes} bytes at the end",
        "damage": f"{len(report.damage)} ranges, {format_size(sum(each.size for each in report.damage))}",
        "kept aside": ", ".join(report.kept_aside) or "nothing",
    }
    made = table(f"{path} can be served", "", "")
    made.show_header = False
    for name, value in found.items():
        add_row(made, name, value)
    show(made, "")
    if report.notes:
        notes = table("found", "")
        notes.show_header = False
        for note in report.notes:
            add_row(notes, note)
        show(notes, "")


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
        raise typer.Exit(exit_codes.PROBLEM)


# -- text ----------------------------------------------------------------------------------------------------------
def _show_repair(report: RepairReport) -> None:
    if report.found_nothing:
        write(f"{report.path}: nothing to repair in {format_size(report.log_end - report.log_begin)} of log.\n")
        return
    if report.ranges:
        columns = ("file", "at", "bytes", "why", "lost", "kept in")
        made = table(titled("damaged ranges of the log", report.dry_run), *columns, right=("at", "bytes"))
        for each in report.ranges:
            kept = each.not_repaired or ", ".join(each.saved) or "all zero"
            add_row(made, each.file, each.physical_offset, each.size, each.reason, _lost(each.lost), kept)
        show(made, "")
    if report.changes:
        made = table(titled("other files", report.dry_run), "file", "what", "kept in")
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
    write(
        f"{report.path}: {len(report.rebuilt)} {done} from {format_size(report.log_end - report.log_begin)} of log.\n"
    )


def _lost(lost: list[LostMessages]) -> str:
    shown = [f"{each.topic} queue {each.queue_id}: {_offsets(each)}" for each in lost[:_LOST_SHOWN]]
    more = sum(each.count for each in lost[_LOST_SHOWN:])
    return "; ".join([*shown, *([f"and {more} more"] if more else [])]) or "none known"


def _offsets(lost: LostMessages) -> str:
    return str(lost.first_offset) if lost.count == 1 else f"{lost.first_offset} to {lost.last_offset}"
