"""Appends a whole batch of staged rows to a store, once.

Owns the store from the first look to the end; batches of several writers come one after the other. What is raised after
the append was begun has the batch rolled back at once, as far as the disk allows, and by the next open otherwise.
Threads: one commit at a time in a process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.clock import now_ms
from penstock.errors import CorruptData, PenstockError, StoreFailed, StoreInUse
from penstock.store.disk_errors import disk_refused
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.sink.finish import finish_batch
from penstock.store.sink.journal import Intent, Journal, read_journal, write_journal
from penstock.store.sink.marks import (
    Identity,
    Kind,
    Mark,
    check_readable,
    find_mark,
    remove_mark,
    remove_old_marks,
    write_mark,
)
from penstock.store.sink.staged import clear_staged
from penstock.store.sink.topics import make_topics
from penstock.store.store import MessageStore
from penstock.store.store_lock import HeldLocks, StoreLock

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_SECONDS: Final = 60.0
"""How long a commit waits for those of others."""
_POLL_SECONDS: Final = 0.02
_FOR_EVER_HOURS: Final = 2**31 - 1

Read = Callable[[int], Iterable["pa.RecordBatch"]]
"""Gives the rows of a batch, as `MessageStore.put_arrow` takes them, all born at the time that it is called with."""


class Batch(msgspec.Struct, frozen=True):
    """What is to be stored."""

    identity: Identity
    rows: int
    queues: Mapping[str, int]
    """The topics that are written to, with the highest queue id of each."""
    of_new_topics: int
    """How many queues a topic gets that is new."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a batch: where it lies, and whether that was so before."""

    start: int
    end: int
    was_there: bool


def is_owned_by_others(files: Files, layout: Layout) -> bool:
    """Whether somebody has the store open who does not commit batches, as a broker has."""
    # Asked twice: between two questions a commit may have ended.
    return all(files.lock_owner(layout.lock) and not files.lock_owner(layout.sink_lock) for _ in range(2))


def commit(
    root: Path,
    settings: Settings,
    batch: Batch,
    read: Read,
    *,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
) -> Outcome:
    """Stores a batch, unless its mark says that it is stored; what was staged for it is removed.

    `settings` must fit the store's files; a store that does not exist is made with them. Raises StoreInUse if somebody
    else owns the store, BadMessage, CorruptData, BadStore or StoreFailed: nothing of the batch is stored then.
    """
    files = files or Files()
    layout = Layout.of(root, settings)
    try:
        with _owned(files, layout) as lock:
            finish_batch(files, layout, settings.mapped_file_size_commit_log)
            check_readable(files, layout, batch.identity)
            mark = find_mark(files, layout, batch.identity)
            if mark is not None:
                outcome = Outcome(mark.start, mark.end, was_there=True)
            elif batch.rows:
                outcome = _append(files, layout, settings, batch, read, clock, lock)
            else:
                outcome = Outcome(0, 0, was_there=False)
                if batch.identity.kind is Kind.WRITE:
                    write_mark(files, layout, Mark(batch.identity, 0, 0, 0))
            with contextlib.suppress(OSError):  # what stays is removed by a later commit
                if batch.identity.kind is Kind.ONCE:
                    remove_mark(files, layout, batch.identity)
                clear_staged(files, layout, batch.identity, now_ms())
                remove_old_marks(files, layout)
            return outcome
    except OSError as error:
        raise disk_refused("cannot store the batch", Path(error.filename or root), 0, error) from error


@contextlib.contextmanager
def _owned(files: Files, layout: Layout) -> Iterator[StoreLock]:
    """Takes the lock of those who commit, waiting for it, and then the store's own. Raises StoreInUse."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            turn = files.lock(layout.sink_lock)
            break
        except StoreInUse:
            if time.monotonic() > deadline:
                raise StoreInUse(
                    f"other writers have kept the store for {WAIT_SECONDS:g} seconds; try again when they are done",
                    path=layout.root,
                ) from None
            time.sleep(_POLL_SECONDS)
    try:
        lock = files.lock(layout.lock)
        try:
            yield lock
        finally:
            lock.release()
    finally:
        turn.release()


def _append(
    files: Files,
    layout: Layout,
    settings: Settings,
    batch: Batch,
    read: Read,
    clock: Callable[[], int],
    lock: StoreLock,
) -> Outcome:
    make_topics(files, layout, batch.queues, batch.of_new_topics, clock())

    def open_store() -> MessageStore:
        locks = HeldLocks(store=lock.lend())
        return MessageStore.open(layout.root, _for_batches(settings), files=files, clock=clock, locks=locks)

    try:
        with open_store() as store:
            return _append_all(store, files, layout, batch, read, clock())
    except BaseException:
        with contextlib.suppress(PenstockError):
            open_store().close()  # which rolls back what is pending
        raise


def _append_all(store: MessageStore, files: Files, layout: Layout, batch: Batch, read: Read, now: int) -> Outcome:
    queue = store.log.queue
    start = queue.wrote_offset if queue.files else queue.flushed_where
    before = read_journal(files, layout) or Journal()
    journal = Journal(Intent(batch.identity, start, now, batch.rows), before.spans)
    write_journal(files, layout, journal)
    stored = 0
    for rows in read(now):
        result = store.put_arrow(rows)
        if not result.ok:
            raise StoreFailed(f"{batch.identity} was not stored: {result.reason}; write it again", path=layout.root)
        stored += result.count
    if stored != batch.rows:
        raise CorruptData("staged rows are missing", path=layout.sink_staged, expected=batch.rows, found=stored)
    store.flush()
    end = queue.wrote_offset
    if store.flushed_offset < end:
        raise StoreFailed(f"{batch.identity} was not stored: the log is not on disk; write it again", path=layout.root)
    write_mark(files, layout, Mark(batch.identity, start, end, batch.rows))
    write_journal(files, layout, journal.ended(end))
    return Outcome(start, end, was_there=False)


def _for_batches(settings: Settings) -> Settings:
    """As little beside the append as can be: one sync at the end, no file ahead of need, and nothing is deleted."""
    return settings.with_changes(
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        transient_store_pool_enable=False,
        pre_allocate_files=False,
        warm_mapped_file_enable=False,
        file_reserved_time=_FOR_EVER_HOURS,
        clean_file_forcibly_enable=False,
    )
