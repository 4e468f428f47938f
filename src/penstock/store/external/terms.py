"""The terms of external dispatch: `penstock/dispatch.json`, and the lock of the job.

The file is there while dispatch is external. It holds what the job needs to know of the store's settings, so that it
needs none of its own. Only who holds the job's lock makes or removes it, so a job that has the lock and finds the file
knows that no store dispatches for itself; the store that only appends merely replaces it with one that says the same
or more. A crash leaves the old one or the new one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.errors import BadStore, StoreInUse
from penstock.store.dispatch_state import FileSizes, read_state
from penstock.store.external.marks import read_mark
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.sealed_json import read_sealed, write_sealed
from penstock.store.settings import Settings
from penstock.store.store_lock import StoreLock


class Terms(msgspec.Struct, frozen=True):
    """What queues and index are built by."""

    sizes: FileSizes
    delay_levels: str
    index: bool
    commit_log: str
    """The log's folder, empty if it is in the store's."""

    @classmethod
    def of(cls, settings: Settings) -> Terms:
        return cls(
            FileSizes.of(settings),
            settings.message_delay_level,
            settings.message_index_enable,
            str(settings.store_path_commit_log or ""),
        )

    def settings(self, root: Path) -> Settings:
        """The settings of the job."""
        return Settings(
            store_path_root_dir=root,
            store_path_commit_log=Path(self.commit_log) if self.commit_log else None,
            mapped_file_size_commit_log=self.sizes.commit_log,
            mapped_file_size_consume_queue=self.sizes.consume_queue,
            max_hash_slot_num=self.sizes.hash_slots,
            max_index_num=self.sizes.index_items,
            message_delay_level=self.delay_levels,
            message_index_enable=self.index,
        )


def read_terms(files: Files, layout: Layout) -> Terms | None:
    """None if dispatch is inline, or the file is garbage."""
    return read_sealed(files, layout.dispatch_terms, Terms)


def needed_terms(files: Files, layout: Layout) -> Terms:
    """Raises BadStore where there are none."""
    terms = read_terms(files, layout)
    if terms is None:
        raise BadStore(
            "the queues of this store are built by the store itself; start it with dispatch=external first",
            path=layout.root,
        )
    return terms


def is_external(files: Files, layout: Layout) -> bool:
    """Whether queues and index were last in the hands of a job."""
    return files.exists(layout.dispatch_terms)


def agree(files: Files, layout: Layout, terms: Terms) -> None:
    """Raises StoreFailed, and then the old file is still there."""
    if read_terms(files, layout) != terms:
        write_sealed(files, layout.dispatch_terms, terms)


def end_terms(files: Files, layout: Layout) -> None:
    """Dispatch is inline from now on: the marks go, and the terms last. Raises OSError, and can be done again."""
    for path in (layout.dispatch_end, layout.dispatch_done, layout.dispatch_terms):
        if files.exists(path):
            files.unlink(path)
    files.sync_folder(layout.dispatch_terms.parent)


def built_position(files: Files, layout: Layout) -> int:
    """Up to where queues and index can be relied on: what the job told, if the machine runs on since; else its note."""
    state, done = read_state(files, layout.dispatched), read_mark(files, layout.dispatch_done)
    position = 0 if state is None else state.position
    return max(position, done.position) if done is not None and done.is_of_this_boot else position


def take_job_lock(files: Files, layout: Layout) -> StoreLock:
    """Makes queues and index this process's own. Raises StoreInUse with one sentence while somebody else has them."""
    try:
        return files.lock(layout.dispatch_lock)
    except StoreInUse:
        raise _has_job(files, layout) from None


def _has_job(files: Files, layout: Layout) -> StoreInUse:
    owner = files.lock_owner(layout.dispatch_lock)
    who = f" (process {owner})" if owner > 0 else ""
    return StoreInUse(
        f"a `penstock pipeline dispatch` job, or a repair{who}, "
        "has the queues and the index of this store in its hands; "
        "wait for it, or stop it first",
        path=layout.root,
    )


def refuse_while_job_runs(files: Files, layout: Layout) -> None:
    """Raises StoreInUse if somebody has queues and index in its hands: for who only looks."""
    if files.exists(layout.dispatch_lock) and files.lock_owner(layout.dispatch_lock):
        raise _has_job(files, layout)
