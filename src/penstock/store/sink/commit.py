"""Stages rows in files, and commits a batch of them: the batch is appended to a store completely and once.

Staging writes parts, files with some rows of a batch, under `penstock/sink/staged/`, one folder for each run of a
write. The caller defines the content of a part. Any number of processes may stage at a time, also while the store is in
use; staging changes nothing else in the store. A part is complete and synced before its name is returned. Names are
random, so a retry never meets the files of an earlier try. A commit removes the parts of earlier runs of its query or
write, and all parts older than a week.

`commit` owns the store from beginning to end; writers commit one after the other. It creates new topics in
`config/topics.json` before it appends: a topic without messages is harmless, but messages without a topic would stay
invisible until a broker's next start. An error after the append began rolls the batch back at once if the disk allows
it, else at the next open. A process may run one commit at a time.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.clock import now_ms
from penstock.errors import BadMessage, CorruptData, PenstockError, StoreFailed, StoreInUse, disk_refused
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import DLQ_PREFIX, RETRY_PREFIX
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout, path_below
from penstock.store.files.lock import HeldLocks, StoreLock
from penstock.store.message_store import MessageStore
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.sink.journal import (
    BatchMark,
    Identity,
    Intent,
    Journal,
    WriterKind,
    check_mark_readable,
    find_mark,
    read_journal,
    remove_mark,
    remove_old_marks,
    write_journal,
    write_mark,
)
from penstock.store.sink.recovery import resolve_pending_batch

if TYPE_CHECKING:
    import pyarrow as pa

ABANDONED_MS: Final = 7 * 24 * 3_600_000


# -- staging ---------------------------------------------------------------------------------------------------------


class StagedFile(msgspec.Struct, frozen=True):
    """One part: the name of a staged file, and the size and CRC of its content."""

    name: str
    size: int
    crc: int


def staging_folder(identity: Identity, run: str) -> str:
    """Returns the name of the folder in which the run `run` stages a batch."""
    return f"{identity.key}-{run}"


def stage(files: Files, layout: Layout, folder: str, name: str, data: bytes | memoryview) -> StagedFile:
    """Writes a part and syncs it. Raises StoreFailed; the part then does not exist."""
    path = path_below(layout.sink_staged, folder, f"{name}-{secrets.token_hex(8)}")
    files.replace_bytes(path, data)
    return StagedFile(path.name, len(data), zlib.crc32(data))


def read_part(files: Files, layout: Layout, folder: str, part: StagedFile) -> bytes:
    """Returns the content of a part. Raises CorruptData if the part has changed or is missing."""
    path = path_below(layout.sink_staged, folder, part.name)
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        raise CorruptData(
            "staged rows are missing; driver and executors must see the store's folder under the same path", path=path
        ) from None
    if len(data) != part.size or zlib.crc32(data) != part.crc:
        raise CorruptData(
            "staged rows have changed since they were written",
            path=path,
            expected=f"{part.size} bytes with checksum {part.crc}",
            found=f"{len(data)} bytes with checksum {zlib.crc32(data)}",
        )
    return data


def remove_staged(files: Files, layout: Layout, folder: str) -> None:
    """Removes the folder of one batch. Raises OSError."""
    staged = path_below(layout.sink_staged, folder)
    for name in files.names(staged):
        files.unlink(path_below(staged, name))
    files.remove_folder(staged)


def clear_staged(files: Files, layout: Layout, identity: Identity, now: int) -> None:
    """Removes the folders that any run staged for this query or write, and folders older than a week.

    Callers must commit first. Raises OSError.
    """
    for folder in files.names(layout.sink_staged):
        is_abandoned = files.modified_ms(path_below(layout.sink_staged, folder)) < now - ABANDONED_MS
        if is_abandoned or folder.startswith(f"{identity.key}-"):
            remove_staged(files, layout, folder)


# -- topics ----------------------------------------------------------------------------------------------------------

_MAY_WRITE: Final = 2


class TopicQueues(msgspec.Struct, frozen=True):
    """How many queues each topic has. Can be pickled."""

    known: dict[str, int]
    """Number of writable queues by topic; 0 if the topic is not writable."""
    new_topic_queues: int

    def count(self, topic: str) -> int:
        """Returns the number of writable queues; for a new topic, the number that it will get.

        Raises BadMessage if the topic is not writable.
        """
        count = self.known.get(topic)
        if count is None:
            return 1 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else self.new_topic_queues
        if not count:
            raise BadMessage(f"topic '{topic}' is not writable; change its perm in config/topics.json")
        return count

    def check(self, topic: str, queue_id: int) -> None:
        """Raises BadMessage if the topic does not have this queue."""
        count = self.count(topic)
        if not 0 <= queue_id < count:
            default = "" if topic in self.known else " (defaultTopicQueueNums)"
            raise BadMessage(f"topic '{topic}' has {count} queues{default}; queue {queue_id} does not exist")


def read_topic_queues(files: Files, layout: Layout, new_topic_queues: int) -> TopicQueues:
    """Reads `config/topics.json`. Raises BadStore if it cannot be read."""
    topics = ConfigFiles(files, layout.config).topics.read().table.topics
    known = {topic.name: topic.write_queue_nums if topic.perm & _MAY_WRITE else 0 for topic in topics.values()}
    return TopicQueues(known, new_topic_queues)


def create_topics(files: Files, layout: Layout, used: Mapping[str, int], new_topic_queues: int, now: int) -> None:
    """Creates the topics of `used` that do not exist. `used`: by topic, the highest queue id in the batch.

    Raises BadMessage if a topic has too few queues, BadStore or StoreFailed if the table cannot be read or written.
    """
    queues = read_topic_queues(files, layout, new_topic_queues)
    for topic, highest in used.items():
        queues.check(topic, highest)
    new = sorted(used.keys() - queues.known.keys())
    if new:
        file = ConfigFiles(files, layout.config).topics
        table = file.read().table
        for topic in new:
            count = queues.count(topic)
            table.topics[topic] = TopicConfig(name=topic, read_queue_nums=count, write_queue_nums=count)
        table.version = table.version.next(now)
        file.write(table)


# -- committing ------------------------------------------------------------------------------------------------------

WAIT_SECONDS: Final = 60.0
"""How many seconds a commit waits for other writers."""
_POLL_SECONDS: Final = 0.02
_FOR_EVER_HOURS: Final = 2**31 - 1
ReadRows = Callable[[int], Iterable["pa.RecordBatch"]]
"""Returns the rows of a batch for `MessageStore.put_arrow`; its argument becomes the born timestamp of every row."""


class SinkBatch(msgspec.Struct, frozen=True):
    """Describes the batch to store."""

    identity: Identity
    rows: int
    queues: Mapping[str, int]
    """The highest queue id used, by topic."""
    new_topic_queues: int
    """How many queues a new topic gets."""


class CommitResult(msgspec.Struct, frozen=True):
    """Physical offsets of the batch's start and end, and whether an earlier commit had stored it.

    Both are 0 for a batch without rows.
    """

    start: int
    end: int
    already_stored: bool


def is_owned_by_others(files: Files, layout: Layout) -> bool:
    """Whether a process other than a committing writer, for example a broker, has the store open."""
    # Checked twice, because a commit may end between the reads of the two locks.
    return all(files.lock_owner(layout.lock) and not files.lock_owner(layout.sink_lock) for _ in range(2))


def commit(
    root: Path,
    settings: Settings,
    batch: SinkBatch,
    read: ReadRows,
    *,
    files: Files | None = None,
    clock: Callable[[], int] = now_ms,
) -> CommitResult:
    """Stores a batch, or does nothing if its mark shows that it is stored. Removes its staged files in both cases.

    `settings` must match the store's files; a missing store is created with them. Raises BadMessage, CorruptData,
    BadStore or StoreFailed; StoreInUse if another process owns the store. After an error no row of the batch is stored,
    and its staged files stay. The one exception says so: if the disk fails while the mark is written, it may be unknown
    whether the batch is stored. In any case the same batch can be committed again, and is stored once.
    """
    files = files or Files()
    layout = Layout.of(root, settings)
    try:
        with _store_locked(files, layout) as lock:
            resolve_pending_batch(files, layout, settings.mapped_file_size_commit_log)
            check_mark_readable(files, layout, batch.identity)
            mark = find_mark(files, layout, batch.identity)
            if mark is not None:
                outcome = CommitResult(mark.start, mark.end, already_stored=True)
            elif batch.rows:
                outcome = _append(files, layout, settings, batch, read, clock, lock)
            else:
                outcome = CommitResult(0, 0, already_stored=False)
                if batch.identity.kind is WriterKind.WRITE:
                    write_mark(files, layout, BatchMark(batch.identity, 0, 0, 0))
            with contextlib.suppress(OSError):  # a later commit removes what stays
                if batch.identity.kind is WriterKind.ONCE and not _is_pending(files, layout):
                    remove_mark(files, layout, batch.identity)
                clear_staged(files, layout, batch.identity, now_ms())
                remove_old_marks(files, layout)
            return outcome
    except OSError as error:
        raise disk_refused("cannot store the batch", Path(error.filename or root), 0, error) from error


@contextlib.contextmanager
def _store_locked(files: Files, layout: Layout) -> Iterator[StoreLock]:
    """Waits for the lock of the writers, then acquires the lock of the store. Raises StoreInUse."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            turn = files.lock(layout.sink_lock)
            break
        except StoreInUse:
            if time.monotonic() > deadline:
                raise StoreInUse(
                    f"other writers have held the store for {WAIT_SECONDS:g} seconds; try again when they are done",
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
    batch: SinkBatch,
    read: ReadRows,
    clock: Callable[[], int],
    lock: StoreLock,
) -> CommitResult:
    create_topics(files, layout, batch.queues, batch.new_topic_queues, clock())

    def open_store() -> MessageStore:
        locks = HeldLocks(store=lock.lend())
        return MessageStore.open(layout.root, _batch_settings(settings), files=files, clock=clock, locks=locks)

    outcome: CommitResult | None = None
    try:
        with open_store() as store:
            outcome = _append_all(store, files, layout, batch, read, clock())
    except BaseException as error:
        with contextlib.suppress(PenstockError):
            open_store().close()  # rolls back the pending batch, or completes it if it has a mark
        if outcome is None or not isinstance(error, (PenstockError, OSError)):
            raise
    return outcome


