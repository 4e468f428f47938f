"""What an audit has found, for people and for programs: what `penstock store verify` and `pipeline verify` share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from penstock.cli.output import add_row, plain, show, table, write
from penstock.store.audit import AuditReport, Finding
from penstock.store.repair import Rebuilt
from penstock.units import format_size

SHOWN_OF_A_KIND = 5

DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
NoCrc: TypeAlias = Annotated[bool, typer.Option("--no-crc", help="Do not compute the CRC of the bodies.")]


def document(folder: Path, report: AuditReport) -> dict[str, Any]:
    """For programs."""
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
    """For people: the findings by kind, and one line that sums up."""
    by_kind = sorted(report.findings, key=lambda finding: (finding.severity, finding.kind))  # keeps the order within
    for (severity, kind), findings in groupby(by_kind, key=lambda finding: (finding.severity, finding.kind)):
        _show_kind(folder, severity, kind, list(findings))
    figures = report.figures
    write(
        f"{plain(str(folder))}: {_count(len(report.errors), 'error')}, {_count(len(report.notes), 'note')} in "
        f"{_count(figures.records, 'record')} of {format_size(figures.record_bytes)}, "
        f"{_count(figures.units, 'unit')} of {_count(figures.queues, 'queue')} and "
        f"{_count(figures.keys, 'key')} in {_count(figures.index_files, 'index file')}"
        f"{'' if figures.crc_checked else ', without CRC'}.\n"
    )


def _show_kind(folder: Path, severity: str, kind: str, findings: list[Finding]) -> None:
    write(f"{severity} {kind}\n")
    for finding in findings[:SHOWN_OF_A_KIND]:
        write(f"  {plain(_where(folder, finding))}: {plain(finding.what)}{_messages([finding])}\n")
    rest = findings[SHOWN_OF_A_KIND:]
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


def show_rebuilt(rebuilt: list[Rebuilt], dry_run: bool) -> None:
    """What was built anew, as a table."""
    if rebuilt:
        made = table(titled("built anew", dry_run), "what", "units", "why", "old files in", right=("units",))
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


def titled(title: str, dry_run: bool) -> str:
    """A table's title, which says so if nothing was changed."""
    return f"{title} (dry run: nothing was changed)" if dry_run else title
