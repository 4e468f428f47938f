"""`penstock store verify`: the audit of a store, on one machine."""

from __future__ import annotations

import os

import typer

from penstock.cli import exit_codes
from penstock.cli.options import AsJson, Config, Folder, Pairs, say_state
from penstock.cli.output import write_json
from penstock.cli.progress import ProgressLine
from penstock.cli.reports import NoCrc, document, show_report
from penstock.store.audit import audit
from penstock.store.readonly.store_folder import StoreFolder, quiet_log

_MAX_THREADS = 4


def verify(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
    no_crc: NoCrc = False,
) -> None:
    """Check everything in a store: every record, unit, key and config file.

    Reads the files as they lie on disk, also those that a start would refuse, and changes nothing. Finds damage in the
    log, records that are not in their queue or in the index, units and keys of no record, wrong headers, and offsets
    out of bounds; each with file, position, how many messages, and what to do. A store in use is checked as far as its
    owner had come. Exit status 0: no error, perhaps notes; 1: errors; 2: it could not be checked.

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
            workers=min(os.cpu_count() or 1, _MAX_THREADS),
            progress=lambda done, total: progress("check the log", done, total),
        )
    if as_json:
        write_json(document(folder, report))
    else:
        say_state(place, "what follows is what the files say")
        show_report(folder, report)
    if report.errors:
        raise typer.Exit(exit_codes.PROBLEM)
