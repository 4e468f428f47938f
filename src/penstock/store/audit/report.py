"""What an audit says in the end: findings, figures, and the ranges of the log that are damaged."""

from __future__ import annotations

import msgspec

from penstock.store.audit.finding import Finding
from penstock.store.damage import DamagedRange


class Figures(msgspec.Struct, frozen=True):
    """What was looked at."""

    log_begin: int = 0
    log_end: int = 0
    log_files: int = 0
    records: int = 0
    messages: int = 0
    """Records that belong into a queue."""
    record_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_items: int = 0
    keys: int = 0
    in_use: bool = False
    closed_cleanly: bool = True
    crc_checked: bool = True


class AuditReport(msgspec.Struct, frozen=True):
    """The outcome of an audit."""

    findings: list[Finding]
    figures: Figures
    damage: list[DamagedRange]
    """Ranges in the middle of the log without a valid record: what a repair puts records over."""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def notes(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "note"]