def _append_all(
    store: MessageStore, files: Files, layout: Layout, batch: SinkBatch, read: ReadRows, now: int
) -> CommitResult:
    queue = store.log.queue
    start = queue.wrote_offset if queue.files else queue.flushed_where
    before = read_journal(files, layout) or Journal()
    journal = Journal(Intent(batch.identity, start, now, batch.rows), before.spans)
    write_journal(files, layout, journal)
    store.dispatcher.hold(start)  # a job shall not build what may be rolled back
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
    if store.watermarks.flushed < end:
        raise StoreFailed(f"{batch.identity} was not stored: the log is not on disk; write it again", path=layout.root)
    _mark_stored(files, layout, BatchMark(batch.identity, start, end, batch.rows), journal.committed(end))
    store.dispatcher.hold(None)
    return CommitResult(start, end, already_stored=False)


def _mark_stored(files: Files, layout: Layout, mark: BatchMark, done: Journal) -> None:
    """Makes a batch that is on disk count as stored. Raises StoreFailed if it does not count, or if that is unknown.

    The mark is enough: with it the next open updates the journal. If the mark is there, but its name may not be on
    disk, the journal makes the batch last.
    """
    try:
        write_mark(files, layout, mark)
    except StoreFailed:
        if not _may_be_marked(files, layout, mark.identity):
            raise
        try:
            write_journal(files, layout, done)
        except StoreFailed as error:
            raise StoreFailed(
                f"it is unknown whether {mark.identity} is stored; write it again, it is stored once",
                path=layout.sink_journal,
            ) from error
        return
    with contextlib.suppress(StoreFailed):
        write_journal(files, layout, done)


def _may_be_marked(files: Files, layout: Layout, identity: Identity) -> bool:
    try:
        return find_mark(files, layout, identity) is not None
    except OSError:
        return True


def _is_pending(files: Files, layout: Layout) -> bool:
    """Whether the journal still holds the batch: without its mark, the next open would roll it back. Raises OSError."""
    journal = read_journal(files, layout)
    return journal is None or journal.pending is not None


def _batch_settings(settings: Settings) -> Settings:
    """Returns settings with minimal background work: one sync at the end, no preallocation, no deletion."""
    return settings.with_changes(
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        transient_store_pool_enable=False,
        pre_allocate_files=False,
        warm_mapped_file_enable=False,
        file_reserved_time=_FOR_EVER_HOURS,
        clean_file_forcibly_enable=False,
    )
