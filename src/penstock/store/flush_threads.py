"""Which threads bring the log of one store to disk, by its flushDiskType and whether it has a transient pool."""

from __future__ import annotations

from penstock.store.commit_log import CommitLog
from penstock.store.dispatch import Dispatcher
from penstock.store.flush import GroupCommit, Syncer, TimedCommit, TimedFlush
from penstock.store.prefault import Prefaulter
from penstock.store.settings import FlushDiskType, Settings
from penstock.store.worker import Worker


def make_flush_threads(
    settings: Settings, log: CommitLog, syncer: Syncer, dispatcher: Dispatcher
) -> tuple[list[Worker], GroupCommit | None]:
    """The threads, in the order in which to start and stop them, and the one that puts wait for, if they do."""
    if settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
        group_commit = GroupCommit(log.queue, syncer)
        return [group_commit], group_commit
    threads: list[Worker] = []
    flush = TimedFlush(settings, syncer)
    if settings.transient_pool_active:

        def committed() -> None:
            flush.wake()
            dispatcher.wake()

        threads.append(TimedCommit(settings, log.queue, committed))
    elif not settings.flush_commit_log_timed:
        dispatcher.on_advance(flush.wake)
    threads.append(flush)
    if Prefaulter.suits(settings.mapped_file_size_commit_log):
        prefaulter = Prefaulter(log.queue)
        log.on_page_need(prefaulter.wake)
        threads.append(prefaulter)
    return threads, None
