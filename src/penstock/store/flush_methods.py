"""What MessageStore offers to callers that must not wait for the disk, as an event loop must not.

`append` answers at once, and `get_dispatched` does not dispatch, which may have to make a file. Under SYNC_FLUSH a
message is as safe as that promises when `flushed_offset` has reached the answer's `end_offset`; `on_flush` says when to
look. One look answers for all messages that one sync brought to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import StoreFailed
from penstock.store.commit_log import CommitLog
from penstock.store.flush import FlushFailed, Syncer
from penstock.store.get import Getter
from penstock.store.layout import Layout
from penstock.store.message import Message
from penstock.store.put import Putter
from penstock.store.statistics import Statistics
from penstock.store.status import BatchResult, Page, PutResult
from penstock.store.tag_filter import TagFilter


class FlushMethods:
    """The part of MessageStore that knows about the way to disk."""

    log: CommitLog
    layout: Layout
    statistics: Statistics
    _getter: Getter
    _syncer: Syncer
    _flush_listeners: list[Callable[[], object]]

    def _open_putter(self) -> Putter:
        raise NotImplementedError("the store says who puts")

    def _check_open(self) -> None:
        raise NotImplementedError("the store knows whether it is open")

    def append(self, message: Message) -> PutResult:
        """As `put`, but never waits for the disk."""
        return self._open_putter().append(message)

    def append_many(self, messages: Sequence[Message]) -> BatchResult:
        """As `put_many`, but never waits for the disk."""
        return self._open_putter().put_many(messages, wait=False)

    def get_dispatched(self, topic: str, queue_id: int, offset: int, max_messages: int, tags: TagFilter) -> Page:
        """As `get`, of what is dispatched already: the very newest messages may come a moment later."""
        page = self._getter.get(topic, queue_id, offset, max_messages, tags, self.log.confirmed_offset)
        self._check_open()
        self.statistics.count_get(page)
        return page

    @property
    def flushed_offset(self) -> int:
        """The physical offset up to which the log is on disk."""
        return self.log.queue.flushed_where

    @property
    def flush_failure(self) -> str:
        """Why the log cannot be synced any more; empty while it can."""
        return self._syncer.failure or ""

    def on_flush(self, flushed: Callable[[], object]) -> None:
        """Calls back, on the thread that syncs, after each sync of the log and after one that failed."""
        self._flush_listeners.append(flushed)

    def flush(self) -> None:
        """Returns when all that was put so far is on disk. Raises StoreFailed."""
        try:
            self._syncer.sync(0, all_files=True)
        except FlushFailed as error:
            raise StoreFailed(str(error), path=self.layout.root) from error

    def _tell_flushed(self) -> None:
        for flushed in self._flush_listeners:
            flushed()
