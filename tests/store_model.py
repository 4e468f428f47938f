"""A model of the store in a few lines of plain Python: what was put, and what every way of asking must answer.

It shares nothing with the store but the values `Message` and `Record`, so that a mistake of the store is not one of
the model too.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right

from penstock.store import Boundary, Message, Record

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
PREPARED, ROLLBACK = 0x4, 0xC
DELAY_LEVELS = 18


class Model:
    """All records in log order, of a log with files of one size."""

    def __init__(self, file_size: int, store_host: str) -> None:
        self.file_size = file_size
        self.store_host = store_host
        self.records: list[Record] = []
        self.end = 0
        """Where the next record begins, if it fits there."""

    # -- putting ---------------------------------------------------------------------------------------------

    def takes(self, messages: list[Message], *, batch: bool) -> bool:
        """Whether the store must take these, all or none."""
        if any(not _is_storable(message) for message in messages):
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
            queue_offset=len(self.queue(topic, queue_id)) if _enters_queue(sys_flag) else 0,
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

    def _route(self, message: Message) -> tuple[str, int, dict[str, str]]:
        properties = {name: value for name, value in (message.properties or {}).items() if value}
        if message.keys:
            properties["KEYS"] = " ".join(message.keys)
        if message.tags:
            properties["TAGS"] = message.tags
        if message.delay_level:
            properties["DELAY"] = str(message.delay_level)
        if message.delay_level > 0 and _enters_queue(message.sys_flag):
            level = min(message.delay_level, DELAY_LEVELS)
            properties |= {"DELAY": str(level), "REAL_TOPIC": message.topic, "REAL_QID": str(message.queue_id)}
            return SCHEDULE_TOPIC, level - 1, properties
        return message.topic, message.queue_id, properties

    def _size(self, message: Message) -> int:
        topic, _, properties = self._route(message)
        entries = [len(name.encode()) + 1 + len(value.encode()) for name, value in properties.items()]
        hosts = message.born_host, message.store_host or self.store_host
        wide = sum(host.startswith("[") for host in hosts)
        return 91 + 12 * wide + len(message.body) + len(topic) + sum(entries) + max(len(entries) - 1, 0)

    # -- asking ----------------------------------------------------------------------------------------------

    def queues(self) -> set[tuple[str, int]]:
        return {(record.topic, record.queue_id) for record in self.records if _enters_queue(record.sys_flag)}

    def queue(self, topic: str, queue_id: int) -> list[Record]:
        return [
            record
            for record in self.records
            if (record.topic, record.queue_id) == (topic, queue_id) and _enters_queue(record.sys_flag)
        ]

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


def _enters_queue(sys_flag: int) -> bool:
    return sys_flag & 0xC not in (PREPARED, ROLLBACK)


def _is_storable(message: Message) -> bool:
    properties = message.properties or {}
    texts = [message.tags, *message.keys, *properties.values()]
    names = "".join(properties)
    return not any("\x02" in text for text in (*texts, names)) and "\x01" not in names
