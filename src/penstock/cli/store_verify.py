"""`penstock store verify`: the audit of a store, on one machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import exits
from penstock.cli.opening import say_state
from penstock.cli.options import AsJson, Config, Folder, Pairs
from penstock.cli.output import in_units, plain, write, write_json
from penstock.cli.progress import ProgressLine
from penstock.store.audit import AuditReport, Finding, audit
from penstock.store.folder import StoreFolder, quiet_log

_SHOWN_OF_A_KIND = 5
_MOST_THREADS = 4


def verify(
    folder: Folder,
    config: Config = None,
    pairs: Pairs = None,
    as_json: AsJson = False,
    no_crc: Annotated[bool, typer.Option("--no-crc", help="Do not compute the CRC of the bodies.")] = False,
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
            workers=min(os.cpu_count() or 1, _MOST_THREADS),
            progress=lambda done, total: progress("check the log", done, total),
        )
    if as_json:
        write_json(_document(folder, report))
    else:
        say_state(place, "what follows is what the files say")
        _show(folder, report)
    if report.errors:
        raise typer.Exit(exits.PROBLEM)


def _document(folder: Path, report: AuditReport) -> dict[str, Any]:
    return {
        "path": str(folder.absolute()),
        "errors": len(report.errors),
        "notes": len(report.notes),
        "figures": msgspec.to_builtins(report.figures),
        "findings": [msgspec.to_builtins(finding) for finding in report.findings],
        "damage": [msgspec.to_builtins(each) for each in report.damage],
    }


# -- text ----------------------------------------------------------------------------------------------------------


def _show(folder: Path, report: AuditReport) -> None:
    by_kind = sorted(report.findings, key=lambda finding: (finding.severity, finding.kind))  # keeps the order within
    for (severity, kind), findings in groupby(by_kind, key=lambda finding: (finding.severity, finding.kind)):
        _show_kind(folder, severity, kind, list(findings))
    figures = report.figures
    write(
        f"{plain(str(folder))}: {_count(len(report.errors), 'error')}, {_count(len(report.notes), 'note')} in "
        f"{_count(figures.records, 'record')} of {in_units(figures.record_bytes)}, "
        f"{_count(figures.units, 'unit')} of {_count(figures.queues, 'queue')} and "
        f"{_count(figures.keys, 'key')} in {_count(figures.index_files, 'index file')}"
        f"{'' if figures.crc_checked else ', without CRC'}.\n"
    )


def _show_kind(folder: Path, severity: str, kind: str, findings: list[Finding]) -> None:
    write(f"{severity} {kind}\n")
    for finding in findings[:_SHOWN_OF_A_KIND]:
        write(f"  {plain(_where(folder, finding))}: {plain(finding.what)}{_messages([finding])}\n")
    rest = findings[_SHOWN_OF_A_KIND:]
    if rest:
        write(f"  and {len(rest)} more of this kind{_messages(rest)}, which --json lists\n")
    for remedy in dict.fromkeys(finding.remedy for finding in findings):
        write(f"  -> {remedy}\n")
    write("\n")


def _where(folder: Path, finding: Finding) -> str:
    path = Path(finding.path)
    name = str(path.relative_to(folder)) if path.is_relative_to(folder) else finding.path
    return name if finding.offset is None else f"{name} at {finding.offset}"


def _messages(findings: Iterable[Finding]) -> str:
    count = sum(finding.messages or 0 for finding in findings)
    return f" ({_count(count, 'message')})" if count else ""


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"
