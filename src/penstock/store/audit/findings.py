"""The result of an audit: findings, figures, and the damaged ranges of the log.

A finding is a plain value that can be pickled, sent to another process or written as JSON. Its kind is a stable name
from `finding_kinds.py`. Adjacent findings of one kind become one finding with a count, so that a store whose units are
all wrong does not fill the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from penstock.store.damage_and_quarantine import DamagedRange

Severity = Literal["error", "note"]


class Finding(msgspec.Struct, frozen=True):
    """An error or a note: its place, a description and a remedy."""

    severity: Severity
    kind: str
    path: str
    """The file or folder."""
    offset: int | None
    """Byte position in the file, if the finding has one."""
    what: str
    """One sentence."""
    messages: int | None
    """Number of affected messages, if known."""
    remedy: str


class FindingKind(msgspec.Struct, frozen=True):
    """A kind of finding: name, severity, meaning and remedy."""

    name: str
    severity: Severity
    meaning: str
    remedy: str

    def at(
        self, path: Path | str, what: str, *, offset: int | None = None, messages: int | None = None, remedy: str = ""
    ) -> Finding:
        return Finding(self.severity, self.name, str(path), offset, what, messages, remedy or self.remedy)


def sorted_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings without duplicates: errors first, then by path and offset."""
    return sorted(
        dict.fromkeys(findings),
        key=lambda each: (each.severity, each.path, -1 if each.offset is None else each.offset, each.kind, each.what),
    )


class Collector:
    """Collects at most `limit` findings of each kind, and one more finding that says how many were left out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: list[Finding] = []
        self._count: Counter[str] = Counter()
        self._last: dict[str, Finding] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._count[finding.kind] += 1
            self._last[finding.kind] = finding
            if self._count[finding.kind] <= self._limit:
                self._kept.append(finding)

    def findings(self) -> list[Finding]:
        return sorted_findings([*self._kept, *self._rest()])

    def _rest(self) -> Iterable[Finding]:
        for kind, count in self._count.items():
            if count > self._limit:
                more = f"{count - self._limit} more findings of this kind are not listed; this is the last of them"
                yield msgspec.structs.replace(self._last[kind], what=more, messages=None)


class Figures(msgspec.Struct, frozen=True):
    """Counts of the files, records, units and keys that the audit covered."""

    log_begin: int = 0
    log_end: int = 0
    log_files: int = 0
    records: int = 0
    messages: int = 0
    """Records that belong to a queue."""
    record_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_items: int = 0
    keys: int = 0
    in_use: bool = False
    closed_cleanly: bool = True
    crc_checked: bool = True
    record_crcs: int = 0
    """Records that end with their own CRC (enabledAppendPropCRC)."""


class AuditReport(msgspec.Struct, frozen=True):
    findings: list[Finding]
    figures: Figures
    damage: list[DamagedRange]
    """Ranges in the middle of the log without a valid record; a repair covers them with placeholder records."""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "note"]
