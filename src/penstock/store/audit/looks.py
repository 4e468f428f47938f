"""How often a store is looked at before a report of it can be believed, whoever does the looking.

    looks = Looks(files, layout)
    while looks.report is None:
        look = looks.begin()
        ...audit; then looks.take(look, report), or looks.lost(look, error) if a file was gone

A closed store is looked at once. Of a store in use an error counts if two looks have it: else it was the owner at work.
A store that somebody opened while it was taken for closed is looked at again, as one in use.
"""

from __future__ import annotations

import msgspec

from penstock.store.audit.report import AuditReport
from penstock.store.external.terms import is_external
from penstock.store.files import Files
from penstock.store.layout import Layout

_TRIES = 4


class Look(msgspec.Struct, frozen=True):
    """One look at a store, as it begins."""

    is_live: bool
    """Whether another process may be writing."""
    before: tuple[object, ...]
    """What no process can open and close a store without changing."""


class Looks:
    """All looks at one store; `report` is there once the last is done."""

    def __init__(self, files: Files, layout: Layout, *, in_use: bool | None = None) -> None:
        """`in_use` says whether another process may be writing; None asks the store's lock each time."""
        self._files = files
        self._layout = layout
        self._in_use = in_use
        self._begun = 0
        self._doubted: AuditReport | None = None
        self.report: AuditReport | None = None

    def begin(self) -> Look:
        """Begins one more look."""
        self._begun += 1
        if self._begun > _TRIES:
            return Look(True, ())
        owned = self._in_use
        if owned is None:  # a job may be building the queues of a store that only appends, or be going to
            owned = bool(self._files.lock_owner(self._layout.lock)) or is_external(self._files, self._layout)
        return Look(owned, self._state())

    def take(self, look: Look, seen: AuditReport) -> None:
        """Takes what a look has seen."""
        if self._begun > _TRIES:
            self.report = seen
        elif look.is_live and seen.errors:
            if self._doubted is not None:
                self.report = _confirmed(self._doubted, seen)
            self._doubted = seen
        elif look.is_live or self._in_use is False or self._state() == look.before:
            self.report = seen  # else somebody opened the store while it was taken for closed
        self._end_of_look()

    def lost(self, look: Look, error: FileNotFoundError) -> None:
        """Takes that a file was gone; raises the error unless an owner may have removed it."""
        if self._begun > _TRIES or (not look.is_live and self._state() == look.before):
            raise error
        self._end_of_look()

    def _end_of_look(self) -> None:
        if self.report is None and self._begun == _TRIES:
            self.report = self._doubted

    def _state(self) -> tuple[object, ...]:
        files, layout = self._files, self._layout
        checkpoint = files.modified_ms(layout.checkpoint) if files.exists(layout.checkpoint) else 0
        return files.lock_owner(layout.lock), files.exists(layout.abort), checkpoint


def _confirmed(first: AuditReport, second: AuditReport) -> AuditReport:
    """The second report with those of its errors that the first has too: the others were the owner at work."""
    known = {(finding.kind, finding.path, finding.offset) for finding in first.errors}
    real = [each for each in second.findings if each.severity == "note" or (each.kind, each.path, each.offset) in known]
    return msgspec.structs.replace(second, findings=real)
