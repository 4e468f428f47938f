"""Finds records by key, and queue offsets by store time.

A search by key is exact: the index only proposes candidates. A record is returned once, and only if it has the topic
and the key, and its store time lies within the bounds, inclusive. A search by time compares the store times of the
queue's records in the log; unlike RocketMQ, it does not use file modification times. Thread-safe.

What is not in memory is loaded from the disk without the GIL (`cold_reads.py`); a search raises StoreFailed if the disk
cannot read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol, Self, overload

import numpy as np

from penstock.errors import StoreFailed
from penstock.format import kernels
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.format.record import Record, decode_record
from penstock.format.record_layout import HEAD
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.engine_parts import Engine
from penstock.store.files.file_io import FileMap
from penstock.store.files.mapped_file import MappedFile
from penstock.store.index import Index, IndexFile
from penstock.store.single_record_reader import RecordProof

_DECODED_AT_ONCE = 256
"""Records that a search of many keys decodes before other threads may run."""


class Boundary(Enum):
    """Which message of a queue a given time selects.

    LOWER: the first message stored at or after the time; if there is none, the queue's end. UPPER: the last message
    stored at or before the time; if there is none, the queue's minimum. NEAREST: the message stored closest to the
    time; in a tie, the earlier one.
    """

    NEAREST = "nearest"
    LOWER = "lower"
    UPPER = "upper"


class Hits(Sequence[Record]):
    """The records that a query found, oldest first. `records` has their bytes; items are decoded on access."""

    __slots__ = ("records",)

    def __init__(self, records: Sequence[bytes]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        if isinstance(place, slice):
            return [decode_record(record) for record in self.records[place]]
        return decode_record(self.records[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Hits({list(self)!r})"


class _FileViews(NamedTuple):
    """A snapshot of the index and log files, with the maps of those that are not being deleted."""

    files: tuple[MappedFile, ...]
    index_files: tuple[IndexFile, ...]
    table_maps: list[FileMap]
    log_maps: list[FileMap]
    tables: list[kernels.Buffer]
    logs: list[kernels.Buffer]
    table_residency: list[kernels.Residency | None]
    log_residency: list[kernels.Residency | None]
    log_base: int

    @classmethod
    def of(cls, files: tuple[MappedFile, ...], index_files: tuple[IndexFile, ...]) -> _FileViews:
        alive = [file for file in files if file.available]
        base = alive[0].from_offset if alive else 0
        table_maps = [table.map for table in index_files if table.available]
        log_maps = [file.map for file in alive]
        return cls(
            files,
            index_files,
            table_maps,
            log_maps,
            [each.view for each in table_maps],
            [each.view for each in log_maps],
            [each.residency for each in table_maps],
            [each.residency for each in log_maps],
            base,
        )

    @property
    def is_stale(self) -> bool:
        """Whether a file of the snapshot has been deleted since the snapshot was taken."""
        gone = sum(not file.available for file in self.files) + sum(not table.available for table in self.index_files)
        return len(self.logs) + len(self.tables) + gone > len(self.files) + len(self.index_files)


class KeyQuery:
    """A search by key: looks keys up in the index and verifies the records in the log."""

    def __init__(self, engine: Engine, index: Index, proof: RecordProof) -> None:
        self._index = index
        self._queues = engine.queues
        self._holds = proof.holds
        self._log = engine.log.queue
        self._verify_crc = engine.settings.verify_crc_on_read
        self._slots, self._items = index.geometry
        self._views = _FileViews.of((), ())

    def find(self, topic: str, key: str, begin: int, end: int, limit: int, log_end: int) -> Hits:
        """Returns the newest `limit` records with the key, oldest first, that lie in the log before `log_end`."""
        try:
            topic_bytes, key_bytes = topic.encode(), key.encode()
        except UnicodeEncodeError:
            topic_bytes, key_bytes = topic.encode(errors="surrogateescape"), key.encode(errors="surrogateescape")
        log = self._log
        loaded: tuple[bool, int, int, int] | None = None
        checks = True
        while True:
            views = self._views  # read once: another thread may replace it
            if views.files is not log.files or views.index_files is not self._index.files:
                self._views = views = _FileViews.of(log.files, self._index.files)
            if not views.logs:
                return Hits([])
            try:
                found = kernels.find_key(
                    key_bytes,
                    topic_bytes,
                    views.tables,
                    self._slots,
                    self._items,
                    views.logs,
                    views.log_base,
                    log.file_size,
                    log_end,
                    begin,
                    end,
                    limit,
                    self._verify_crc,
                    views.table_residency if checks else None,
                    views.log_residency if checks else None,
                )
                if isinstance(found, list):
                    return Hits([record for record in found if self._holds(topic, record)])
                checks = found != loaded  # what was loaded and is gone again is not loaded twice
                in_index, number, start, stop = loaded = found
                (views.table_maps if in_index else views.log_maps)[number].load(start, stop)
            except (ValueError, StoreFailed):
                if not views.is_stale:
                    raise
                self._views = _FileViews.of((), ())

    def find_many(
        self, topic: str, keys: list[str], begin: int, end: int, log_end: int
    ) -> tuple[kernels.Longs, kernels.Longs]:
        """Returns the position in `keys` and the physical offset of every record with one of the keys, in key order.

        The records lie in the log before `log_end`.
        """
        with _HeldFiles(self._log.files, self._index.files, self._queues.of_topic(topic)) as held:
            return self._find_in(held, topic, keys, begin, end, log_end)

    def read_many(
        self, topic: str, keys: list[str], begin: int, end: int, log_end: int
    ) -> tuple[kernels.Longs, list[Record]]:
        """Like `find_many`, with the records instead of their offsets."""
        with _HeldFiles(self._log.files, self._index.files, self._queues.of_topic(topic)) as held:
            numbers, offsets = self._find_in(held, topic, keys, begin, end, log_end)
            if not len(offsets):
                return numbers, []
            base, size = held.logs[0].from_offset, self._log.file_size
            records = [
                record
                for first in range(0, len(offsets), _DECODED_AT_ONCE)
                for record in kernels.decode_at(
                    offsets[first : first + _DECODED_AT_ONCE], held.log_views, base, size, log_end, Record
                )
            ]
        if None not in records:
            return numbers, records  # type: ignore[return-value]
        there = [place for place, record in enumerate(records) if record is not None]
        return numbers[there], [record for record in records if record is not None]

    def _find_in(
        self, held: _HeldFiles, topic: str, keys: list[str], begin: int, end: int, log_end: int
    ) -> tuple[kernels.Longs, kernels.Longs]:
        if not held.logs:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers, offsets, confirmed = kernels.find_keys(
            keys,
            topic.encode(),
            [table.map.view for table in held.tables],
            self._slots,
            self._items,
            held.log_views,
            held.logs[0].from_offset,
            self._log.file_size,
            log_end,
            begin,
            end,
            self._verify_crc,
            held.unit_files,
        )
        if not confirmed.all():
            believed = self._are_believed(topic, held, offsets, confirmed)
            numbers, offsets = numbers[believed], offsets[believed]
        if (np.diff(numbers) > 0).all():  # each key at most once: already in order
            return numbers, offsets
        order = np.lexsort((offsets, numbers))
        numbers, offsets = numbers[order], offsets[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(numbers) != 0) | (np.diff(offsets) != 0)
        return numbers[new], offsets[new]

    def _are_believed(
        self, topic: str, held: _HeldFiles, offsets: kernels.Longs, confirmed: kernels.Bools
    ) -> kernels.Bools:
        """Returns a mask of the records that are records of the log. See `RecordProof`. Slow for what has no unit."""
        believed = confirmed.copy()
        for number in np.flatnonzero(~confirmed).tolist():
            place, at = divmod(int(offsets[number]) - held.logs[0].from_offset, self._log.file_size)
            believed[number] = self._holds(topic, bytes(held.log_views[place][at : at + HEAD.size]))
        return believed


class _HeldFiles:
    """The files that a search of many keys reads: of log, index and the topic's queues. None is unmapped meanwhile."""

    def __init__(self, logs: Sequence[MappedFile], tables: Sequence[IndexFile], queues: Sequence[ConsumeQueue]) -> None:
        self.tables = [table for table in tables if table.acquire()]
        self.logs = [file for file in logs if file.acquire()]
        self.log_views = [file.map.view for file in self.logs]
        self._units = [(queue, file) for queue in queues for file in queue.files.files if file.acquire()]
        self.unit_files = [
            kernels.UnitFile(queue.queue_id, file.from_offset // UNIT_SIZE, file.readable, file.map.view)
            for queue, file in self._units
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self.tables:
            table.release()
        for file in (*self.logs, *(file for _, file in self._units)):
            file.release()


class TimedRecords(Protocol):
    """Records of a log whose store times can be read: those of an open store, or of a `StoreTail`."""

    def store_timestamp(self, offset: int) -> int:
        """Returns the store time in ms of the record at `offset`; -1 if the log does not have it."""
        ...


class UnitQueue(Protocol):
    """A queue whose units can be read one by one."""

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def unit(self, queue_offset: int) -> tuple[int, int, int]: ...


class TimeSearch:
    """A search for queue offsets by store time."""

    def __init__(self, records: TimedRecords) -> None:
        self._records = records

    def find(self, queue: UnitQueue, timestamp: int, boundary: Boundary) -> int:
        lowest, highest = queue.min_offset, queue.max_offset
        if lowest >= highest:
            return highest
        if boundary is Boundary.LOWER:
            return self._first_at_or_after(queue, timestamp, lowest, highest)
        if boundary is Boundary.UPPER:
            after = self._first_at_or_after(queue, timestamp + 1, lowest, highest)
            before = self._readable_before(queue, after, lowest)
            return lowest if before is None else before
        after = self._first_at_or_after(queue, timestamp, lowest, highest)
        before = self._readable_before(queue, after, lowest)
        if before is None:
            return after
        if after == highest:
            return before
        later = self._time(queue, after) - timestamp
        earlier = timestamp - self._time(queue, before)
        return after if later < earlier else before

    def store_time(self, queue: UnitQueue, offset: int) -> int:
        """Returns the store time in ms of the message at a queue offset; -1 if the message does not exist."""
        if not queue.min_offset <= offset < queue.max_offset:
            return -1
        return self._records.store_timestamp(queue.unit(offset)[0])

    def _first_at_or_after(self, queue: UnitQueue, timestamp: int, low: int, high: int) -> int:
        end = high
        while low < high:
            middle = (low + high) // 2
            place = self._readable_from(queue, middle, high)
            if place < high and self._time(queue, place) < timestamp:
                low = place + 1
            else:
                high = middle
        return self._readable_from(queue, low, end)

    def _readable_from(self, queue: UnitQueue, place: int, high: int) -> int:
        while place < high and self._time(queue, place) < 0:
            place += 1
        return place

    def _readable_before(self, queue: UnitQueue, place: int, low: int) -> int | None:
        for earlier in range(place - 1, low - 1, -1):
            if self._time(queue, earlier) >= 0:
                return earlier
        return None

    def _time(self, queue: UnitQueue, place: int) -> int:
        """Returns the store time in ms of a unit's record; -1 if the unit points to no record in the log."""
        physical, size, _ = queue.unit(place)
        return -1 if size == NO_RECORD_SIZE else self._records.store_timestamp(physical)
