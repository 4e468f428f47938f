"""The store that a repair or a rebuild works on: owned, with sizes that fit its files, or rehearsed on a view."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import BadStore, StoreInUse
from penstock.store.descriptors import allow_many_files
from penstock.store.disk_errors import disk_refused
from penstock.store.external.terms import is_external, refuse_while_job_runs, take_job_lock
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.quarantine import MayExceed, Quarantine
from penstock.store.repair.rehearsal import RehearsalFiles
from penstock.store.repair.report import Progress
from penstock.store.repair.sizes import fit_sizes
from penstock.store.settings import Settings
from penstock.store.sink.finish import finish_batch
from penstock.store.store import MessageStore
from penstock.store.store_lock import HeldLocks, StoreLock
from penstock.store.swap import finish_swap


class Place(msgspec.Struct, frozen=True):
    """A store's folder, and what is needed to work on it."""

    files: Files
    layout: Layout
    settings: Settings
    index_problem: str
    clock: Callable[[], int]
    quarantine: Quarantine
    may_exceed: MayExceed
    locks: HeldLocks
    """None in a rehearsal; that of external dispatch only if queues and index were in the hands of a job so far."""

    @property
    def dry_run(self) -> bool:
        return self.files.read_only

    def mark_unclean(self) -> None:
        """From now on the store is not what the last close left: a start that comes in between recovers it."""
        self.files.replace_bytes(self.layout.abort, b"")

    @property
    def closed_cleanly(self) -> bool:
        return not self.files.exists(self.layout.abort)

    def mark_clean(self) -> None:
        """The store is what a clean close leaves, as it was before `mark_unclean`."""
        self.files.unlink(self.layout.abort)
        self.files.sync_folder(self.layout.root)

    def open(self, progress: Progress, *, were_bodies_checked: bool = False) -> MessageStore:
        """The store itself, by a start as any other; its recovery runs. Raises BadStore or StoreFailed.

        If all bodies were checked just now, up to an end behind which nothing was written, it does not check them once
        more; all else of each record it does.
        """
        settings = self.settings.with_changes(check_crc_on_recover=False) if were_bodies_checked else self.settings
        return MessageStore.open(
            self.layout.root,
            settings,
            read_only=self.dry_run,
            clock=self.clock,
            files=self.files,
            locks=self.locks.lend(),
            progress=lambda told: progress(told.phase, told.done, told.total),
            may_exceed=self.may_exceed,
        )


@contextlib.contextmanager
def own(
    folder: str | Path,
    settings: Settings | None,
    *,
    dry_run: bool,
    files: Files | None,
    clock: Callable[[], int],
    may_exceed: MayExceed,
) -> Iterator[Place]:
    """Takes the store's lock until the end; and that of external dispatch, so that no job starts meanwhile.

    Raises BadStore if there is no store, StoreInUse if somebody has it, StoreFailed if the disk refuses what is done.
    """
    root = Path(folder)
    settings = settings or Settings()
    layout = Layout.of(root, settings)
    real = files or Files()
    if not root.is_dir() or not any(each.exists() for each in (layout.commit_log, layout.consume_queue, layout.lock)):
        raise BadStore("there is no store here; check the path", path=root)
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
        if lock is not None and is_external(real, layout):  # else a job refuses, and only a start changes that
            job_lock = take_job_lock(real, layout)
        finish_swap(real, layout)
        fitted = fit_sizes(settings, real, layout)
        with contextlib.suppress(BadStore):  # the start at the end does it, when the log's files have their shape
            finish_batch(real, layout, fitted.settings.mapped_file_size_commit_log)
        most = settings.quarantine_max_bytes
        quarantine = Quarantine(real, layout.quarantine, clock, max_bytes=most, may_exceed=may_exceed)
        yield Place(
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
        raise disk_refused("cannot go on", Path(error.filename or root), 0, error) from error
    finally:
        for held in (job_lock, lock):
            if held is not None:
                held.release()
