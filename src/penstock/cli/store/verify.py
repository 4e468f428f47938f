"""`penstock store verify`: audits a store in this process."""

from __future__ import annotations

import os

import typer

from penstock.cli import exit_codes
from penstock.cli.audit_and_rebuild_reports import MAX_THREADS, NoCrc, document, show_report
from penstock.cli.options import AsJson, Config, Folder, Pairs
from penstock.cli.output import write_json
from penstock.cli.progress import ProgressLine
from penstock.cli.readonly_store import note_state
from penstock.store.audit import audit
from penstock.store.readonly.store_folder import StoreFolder, quiet_log


def verify(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
    no_crc: NoCrc = False,
) -> None:
    """Check every record, unit, key and config file of a store.

    Reads the files as they are on disk, even if a start would refuse them, and changes nothing. Finds damage in the
    log, records missing in their queue or in the index, units and keys without a record, wrong headers, and offsets out
    of range; each with file, position, number of messages and remedy. A store in use is checked up to its current end.
    Exit status 0: no errors, maybe notes; 1: errors; 2: could not be checked.

    Examples:

    \b
      penstock store verify data/store
      penstock store verify data/store --json
    """
    place = StoreFolder.find(folder, config, pairs)
    with ProgressLine() as progress, quiet_log():
        report = audit(
            place.layout,
            place.settings,
            place.files,
            check_crc=not no_crc,
            workers=min(os.cpu_count() or 1, MAX_THREADS),
            progress=lambda done, total: progress("check the log", done, total),
        )
    if as_json:
        write_json(document(folder, report))
    else:
        note_state(place, "showing the contents of the files")
        show_report(folder, report)
    if report.errors:
        raise typer.Exit(exit_codes.PROBLEM)
