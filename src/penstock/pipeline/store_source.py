"""The message source over the files of one or more stores. It runs on the driver, changes nothing and takes no lock.

`StoreSource` uses a store's folder name as its broker name, in the column `broker` and in offsets. If folder names are
equal, it adds parent folders until the names differ. Paths may be globs.

`SingleStore` reads a store in one of two ways. The tail (`store.readonly.follow_growing_queues`) ends at the last
record that the queue files refer to; it serves a store that is in use, cleanly closed, or followed by a stream. The
view serves any other store, and a search by key if the index files are not whole: a read-only MessageStore that shows
the state after recovery. Not thread-safe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock.errors import BadStore
from penstock.format.arrow_rows import select_columns
from penstock.format.queue_unit import NO_RECORD_SIZE
from penstock.pipeline.offset_ranges import OffsetRange, Queue, ReadTask, Witness
from penstock.pipeline.options import Options
from penstock.pipeline.store_read_tasks import LogTask, QueueSpan, QueueTask, RecordTask, SeenLog, StorePaths
from penstock.store.arrow_batches import ArrowReader
from penstock.store.config_files import ConfigFiles
from penstock.store.consume_queue import ReadableQueue, unit_pages
from penstock.store.deleted_topics_file import restarted_topics
from penstock.store.files.layout import path_below
from penstock.store.readonly.follow_growing_queues import StoreTail
from penstock.store.readonly.view import FilesView, QueueView

if TYPE_CHECKING:  # a worker imports this module and opens no store
    from penstock.store.message_store import MessageStore
    from penstock.store.readonly.store_folder import StoreFolder
    from penstock.store.settings import Settings

LOG: Final = ""
"""The topic of the pseudo queue that represents a store's log."""
_PAGE_UNITS: Final = 1 << 12
"""Queue units per page: few enough to stay in the CPU cache."""
_SAMPLED_PAGES: Final = 64


# -- one store -------------------------------------------------------------------------------------------------------


