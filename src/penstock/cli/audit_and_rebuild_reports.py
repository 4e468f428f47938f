"""Audit and rebuild reports as text and JSON, shared by the verbs of `penstock store` and `penstock pipeline`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from penstock.cli.output import add_row, plain, show, table, write
from penstock.human_units import format_size
from penstock.store.audit import AuditReport, Finding
from penstock.store.rebuild import Rebuilt

MAX_SHOWN_PER_KIND = 5
MAX_THREADS = 4
"""How many threads an audit in this process has at most."""

NoCrc: TypeAlias = Annotated[bool, typer.Option("--no-crc", help="Do not check the CRC of the bodies.")]


def document(folder: Path, report: AuditReport) -> dict[str, Any]:
    """Returns an audit report as a JSON object."""
    return {
        "path": str(folder.absolute()),
        "errors": len(report.errors),
        "notes": len(report.notes),
        "figures": msgspec.to_builtins(report.figures),
        "findings": [msgspec.to_builtins(finding) for finding in report.findings],
        "damage": [msgspec.to_builtins(each) for each in report.damage],
    }


# -- text ----------------------------------------------------------------------------------------------------------


def show_report(folder: Path, report: AuditReport) -> None:
    """Prints an audit report: the findings by kind, and a summary line."""
    by_kind = sorted(report.findings, key=lambda finding: (finding.severity, finding.kind))  # a stable sort
    for (severity, kind), findings in groupby(by_kind, key=lambda finding: (finding.severity, finding.kind)):
        _show_kind(folder, severity, kind, list(findings))
    figures = report.figures
    write(
        f"{plain(str(folder))}: {_count(len(report.errors), 'error')}, {_count(len(report.notes), 'note')} in "
        f"{_count(figures.records, 'record')} of {format_size(figures.record_bytes)}"
        f"{f' ({figures.record_crcs} with their own CRC)' if figures.record_crcs else ''}, "
        f"{_count(figures.units, 'unit')} of {_count(figures.queues, 'queue')} and "
        f"{_count(figures.keys, 'key')} in {_count(figures.index_files, 'index file')}"
        f"{'' if figures.crc_checked else ', without CRC'}.\n"
    )


def _show_kind(folder: Path, severity: str, kind: str, findings: list[Finding]) -> None:
    write(f"{severity} {kind}\n")
    for finding in findings[:MAX_SHOWN_PER_KIND]:
        write(f"  {plain(_where(folder, finding))}: {plain(finding.what)}{_messages([finding])}\n")
    rest = findings[MAX_SHOWN_PER_KIND:]
    if rest:
        write(f"  and {len(rest)} more of this kind{_messages(rest)}; --json lists them\n")
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


def show_rebuilt(rebuilt: list[Rebuilt], dry_run: bool) -> None:
    """Prints a table of the rebuilt queues and indexes."""
    if rebuilt:
        grid = table(titled("rebuilt", dry_run), "what", "units", "reason", "old files in", right=("units",))
        for each in rebuilt:
            add_row(grid, each.what, each.units, each.reason, each.kept or "-")
        show(grid, "")


def show_start(notes: list[str]) -> None:
    """Prints the notes of the store's start after a repair or rebuild."""
    if notes:
        grid = table("the start reported", "")
        grid.show_header = False
        for note in notes:
            add_row(grid, note)
        show(grid, "")


def titled(title: str, dry_run: bool) -> str:
    """Returns a table's title, with a mark if it is a dry run."""
    return f"{title} (dry run: nothing was changed)" if dry_run else title
