"""One store's files as the driver sees them: which queues there are, from where to where, and tasks over them.

A store that is read once is opened as a view, which shows what a start would serve. One that is in use, that a stream
follows, or that is as it was closed, is read up to what its queue files refer to (`penstock.store.tail`): a view is
opened only where a time or a key has to be looked up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from penstock.errors import BadStore
from penstock.format.arrow_schema import select_columns
from penstock.format.queue_unit import NO_RECORD_SIZE, PRE_BLANK, UNIT_SIZE
from penstock.pipeline.places import Task
from penstock.pipeline.ranges import Queue, Span
from penstock.pipeline.store_task import Files, LogTask, QueueSpan, QueueTask, RecordTask
from penstock.store.arrow_get import ArrowReader, QueueToRead
from penstock.store.config_files import ConfigFiles
from penstock.store.folder import StoreFolder
from penstock.store.light_view import QueueView
from penstock.store.query import Boundary
from penstock.store.settings import Settings
from penstock.store.store import MessageStore
from penstock.store.tail import StoreTail

LOG: Final = ""
"""The topic that stands for a store's log."""

_PAGE: Final = 1 << 12
"""Units that are looked at together: so few that they stay in the cache, and that memory for them is at hand."""
_PAGES_ADDED_UP: Final = 64


