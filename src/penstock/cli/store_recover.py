"""`penstock store recover`: what a start does, without serving."""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from penstock.cli import exits
from penstock.cli.consent import Yes, asked
from penstock.cli.options import AsJson, Config, Folder, Pairs
from penstock.cli.output import add_row, in_units, say, show, table, write_json
from penstock.cli.progress import ProgressLine
from penstock.errors import BadStore, StoreFailed
from penstock.store import MessageStore, RecoveryReport
from penstock.store.folder import StoreFolder, quiet_log
from penstock.store.geometry import fit_to_files


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
        raise typer.Exit(exits.PROBLEM) from None
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
        "damage": f"{len(report.damage)} ranges, {in_units(sum(each.size for each in report.damage))}",
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