class SingleStore:
    """Reads the files of one store; `broker` is its name. `following` means for a stream, `by_key` with key lookups."""

    def __init__(
        self, folder: StoreFolder, broker: str, *, following: bool, by_key: bool, verify_crc: bool = True
    ) -> None:
        self._folder = folder
        self.broker = broker
        self._following = following
        self._by_key = by_key
        self._verify_crc = verify_crc
        self._view: MessageStore | None = None
        self._tail = StoreTail(folder.layout, folder.settings) if following or folder.owner else self._closed_tail()

    def _closed_tail(self) -> StoreTail | None:
        """Returns the tail of the store if it was closed cleanly, or None if it needs recovery."""
        with contextlib.suppress(BadStore, FileNotFoundError):
            tail = StoreTail(self._folder.layout, self._folder.settings)
            if tail.is_cleanly_closed:
                return tail
            tail.close()
        return None

    def close(self) -> None:
        self.close_view()
        if self._tail is not None:
            self._tail.close()

    def close_view(self) -> None:
        """Closes the view that lookups opened."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def refresh(self) -> None:
        if self._tail is not None:
            self._tail.refresh()

    @property
    def view(self) -> MessageStore:
        """The store in the state that recovery would give it, opened on first use.

        The view has no index unless keys are searched, because a missing index is built from the whole log.
        """
        if self._view is None:
            self._view = (self._folder.view() if self._by_key else self._folder.view(message_index_enable=False)).store
        return self._view

    @property
    def _settings(self) -> Settings:
        """The store's settings, with the file sizes found on disk."""
        return self.view.settings if self._tail is None else self._tail.settings

    # -- queues and offsets ----------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[str, int]]:
        """Returns the topic and queue id of every queue."""
        if self._tail is not None:
            return iter(sorted(self._tail.queues))
        return ((queue.topic, queue.queue_id) for queue in self.view.queues)

    def queue(self, topic: str, queue_id: int) -> ReadableQueue | None:
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
        from penstock.store.query import Boundary, TimeSearch

        low, high = self.bounds(topic, queue_id)
        if topic == LOG:
            offset = self._log_offset_at(timestamp, low, high)
        elif self._tail is None:
            offset = self.view.offset_by_time(topic, queue_id, timestamp, Boundary.LOWER)
        else:
            queue = self._tail.queues.get((topic, queue_id))
            offset = high if queue is None else TimeSearch(self._tail).find(queue, timestamp, Boundary.LOWER)
        return min(max(offset, low), high)

    def _log_offset_at(self, timestamp: int, low: int, high: int) -> int:
        """Returns the physical offset of the first record stored at or after `timestamp` (epoch ms), or `high`.

        Starts the search at the last file whose first record is older than `timestamp`.
        """
        start = low
        with contextlib.closing(msgspec.structs.replace(self._paths(), keeps_maps=False).log()) as log:
            for begin in log.queue.offsets():
                if 0 <= self._store_time(begin) < timestamp:
                    start = max(begin, low)
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
        """Returns the group's offset in consumerOffset.json, or None. Raises BadStore if the file cannot be read."""
        return self.committed_offsets().get((topic, group), {}).get(queue_id)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Returns the store time of a message in epoch ms; 0 if it cannot be read."""
        queue = self.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return 0
        units = queue.page(offset, 1)
        if units is None or units["size"][0] == NO_RECORD_SIZE:
            return 0
        files = msgspec.structs.replace(self._paths(), keeps_maps=False)
        with contextlib.closing(files.log()) as log:
            reader = ArrowReader(log, select_columns(["store_timestamp"]), verify_crc=False)
            found = reader.read_at([int(units["offset"][0])]).column("store_timestamp").cast("int64")
        return 0 if not len(found) or found[0].as_py() is None else found[0].as_py() // 1000

    def committed_offsets(self) -> dict[tuple[str, str], dict[int, int]]:
        """Returns the offsets of all groups by (topic, group) and queue. Raises BadStore if they cannot be read."""
        return ConfigFiles(self._folder.files, self._folder.layout.config).consumer_offsets.read().table.offsets

    def restarted_topics(self) -> set[str]:
        """Returns the topics of which the log may hold records that are in no queue."""
        return restarted_topics(self._folder.files, self._folder.layout.deleted_topics)

    def size(self, topic: str, queue_id: int, start: int, stop: int) -> int:
        """Returns the bytes of a range's records. For a long range, estimates them from evenly spaced queue units."""
        if topic == LOG:
            return stop - start
        queue = self.queue(topic, queue_id)
        if queue is None or stop <= start:
            return 0
        step = max(_PAGE_UNITS, -(-(stop - start) // _SAMPLED_PAGES))
        total = sampled = 0
        for first in range(start, stop, step):
            last = min(first + _PAGE_UNITS, stop)
            sampled += last - first
            for _, units in unit_pages(queue, first, last):
                sizes = units["size"]
                total += int(sizes[sizes != NO_RECORD_SIZE].sum(dtype=np.int64))
        return total * (stop - start) // sampled

    # -- witnesses -------------------------------------------------------------------------------------------

    def _store_time(self, physical_offset: int) -> int:
        if self._tail is not None:
            return self._tail.store_timestamp(physical_offset)
        return self.view.records.store_timestamp(physical_offset)

    def witness(self, topic: str, queue_id: int, offset: int) -> Witness | None:
        """Returns the witness of the message before `offset`, or None if no message is there."""
        low, high = self.bounds(topic, queue_id)
        if not low < offset <= high:
            return None
        if topic == LOG:
            size = self._settings.mapped_file_size_commit_log
            begin = max((offset - 1) // size * size, low)
            return Witness(begin, self._store_time(begin))
        found = self.queue(topic, queue_id)
        unit = None if found is None else found.page(offset - 1, 1)
        if unit is None or unit["size"][0] == NO_RECORD_SIZE:
            return None
        physical = int(unit["offset"][0])
        return Witness(physical, self._store_time(physical))

    def first_record(self) -> Witness | None:
        low, high = self._log_bounds()
        stored = self._store_time(low) if low < high else -1
        return None if stored < 0 else Witness(low, stored)

    def why_replaced(self, topic: str, witness: Witness, first_record: Witness | None) -> str:
        low, _ = self._log_bounds()
        is_there = self._store_time(witness.physical_offset) == witness.store_timestamp != -1
        if topic != LOG and (is_there or witness.physical_offset < low):
            return "the topic was deleted and created again"
        if first_record is not None and first_record.physical_offset >= low:
            if self._store_time(first_record.physical_offset) == first_record.store_timestamp:
                return "the log was truncated and filled again"
            return "this is another store than before"
        return "the log was truncated and filled again, or this is another store than before"

    # -- tasks -----------------------------------------------------------------------------------------------

    def _paths(self) -> StorePaths:
        low, high = self._log_bounds()
        files = FilesView(self._folder.layout.commit_log, self._settings.mapped_file_size_commit_log)
        with contextlib.closing(files):
            seen = SeenLog.of(files, low, high)
        return StorePaths(
            broker=self.broker,
            commit_log=str(self._folder.layout.commit_log.absolute()),
            consume_queue=str(self._folder.layout.consume_queue.absolute()),
            log_file_size=self._settings.mapped_file_size_commit_log,
            queue_file_size=self._settings.mapped_file_size_consume_queue,
            log_min=low,
            log_end=high,
            seen=seen,
            verify_crc=self._verify_crc,
        )

    def tasks(self, groups: Sequence[Sequence[OffsetRange]], *, fail_on_data_loss: bool) -> list[ReadTask]:
        """Returns a task for each group: it reads some spans of queues, or a single span of the log."""
        paths = self._paths()
        return [
            LogTask(paths, spans[0].start, spans[0].stop, fail_on_data_loss)
            if spans[0].queue.topic == LOG
            else QueueTask(paths, tuple(self._span(span) for span in spans), fail_on_data_loss)
            for spans in groups
        ]

    def _span(self, span: OffsetRange) -> QueueSpan:
        topic, _, queue_id = span.queue
        units = b"" if self._tail is not None else self._units_not_on_disk(topic, queue_id, span.start, span.stop)
        queue = self.queue(topic, queue_id)
        first = None if queue is None else queue.page(span.start, 1)
        return QueueSpan(
            topic, queue_id, span.start, span.stop, units, -1 if units or first is None else int(first["offset"][0])
        )

    def _units_not_on_disk(self, topic: str, queue_id: int, start: int, stop: int) -> bytes:
        """Returns the units of a range if recovery would change them on disk. Returns b"" if the files are correct."""
        queue = self.queue(topic, queue_id)
        assert queue is not None, "a span lies in a queue"
        folder = path_below(self._folder.layout.consume_queue, topic, queue_id)
        files = FilesView(folder, self._settings.mapped_file_size_consume_queue)
        with contextlib.closing(QueueView(files, topic, queue_id, start, stop)) as on_disk:
            try:
                both = zip(*(unit_pages(each, start, stop, _PAGE_UNITS) for each in (queue, on_disk)), strict=True)
                if all(shown.tobytes() == there.tobytes() for (_, shown), (_, there) in both):
                    return b""
            except BadStore:
                pass  # a file of the wrong size, which recovery would rebuild
        return b"".join(units.tobytes() for _, units in unit_pages(queue, start, stop, _PAGE_UNITS))

    def key_task(
        self, topic: str, keys: Sequence[str], spans: Sequence[OffsetRange], *, fail_on_data_loss: bool
    ) -> ReadTask | None:
        """Returns the task that reads a topic's messages with one of the keys, or None if the index has no match.

        The task reads only messages within `spans`.
        """
        positions = None if self._tail is None else self._tail.find_keys(topic, keys)
        if positions is None:
            _, offsets = self.view.query_many(topic, list(keys))
            low, high = self._log_bounds()
            positions = sorted({offset for offset in offsets.tolist() if low <= offset < high})
        if not positions:
            return None
        ranges = tuple(QueueSpan(span.queue.topic, span.queue.queue_id, span.start, span.stop) for span in spans)
        return RecordTask(self._paths(), tuple(positions), ranges, fail_on_data_loss)


def log_queue(broker: str) -> Queue:
    """Returns the pseudo queue that represents a store's log."""
    return Queue(LOG, broker, 0)


def has_folders_of(options: Options, topics: Iterable[str]) -> bool:
    """Returns whether the stores have a folder for each topic, whatever is in it. Raises BadStore for other folders."""
    from penstock.store.readonly.store_folder import StoreFolder, find_paths

    config = Path(options.config) if options.config else None
    existing: set[str] = set()
    for path in find_paths(options.path):
        folder = StoreFolder.find(path, config, options.settings)
        existing.update(folder.files.names(folder.layout.consume_queue))
    return existing.issuperset(topics)


# -- several stores --------------------------------------------------------------------------------------------------


class StoreSource:
    """A MessageSource over one or more stores. `following` opens them for a stream, which refreshes often."""

    def __init__(self, options: Options, *, following: bool = False, verify_crc: bool = True) -> None:
        from penstock.store.readonly.store_folder import StoreFolder, find_paths, name_stores

        paths = find_paths(options.path)
        self.name = ", ".join(str(path) for path in paths)
        self._options = options
        config = Path(options.config) if options.config else None
        self._stores: dict[str, SingleStore] = {}
        try:
            for broker, path in name_stores(paths).items():
                self._stores[broker] = SingleStore(
                    StoreFolder.find(path, config, options.settings),
                    broker,
                    following=following,
                    by_key=bool(options.keys),
                    verify_crc=verify_crc,
                )
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        for store in self._stores.values():
            store.refresh()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()

    def close_views(self) -> None:
        """Closes the views that lookups opened. A stream needs views only at its start."""
        for store in self._stores.values():
            store.close_view()

    @property
    def brokers(self) -> list[str]:
        """The names of the stores, sorted."""
        return sorted(self._stores)

    def stores(self) -> list[SingleStore]:
        """Returns the stores, sorted by name."""
        return [self._stores[broker] for broker in self.brokers]

    def has_restarted(self, topics: Sequence[str]) -> bool:
        """Whether the log may hold records of one of the topics that are in none of its queues."""
        return any(not store.restarted_topics().isdisjoint(topics) for store in self._stores.values())

    def topics(self) -> list[str]:
        return sorted({topic for store in self._stores.values() for topic, _ in store.queues()})

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        if self._options.order == "log":
            return [log_queue(broker) for broker in sorted(self._stores)]
        wanted = set(topics)
        return sorted(
            Queue(topic, broker, queue_id)
            for broker, store in self._stores.items()
            for topic, queue_id in store.queues()
            if topic in wanted
        )

    def bounds(self, queue: Queue) -> tuple[int, int]:
        store = self._stores.get(queue.broker)
        return (0, 0) if store is None else store.bounds(queue.topic, queue.queue_id)

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        return self._stores[queue.broker].offset_at(queue.topic, queue.queue_id, timestamp)

    def group_offset(self, group: str, queue: Queue) -> int | None:
        return self._stores[queue.broker].group_offset(group, queue.topic, queue.queue_id)

    def size(self, queue: Queue, start: int, stop: int) -> int:
        return self._stores[queue.broker].size(queue.topic, queue.queue_id, start, stop)

    def witnesses(self, offsets: Mapping[Queue, int]) -> dict[Queue, Witness]:
        known = ((queue, offset) for queue, offset in offsets.items() if queue.broker in self._stores)
        found = {
            queue: self._stores[queue.broker].witness(queue.topic, queue.queue_id, offset) for queue, offset in known
        }
        return {queue: witness for queue, witness in found.items() if witness is not None}

    def first_records(self) -> dict[str, Witness]:
        found = {broker: store.first_record() for broker, store in sorted(self._stores.items())}
        return {broker: witness for broker, witness in found.items() if witness is not None}

    def why_replaced(self, queue: Queue, offset: int, witness: Witness, first_record: Witness | None) -> str:
        return self._stores[queue.broker].why_replaced(queue.topic, witness, first_record)

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        """Returns the tasks for groups of spans. A group with spans of several stores becomes a task for each store."""
        by_broker: dict[str, list[tuple[int, list[OffsetRange]]]] = {}
        for number, group in enumerate(spans):
            parts: dict[str, list[OffsetRange]] = {}
            for span in group:
                parts.setdefault(span.queue.broker, []).append(span)
            for broker, part in parts.items():
                by_broker.setdefault(broker, []).append((number, part))
        made: list[tuple[int, ReadTask]] = []
        for broker, numbered in by_broker.items():
            groups = [part for _, part in numbered]
            tasks = self._stores[broker].tasks(groups, fail_on_data_loss=self._options.fail_on_data_loss)
            made += [(number, task) for (number, _), task in zip(numbered, tasks, strict=True)]
        return [task for _, task in sorted(made, key=lambda each: each[0])]

    def key_tasks(self, keys: Sequence[str], spans: Sequence[OffsetRange]) -> list[ReadTask]:
        """Returns tasks that read the messages of `spans` with one of the keys, which the index finds."""
        by_topic: dict[tuple[str, str], list[OffsetRange]] = {}
        for span in spans:
            by_topic.setdefault((span.queue.broker, span.queue.topic), []).append(span)
        fail = self._options.fail_on_data_loss
        tasks = (
            self._stores[broker].key_task(topic, keys, spans, fail_on_data_loss=fail)
            for (broker, topic), spans in by_topic.items()
        )
        return [task for task in tasks if task is not None]
