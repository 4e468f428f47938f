"""`StoreModel`: what a store must answer, in plain Python.

It shares nothing with the store but the values `Message` and `Record`. It predicts every record of a put, with its
place. A power loss is the one event whose outcome it cannot predict: `adopt` checks that what is left is allowed, and
goes on from there.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

from penstock.store import Boundary, Message, Record

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PREPARED, ROLLBACK = 0x4, 0xC
DELAY_LEVELS = 18
Queue = tuple[str, int]


class StoreModel:
    """What was put, and what every way of asking must answer: all records in log order, in files of one size."""

    def __init__(self, file_size: int, store_host: str) -> None:
        self.file_size = file_size
        self.store_host = store_host
        self.records: list[Record] = []
        """What the log holds."""
        self.expired: list[Record] = []
        """What retention has deleted from its beginning."""
        self.begin = 0
        """Where the log begins."""
        self.end = 0
        """Where the next record begins, if it fits there."""
        self.durable = 0
        """What lies before this survives a power loss."""
        self.next_offsets: dict[Queue, int] = {}
        self.durable_next_offsets: dict[Queue, int] = {}
        self.deleted: dict[str, int] = {}
        """By deleted topic, where the log ended then."""

    # -- putting ---------------------------------------------------------------------------------------------

    def takes(self, messages: list[Message], *, batch: bool) -> bool:
        """Whether the store must take these, all or none."""
        if any(not _is_storable(message) or self._ends_with_nul(message) for message in messages):
            return False
        if batch and any(message.sys_flag & 0xC or message.delay_level > 0 for message in messages):
            return False
        return sum(self._size(message) for message in messages) + 8 <= self.file_size

    def put(self, messages: list[Message], now: int) -> list[Record]:
        """The records that these messages become."""
        total = sum(self._size(message) for message in messages)
        if self.file_size - self.end % self.file_size < total + 8:
            self.end += self.file_size - self.end % self.file_size
        added = []
        for message in messages:
            record = self._record(message, now)
            self.records.append(record)
            self.end += record.size
            added.append(record)
        return added

    def _record(self, message: Message, now: int) -> Record:
        topic, queue_id, properties = self._route(message)
        store_host = message.store_host or self.store_host
        sys_flag = message.sys_flag & ~0x30
        sys_flag |= 0x10 * message.born_host.startswith("[") | 0x20 * store_host.startswith("[")
        return Record(
            topic=topic,
            queue_id=queue_id,
            queue_offset=self._take_offset(topic, queue_id) if enters_queue(sys_flag) else 0,
            physical_offset=self.end,
            size=self._size(message),
            flag=message.flag,
            sys_flag=sys_flag,
            born_timestamp=message.born_timestamp or now,
            born_host=message.born_host,
            store_timestamp=now,
            store_host=store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            properties=properties,
            body=message.body,
            body_crc=zlib.crc32(message.body) & 0x7FFFFFFF,
        )

    def _take_offset(self, topic: str, queue_id: int) -> int:
        offset = self.next_offsets.get((topic, queue_id), 0)
        self.next_offsets[topic, queue_id] = offset + 1
        return offset

    def _route(self, message: Message) -> tuple[str, int, dict[str, str]]:
        properties = {name: value for name, value in (message.properties or {}).items() if value}
        if message.keys:
            properties["KEYS"] = " ".join(message.keys)
        if message.tags:
            properties["TAGS"] = message.tags
        if message.delay_level:
            properties["DELAY"] = str(message.delay_level)
        if message.delay_level > 0 and enters_queue(message.sys_flag):
            level = min(message.delay_level, DELAY_LEVELS)
            properties |= {"DELAY": str(level), "REAL_TOPIC": message.topic, "REAL_QID": str(message.queue_id)}
            return SCHEDULE_TOPIC, level - 1, properties
        return message.topic, message.queue_id, properties

    def _ends_with_nul(self, message: Message) -> bool:
        """Whether its properties do, as they are stored: they would look like ones that lost a sector."""
        values = list(self._route(message)[2].values())
        return bool(values) and values[-1].endswith("\0")

    def _size(self, message: Message) -> int:
        topic, _, properties = self._route(message)
        entries = [len(name.encode()) + 1 + len(value.encode()) for name, value in properties.items()]
        hosts = message.born_host, message.store_host or self.store_host
        wide = sum(host.startswith("[") for host in hosts)
        return 91 + 12 * wide + len(message.body) + len(topic) + sum(entries) + max(len(entries) - 1, 0)

    # -- what happens to what was put ------------------------------------------------------------------------

    def make_durable(self) -> None:
        """Everything up to here is on disk."""
        self.durable = self.end
        self.durable_next_offsets = dict(self.next_offsets)

    def expire(self, begin: int) -> None:
        """Retention has deleted the log before `begin`."""
        self.begin = begin
        self.expired += [record for record in self.records if record.physical_offset < begin]
        self.records = [record for record in self.records if record.physical_offset >= begin]

    def empty_queues(self) -> set[Queue]:
        """Those that have had messages, and have none left, apart from the broker's own."""
        return {queue for queue in self.next_offsets if queue[0] != SCHEDULE_TOPIC and not self.queue(*queue)}

    def remove_queues(self, queues: Iterable[Queue]) -> None:
        """They are gone; a later message begins a new one."""
        for queue in queues:
            del self.next_offsets[queue]
            self.durable_next_offsets.pop(queue, None)

    def delete_topic(self, topic: str) -> None:
        """Its queues are gone, for good; a later message begins a new one."""
        self.deleted[topic] = self.end
        for offsets in (self.next_offsets, self.durable_next_offsets):
            for queue in [queue for queue in offsets if queue[0] == topic]:
                del offsets[queue]

    def adopt(self, begin: int, end: int, look_up: Callable[[int], Record | None]) -> list[Record]:
        """Goes on with what a power loss left of the log, between `begin` and `end`; returns what was lost.

        Raises AssertionError if a durable record is lost, or any record altered. What retention had deleted may be
        back.
        """
        assert begin <= self.begin, f"the log began at {self.begin} and begins at {begin}"
        assert begin % self.file_size == 0
        known = [record for record in (*self.expired, *self.records) if record.physical_offset >= begin]
        found = {record.physical_offset: look_up(record.physical_offset) for record in known}
        lost = [record for record in known if found[record.physical_offset] is None]
        for record in known:
            there = found[record.physical_offset]
            assert there in (record, None), f"{record} was put, and there is {there}"
            durable = record.physical_offset + record.size <= self.durable
            assert there or not durable, f"{record} was acknowledged as durable, and is lost"
        kept = [record for record in known if found[record.physical_offset] is not None]
        least = max([self.durable, *(record.physical_offset + record.size for record in kept)])
        assert least <= end <= self.end, f"the log ended at {self.end}, must reach {least}, and ends at {end}"
        self.expired = [record for record in self.expired if record.physical_offset < begin]
        self.records, self.begin, self.end = kept, begin, end
        self.deleted = {topic: min(place, end) for topic, place in self.deleted.items()}
        return lost

    def adopt_queues(self, max_offset: Callable[[str, int], int]) -> None:
        """Goes on with the next queue offsets that a power loss left. Raises AssertionError if one is not allowed."""
        for queue, before in list(self.next_offsets.items()):
            there = max_offset(*queue)
            least = [self.durable_next_offsets.get(queue, 0)]
            least += [record.queue_offset + 1 for record in self.queue(*queue)]
            assert max(least) <= there <= before, f"{queue} ended at {before}, must reach {max(least)}, and is {there}"
            self.next_offsets[queue] = there
            if not there:
                del self.next_offsets[queue]
        self.durable_next_offsets = {
            queue: least for queue, least in self.durable_next_offsets.items() if queue in self.next_offsets
        }

    # -- asking ----------------------------------------------------------------------------------------------

    def queues(self) -> set[Queue]:
        return set(self.next_offsets)

    def queue(self, topic: str, queue_id: int) -> list[Record]:
        return [
            record
            for record in self.records
            if (record.topic, record.queue_id) == (topic, queue_id)
            and enters_queue(record.sys_flag)
            and not self.is_deleted(record)
        ]

    def is_deleted(self, record: Record) -> bool:
        """Whether it was put before its topic was deleted."""
        return record.physical_offset < self.deleted.get(record.topic, 0)

    def topics_and_keys(self) -> set[tuple[str, str]]:
        """Every topic with every key that any record has, in whatever topic."""
        topics = {record.topic for record in self.records}
        keys = {key for record in self.records for key in (*record.keys, record.unique_key) if key}
        return {(topic, key) for topic in topics for key in keys}

    def query(self, topic: str, key: str, begin: int, end: int, most: int) -> list[Record]:
        found = [
            record
            for record in self.records
            if record.topic == topic
            and key in (*record.keys, record.unique_key)
            and record.sys_flag & 0xC != ROLLBACK
            and begin <= record.store_timestamp <= end
        ]
        return found[-most:]

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary) -> int:
        times = [record.store_timestamp for record in self.queue(topic, queue_id)]
        after = bisect_left(times, timestamp)
        if boundary is Boundary.LOWER:
            return after
        if boundary is Boundary.UPPER:
            return max(bisect_right(times, timestamp) - 1, 0)
        if after == 0:
            return 0
        if after == len(times):
            return after - 1
        return after if times[after] - timestamp < timestamp - times[after - 1] else after - 1


def enters_queue(sys_flag: int) -> bool:
    return sys_flag & 0xC not in (PREPARED, ROLLBACK)


def _is_storable(message: Message) -> bool:
    properties = message.properties or {}
    texts = [message.tags, *message.keys, *properties.values()]
    names = "".join(properties)
    return not any("\x02" in text for text in (*texts, names)) and "\x01" not in names
