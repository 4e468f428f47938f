"""Finding records by key, and offsets by time.

By key: exact. The index only proposes; a record is returned if it really has that topic and key and its store time
lies within the bounds, both included, each record once. By time: the store time decides, read from the log itself,
over all of the queue that is still there; nothing depends on a file's modification time.
"""

from __future__ import annotations

from enum import Enum

from penstock.format.record import Record
from penstock.store.consume_queue import NO_RECORD_SIZE, ConsumeQueue
from penstock.store.index import Index
from penstock.store.records import Records


class Boundary(Enum):
    """Which message a time means.

    LOWER is the first stored at or after it, the queue's end if there is none. UPPER is the last stored at or before
    it, the queue's minimum if there is none. NEAREST is whichever is closer, the earlier one if both are.
    """

    NEAREST = "nearest"
    LOWER = "lower"
    UPPER = "upper"


def query_by_key(
    index: Index, records: Records, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int
) -> list[Record]:
    """The newest `max_messages` records with the key, oldest first."""
    found: dict[int, Record] = {}
    for offset in index.find(topic, key, begin_ms, end_ms):
        if len(found) >= max_messages:
            break
        if offset in found:
            continue
        record = records.at(offset)
        if record is None or record.topic != topic or not begin_ms <= record.store_timestamp <= end_ms:
            continue
        if key == record.unique_key or key in record.keys:
            found[offset] = record
    return [found[offset] for offset in sorted(found)]


class TimeSearch:
    """Queue offsets by store time."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def find(self, queue: ConsumeQueue, timestamp: int, boundary: Boundary) -> int:
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

    def _first_at_or_after(self, queue: ConsumeQueue, timestamp: int, low: int, high: int) -> int:
        end = high
        while low < high:
            middle = (low + high) // 2
            place = self._readable_from(queue, middle, high)
            if place < high and self._time(queue, place) < timestamp:
                low = place + 1
            else:
                high = middle
        return self._readable_from(queue, low, end)

    def _readable_from(self, queue: ConsumeQueue, place: int, high: int) -> int:
        while place < high and self._time(queue, place) < 0:
            place += 1
        return place

    def _readable_before(self, queue: ConsumeQueue, place: int, low: int) -> int | None:
        for earlier in range(place - 1, low - 1, -1):
            if self._time(queue, earlier) >= 0:
                return earlier
        return None

    def _time(self, queue: ConsumeQueue, place: int) -> int:
        """Store time of a unit's record, -1 if it has none."""
        physical, size, _ = queue.unit(place)
        return -1 if size == NO_RECORD_SIZE else self._records.store_timestamp(physical)
