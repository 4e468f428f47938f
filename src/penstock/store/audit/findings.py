"""One thing that an audit found, and how many of them become one.

A finding is a value: it may be pickled, sent to another process, written as JSON. Its kind is a short stable name from
`kinds.py`. Findings of one kind that follow each other are one finding with a count, so that a store whose every unit
is wrong does not fill the memory.


What an audit says in the end: findings, figures, and the ranges of the log that are damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from penstock.store.damage import DamagedRange

Severity = Literal["error", "note"]


class Finding(msgspec.Struct, frozen=True):
    """What is wrong, or worth knowing, where, and what to do about it."""

    severity: Severity
    kind: str
    path: str
    """The file or folder."""
    offset: int | None
    """Byte position in the file, where there is one."""
    what: str
    """One sentence."""
    messages: int | None
    """How many messages it concerns, if that is known."""
    remedy: str


class FindingKind(msgspec.Struct, frozen=True):
    """A kind of finding: its name, how bad it is, what it means and what helps."""

    name: str
    severity: Severity
    meaning: str
    remedy: str

    def at(
        self, path: Path | str, what: str, *, offset: int | None = None, messages: int | None = None, remedy: str = ""
    ) -> Finding:
        return Finding(self.severity, self.name, str(path), offset, what, messages, remedy or self.remedy)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by place; what was found twice is there once."""
    return sorted(
        dict.fromkeys(findings),
        key=lambda each: (each.severity, each.path, -1 if each.offset is None else each.offset, each.kind, each.what),
    )


class Collector:
    """Takes findings up to a limit for each kind; the rest is counted, and said in one finding of that kind."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: list[Finding] = []
        self._count: Counter[str] = Counter()
        self._last: dict[str, Finding] = {}

    def add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._count[finding.kind] += 1
            self._last[finding.kind] = finding
            if self._count[finding.kind] <= self._limit:
                self._taken.append(finding)

    def findings(self) -> list[Finding]:
        return in_order([*self._taken, *self._rest()])

    def _rest(self) -> Iterable[Finding]:
        for kind, count in self._count.items():
            if count > self._limit:
                more = (
                    f"{count - self._limit} more of this kind were found and are not listed; this is where the last is"
                )
                yield msgspec.structs.replace(self._last[kind], what=more, messages=None)


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