class OneStore:
    """The files of one store. One thread."""

    def __init__(self, folder: StoreFolder, broker: str, *, following: bool, by_key: bool) -> None:
        self._folder = folder
        self.broker = broker
        self._following = following
        self._by_key = by_key
        self._view: MessageStore | None = None
        self._tail = StoreTail(folder.layout, folder.settings) if following or folder.owner else self._closed_tail()

    def _closed_tail(self) -> StoreTail | None:
        """The ends of a store that was closed and not touched since; None if a start would have to look closer."""
        with contextlib.suppress(BadStore, FileNotFoundError):
            tail = StoreTail(self._folder.layout, self._folder.settings)
            if tail.is_as_closed:
                return tail
            tail.close()
        return None

    def close(self) -> None:
        self.close_view()
        if self._tail is not None:
            self._tail.close()

    def close_view(self) -> None:
        """Lets go of what was opened to look something up."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def refresh(self) -> None:
        if self._tail is not None:
            self._tail.look()

    @property
    def view(self) -> MessageStore:
        """The store as a start would serve it, opened when it is needed.

        Without its index unless keys are looked up: a store that has none would have it built, from the whole log.
        """
        if self._view is None:
            self._view = (self._folder.view() if self._by_key else self._folder.view(message_index_enable=False)).store
        return self._view

    @property
    def _settings(self) -> Settings:
        """With the sizes that the files have."""
        return self.view.settings if self._tail is None else self._tail.settings

    # -- what is there ---------------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[str, int]]:
        """(topic, queue id) of every queue."""
        if self._tail is not None:
            return iter(sorted(self._tail.queues))
        return ((queue.topic, queue.queue_id) for queue in self.view.queues)

    def queue(self, topic: str, queue_id: int) -> QueueToRead | None:
        if self._tail is not None:
            return self._tail.queues.get((topic, queue_id))
        return self.view.queues.find(topic, queue_id)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        if topic == LOG:
            return self._log_bounds()
        queue = self.queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _log_bounds(self) -> tuple[int, int]:
        if self._tail is not None:
            return self._tail.log_min, self._tail.log_end
        return max(self.view.log.min_offset, 0), self.view.log.confirmed_offset

    def offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        low, high = self.bounds(topic, queue_id)
        if topic == LOG:
            found = self._log_offset_at(timestamp, low, high)
        else:
            found = self.view.offset_by_time(topic, queue_id, timestamp, Boundary.LOWER)
        return min(max(found, low), high)

    def _log_offset_at(self, timestamp: int, low: int, high: int) -> int:
        """Where the first record stored at or after a time begins: files are told by their first records."""
        log, records = self.view.log, self.view.records
        start = low
        for file in log.queue.files:
            if 0 <= records.store_timestamp(file.from_offset) < timestamp:
                start = max(file.from_offset, low)
        reader = ArrowReader(log, select_columns(["physical_offset", "store_timestamp"]), verify_crc=False)
        while start < high:
            page = reader.read_log(start, 1 << 16, 64 << 20)
            times = page.batch.column("store_timestamp").cast("int64").to_numpy(zero_copy_only=False)
            later = np.flatnonzero(times >= timestamp * 1000)
            if len(later):
                return int(page.batch.column("physical_offset")[int(later[0])].as_py())
            start = page.next_offset
        return high

    def group_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Raises BadStore if consumerOffset.json cannot be read."""
        tables = ConfigFiles(self._folder.files, self._folder.layout.config)
        return tables.consumer_offsets.read().table.offsets.get((topic, group), {}).get(queue_id)

    def size(self, topic: str, queue_id: int, start: int, stop: int) -> int:
        """Bytes of a range of records; of a long one, what pages from all over it make of it."""
        if topic == LOG:
            return stop - start
        queue = self.queue(topic, queue_id)
        if queue is None or stop <= start:
            return 0
        step = max(_PAGE, -(-(stop - start) // _PAGES_ADDED_UP))
        total = looked_at = 0
        for first in range(start, stop, step):
            last = min(first + _PAGE, stop)
            looked_at += last - first
            total += sum(_sizes(queue, first, last))
        return total * (stop - start) // looked_at

    # -- tasks -----------------------------------------------------------------------------------------------

    def _files(self) -> Files:
        low, high = self._log_bounds()
        return Files(
            broker=self.broker,
            commit_log=str(self._folder.layout.commit_log.absolute()),
            consume_queue=str(self._folder.layout.consume_queue.absolute()),
            log_file_size=self._settings.mapped_file_size_commit_log,
            queue_file_size=self._settings.mapped_file_size_consume_queue,
            log_min=low,
            log_end=high,
        )

    def task(self, spans: Sequence[Span], *, fail_on_data_loss: bool) -> Task:
        """What reads some spans of queues, or one of the log."""
        first = spans[0]
        if first.queue.topic == LOG:
            return LogTask(self._files(), first.start, first.stop, fail_on_data_loss)
        return QueueTask(self._files(), tuple(self._span(span) for span in spans), fail_on_data_loss)

    def _span(self, span: Span) -> QueueSpan:
        topic, _, queue_id = span.queue
        units = b"" if self._tail is not None else self._units_off_disk(topic, queue_id, span.start, span.stop)
        return QueueSpan(topic, queue_id, span.start, span.stop, units)

    def _units_off_disk(self, topic: str, queue_id: int, start: int, stop: int) -> bytes:
        """The units of a range if the files do not hold the same: a start would write them."""
        queue = self.queue(topic, queue_id)
        assert queue is not None, "a span lies in a queue"
        folder = self._folder.layout.consume_queue / topic / str(queue_id)
        with contextlib.closing(
            QueueView(folder, topic, queue_id, self._settings.mapped_file_size_consume_queue, start, stop)
        ) as on_disk:
            try:
                both = zip(_pages(queue, start, stop), _pages(on_disk, start, stop), strict=True)
                if all(shown == there for shown, there in both):
                    return b""
            except BadStore:
                pass  # a file of another size: a start would build it again
        return b"".join(_pages(queue, start, stop))

    def key_task(
        self, topic: str, keys: Sequence[str], spans: Sequence[Span], *, fail_on_data_loss: bool
    ) -> Task | None:
        """What reads the messages of a topic that have one of some keys; None if there are none."""
        _, found = self.view.query_many(topic, list(keys))
        low, high = self._log_bounds()
        positions = sorted({offset for offset in found.tolist() if low <= offset < high})
        if not positions:
            return None
        ranges = tuple(QueueSpan(span.queue.topic, span.queue.queue_id, span.start, span.stop) for span in spans)
        return RecordTask(self._files(), tuple(positions), ranges, fail_on_data_loss)


def _sizes(queue: QueueToRead, start: int, stop: int) -> Iterator[int]:
    """Bytes of the records from one queue offset to another, page by page."""
    at = start
    while at < stop:
        units = queue.page(at, stop - at)
        if units is None or not len(units):
            at += queue.units_in_file - at % queue.units_in_file
            continue
        sizes = units["size"]
        yield int(sizes[sizes != NO_RECORD_SIZE].sum(dtype=np.int64))
        at += len(units)


def _pages(queue: QueueToRead, start: int, stop: int) -> Iterator[bytes]:
    """The units from one queue offset to another, in pages; those that are not there point to nothing."""
    at = start
    while at < stop:
        most = min(stop - at, _PAGE, queue.units_in_file - at % queue.units_in_file)
        units = queue.page(at, most)
        data = b"" if units is None else units.tobytes()
        yield data + PRE_BLANK * (most - len(data) // UNIT_SIZE)
        at += most


def log_queue(broker: str) -> Queue:
    """Stands for the log of a store."""
    return Queue(LOG, broker, 0)
