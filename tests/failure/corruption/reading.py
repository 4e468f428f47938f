"""Everything that can be read from a store, by every way there is, compared with what was put."""

from __future__ import annotations

from collections.abc import Iterator

from failure.corruption.damaged_store import Base, Damage
from support.messages import place_of

from penstock.format.damage_placeholder import is_placeholder
from penstock.format.message_id import encode_message_id
from penstock.format.record import decode_record
from penstock.format.scan import ScanBatch, scan
from penstock.format.sys_flag import enters_queue
from penstock.store import Boundary, GetStatus, MessageStore, Record


def keys_of(record: Record) -> list[tuple[str, str]]:
    """(topic, key) of everything under which a query finds a record."""
    return [(record.topic, key) for key in (*record.keys, record.unique_key) if key]


class Reading:
    """What a store serves, checked against its base as it is read; asserts that nothing is served that was not put.

    Where a store was repaired, its log has placeholders; nobody gets one from a queue or by a key.
    """

    def __init__(self, store: MessageStore, base: Base, *, is_repaired: bool = False) -> None:
        self._store = store
        self._base = base
        self._is_repaired = is_repaired
        self.got: set[int] = set()
        """Physical offsets of the messages that the queues serve."""
        self.looked_up: set[int] = set()
        self.keys: dict[tuple[str, str], list[int]] = {}
        """By topic and key, what the index finds."""
        self._read_queues()
        self._look_up()
        self._query()
        self._ask_for_times()
        self._scan_log()

    def _check(self, record: Record, way: str) -> None:
        put = self._base.records.get(record.physical_offset)
        assert put is not None, f"{way} serves a message that was never put: {record}"
        assert (place_of(record), record.body) == (place_of(put), put.body), f"{way} serves {record}, put was {put}"

    def _queues(self) -> list[tuple[str, int]]:
        """Those that were, and those that are."""
        known = {(record.topic, record.queue_id) for record in self._base.records.values()}
        return sorted(known | {(queue.topic, queue.queue_id) for queue in self._store.queues})

    def _read_queues(self) -> None:
        self._store.topics()
        for topic, queue_id in self._queues():
            for record in self._pages(topic, queue_id):
                self._check(record, "get")
                assert (record.topic, record.queue_id) == (topic, queue_id)
                assert record.physical_offset not in self.got, f"{record} is served twice"
                self.got.add(record.physical_offset)

    def _pages(self, topic: str, queue_id: int) -> Iterator[Record]:
        offset, last = max(self._store.min_offset(topic, queue_id), 0), -1
        while (page := self._store.get(topic, queue_id, offset)).status not in (
            GetStatus.OFFSET_OVERFLOW_ONE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
        ):
            for record in page.messages:
                assert offset <= record.queue_offset < page.next_begin_offset
                assert record.queue_offset > last
                last = record.queue_offset
                yield record
            assert page.next_begin_offset > offset, (topic, queue_id, offset, page)
            offset = page.next_begin_offset

    def _look_up(self) -> None:
        for offset, put in self._base.records.items():
            for asked in (offset, offset + 1, offset + put.size // 2):
                record = self._store.look_up(asked)
                if record is not None and not self._is_placeholder(record):
                    self._check(record, "look_up")
                    self.looked_up.add(record.physical_offset)
            by_id = self._store.look_up_id(encode_message_id(put.store_host, offset))
            if by_id is not None and not self._is_placeholder(by_id):
                self._check(by_id, "look_up_id")

    def _query(self) -> None:
        wanted = {each for record in self._base.records.values() for each in keys_of(record)}
        for topic, key in sorted(wanted):
            hits = self._store.query(topic, key)
            for record in hits:
                self._check(record, "query")
                assert record.topic == topic
            self.keys[topic, key] = [record.physical_offset for record in hits]
        for topic in {topic for topic, _ in wanted}:
            keys = sorted(key for each, key in wanted if each == topic)
            numbers, offsets = self._store.query_many(topic, keys)
            many: dict[str, list[int]] = {key: [] for key in keys}
            for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
                many[keys[number]].append(offset)
            assert many == {key: self.keys[topic, key] for key in keys}
            same, messages = self._store.query_many_messages(topic, keys)
            assert same.tolist() == numbers.tolist()
            assert [message.physical_offset for message in messages] == offsets.tolist()
            for message in messages:
                self._check(message, "query_many_messages")

    def _ask_for_times(self) -> None:
        times = sorted({record.store_timestamp for record in self._base.records.values()})
        for topic, queue_id in self._queues():
            lowest, highest = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            for boundary in Boundary:
                for time in (0, times[0], times[len(times) // 2], times[-1] + 1):
                    assert max(lowest, 0) <= self._store.offset_by_time(topic, queue_id, time, boundary) <= highest
            self._store.earliest_time(topic, queue_id)
        self._store.earliest_time()

    def _scan_log(self) -> None:
        """As a dump of the log does: positions, sizes and bodies must be right, whatever a header says of its queue."""
        for file in self._store.log.queue.files:
            for item in scan(file.map.view, file.from_offset, 0, file.readable, check_crc=True):
                for row in item.rows if isinstance(item, ScanBatch) else ():
                    at = int(row["physical_offset"]) - file.from_offset
                    record = decode_record(bytes(file.map.view[at : at + int(row["size"])]))
                    if self._is_placeholder(record):
                        continue
                    put = self._base.records.get(record.physical_offset)
                    assert put is not None, f"the log shows a record that was never put: {record}"
                    assert (record.size, record.body) == (put.size, put.body)

    def _is_placeholder(self, record: Record) -> bool:
        rolled_back = not enters_queue(record.sys_flag)
        return self._is_repaired and rolled_back and is_placeholder(record.topic, record.size)


def assert_undamaged_is_served(reading: Reading, base: Base, damage: Damage) -> None:
    """A message is there if no byte of its record was touched; in its queue if none of its unit was, either."""
    for offset, record in base.records.items():
        if damage.hits_record(record):
            continue
        assert offset in reading.looked_up, f"look_up lost {place_of(record)}, which was not touched"
        assert offset in reading.got or damage.hits_unit(record), f"get lost {place_of(record)}, which was not touched"
        for key in keys_of(record):
            # Nothing covers properties: a damaged record may have got this very key.
            found = [at for at in reading.keys[key] if at == offset or not damage.hits_record(base.records[at])]
            assert found == [offset] or (damage.hits_folder("index") and not found), f"key {key} of {place_of(record)}"
