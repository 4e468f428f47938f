"""The start of a store that dispatches for itself: the recovery of all its files.

If a job has built queues and index so far, they are taken back first: under the job's lock, so that none is at work,
and the terms of external dispatch go once everything is dispatched. A crash in between leaves them, and the next start
takes the queues back again. A view takes nothing, and only knows that a job was there.
"""

from __future__ import annotations

from penstock.store.external.terms import end_terms, is_external, take_job_lock
from penstock.store.recovery import Recovery, RecoveryReport, StartParts
from penstock.store.store_lock import StoreLock
from penstock.store.swap import finish_swap


class InlineStart:
    """Runs once, at open; raises StoreInUse if a job has queues and index in its hands."""

    def __init__(self, parts: StartParts) -> None:
        self._io = files = parts.engine.io
        self._layout = layout = parts.engine.layout
        external = is_external(files, layout)
        self._lock: StoreLock | None = None
        if external and not files.read_only:
            self._lock = parts.job_lock or take_job_lock(files, layout)
        try:
            finish_swap(files, layout)
            self._recovery = Recovery(parts, external=external)
        except BaseException:
            self.close()
            raise

    def look(self, clean_exit: bool) -> None:
        """As `Recovery.look`."""
        self._recovery.look(clean_exit)

    def act(self) -> RecoveryReport:
        """As `Recovery.act`; dispatch is inline afterwards."""
        report = self._recovery.act()
        if self._lock is not None:
            end_terms(self._io, self._layout)
        return report

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
