"""The start of a store that dispatches itself, also of one whose queues an external dispatch job has built so far."""

from __future__ import annotations

from penstock.store.external_dispatch.files_shared_with_job import acquire_job_lock, is_external, remove_agreement
from penstock.store.files.atomic_files import finish_swap
from penstock.store.files.lock import StoreLock
from penstock.store.recovery import RecoveryReport, StartParts
from penstock.store.recovery.recovery import Recovery


class InlineStart:
    """Full recovery, once, before any other thread exists.

    If an external dispatch job built queues and index so far, the start first acquires the job's lock, so that no job
    runs. Once everything is dispatched, it removes the agreement (`dispatch.json`). After a crash in between, the next
    start repeats both steps. A read-only view takes no lock. Raises StoreInUse if a job is running.
    """

    def __init__(self, parts: StartParts) -> None:
        self._io = files = parts.engine.io
        self._layout = layout = parts.engine.layout
        external = is_external(files, layout)
        self._lock: StoreLock | None = None
        if external and not files.read_only:
            self._lock = parts.job_lock or acquire_job_lock(files, layout)
        try:
            finish_swap(files, layout)
            self._recovery = Recovery(parts, external=external)
        except BaseException:
            self.close()
            raise

    def inspect(self, clean_exit: bool) -> None:
        """See `Recovery.inspect`."""
        self._recovery.inspect(clean_exit)

    def apply(self) -> RecoveryReport:
        """Runs `Recovery.apply`. Afterwards this store dispatches, no longer a job."""
        report = self._recovery.apply()
        if self._lock is not None:
            remove_agreement(self._io, self._layout)
        return report

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
