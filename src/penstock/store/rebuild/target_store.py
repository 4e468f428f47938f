"""The store that a repair or a rebuild works on: a locked store, or a view for a dry run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import BadStore, StoreInUse, disk_refused
from penstock.store.damage_and_quarantine import MayExceed, Quarantine
from penstock.store.external_dispatch.files_shared_with_job import acquire_job_lock, is_external, refuse_while_job_runs
from penstock.store.files.atomic_files import finish_swap
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import RehearsalFiles
from penstock.store.files.layout import Layout, allow_many_files
from penstock.store.files.lock import HeldLocks, StoreLock
from penstock.store.message_store import MessageStore
from penstock.store.readonly.infer_file_sizes import fit_to_damaged
from penstock.store.readonly.store_folder import no_store
from penstock.store.rebuild.report import Progress
from penstock.store.recovery.log import complete_interrupted_batch
from penstock.store.settings import Settings
from penstock.store.sink.recovery import resolve_pending_batch


class TargetStore(msgspec.Struct, frozen=True):
    """A store to repair or rebuild: its files, settings, quarantine and locks."""

    files: Files
    layout: Layout
    settings: Settings
    index_problem: str
    clock: Callable[[], int]
    quarantine: Quarantine
    may_exceed: MayExceed
    locks: HeldLocks
    """The held locks; none in a dry run. The lock of external dispatch is held only if dispatch is external."""

    @property
    def dry_run(self) -> bool:
        return self.files.read_only

    def mark_unclean(self) -> None:
        """Creates `abort`: if the process is killed now, the next start recovers the store as after a crash."""
        self.files.replace_bytes(self.layout.abort, b"")

    @property
    def closed_cleanly(self) -> bool:
        return not self.files.exists(self.layout.abort)

    def mark_clean(self) -> None:
        """Removes `abort`: the next start treats the store as cleanly closed."""
        self.files.unlink(self.layout.abort)
        self.files.sync_folder(self.layout.root)

    def open(self, progress: Progress, *, bodies_checked: bool = False) -> MessageStore:
        """Starts the store, including its recovery. Raises BadStore or StoreFailed.

        With `bodies_checked`, recovery does not check the CRCs again. Callers must have checked all of them, and no
        bytes may follow the end of the log.
        """
        settings = self.settings.with_changes(check_crc_on_recover=False) if bodies_checked else self.settings
        return MessageStore.open(
            self.layout.root,
            settings,
            read_only=self.dry_run,
            clock=self.clock,
            files=self.files,
            locks=self.locks.lend(),
            progress=lambda step: progress(step.phase, step.done, step.total),
            may_exceed=self.may_exceed,
        )


@contextlib.contextmanager
def open_target(
    folder: str | Path,
    settings: Settings | None,
    *,
    dry_run: bool,
    files: Files | None,
    clock: Callable[[], int],
    may_exceed: MayExceed,
) -> Iterator[TargetStore]:
    """Yields the store in `folder`, and holds its lock. If dispatch is external, also holds the job's lock.

    A dry run holds no lock. Raises BadStore if there is no store, StoreInUse if another process has it open,
    StoreFailed if the disk fails.
    """
    root = Path(folder)
    settings = settings or Settings()
    layout = Layout.of(root, settings)
    real = files or Files()
    if not root.is_dir() or not any(each.exists() for each in (layout.commit_log, layout.consume_queue, layout.lock)):
        raise no_store(root)
    allow_many_files()
    lock: StoreLock | None = None
    job_lock: StoreLock | None = None
    if dry_run:
        if real.lock_owner(layout.lock):
            raise StoreInUse("the store is in use by another process; stop it first", path=root)
        refuse_while_job_runs(real, layout)
        real = RehearsalFiles()
    else:
        lock = real.lock(layout.lock)
    try:
        if lock is not None and is_external(real, layout):  # otherwise a job refuses to start
            job_lock = acquire_job_lock(real, layout)
        finish_swap(real, layout)
        fitted = fit_to_damaged(settings, real, layout)
        with contextlib.suppress(BadStore):  # the start at the end does it, once the log files have the right sizes
            resolve_pending_batch(real, layout, fitted.settings.mapped_file_size_commit_log)
            if not dry_run:
                complete_interrupted_batch(real, layout, fitted.settings.mapped_file_size_commit_log)
        max_bytes = settings.quarantine_max_bytes
        quarantine = Quarantine(real, layout.quarantine, clock, max_bytes=max_bytes, may_exceed=may_exceed)
        yield TargetStore(
            real,
            layout,
            fitted.settings,
            fitted.index_problem,
            clock,
            quarantine,
            may_exceed,
            HeldLocks(lock, job_lock),
        )
    except OSError as error:
        raise disk_refused("cannot continue", Path(error.filename or root), 0, error) from error
    finally:
        for held in (job_lock, lock):
            if held is not None:
                held.release()
