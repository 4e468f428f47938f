"""Messages that are made from their number alone, and a look at a store that holds such messages.

Whoever put number 7 can be dead: what number 7 must look like is known without it. So a test that kills the writer,
or pulls the plug, needs to remember numbers and places only.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.format.constants import DELAY, KEYS, SCHEDULE_TOPIC, TAGS, UNIQ_KEY
from penstock.format.record import tags_code
from penstock.store import GetStatus, Message, MessageStore, PutResult, Record

SEED = int(os.environ.get("PENSTOCK_SEED", "20260401"))
"""All randomness of crash and damage tests comes from this; a failing test prints what it made of it."""

SMALL_FILES: dict[str, Any] = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 20 * 20,
    "max_hash_slot_num": 50,
    "max_index_num": 60,
    "max_message_size": 4096,
}
"""A roll of the log every 20 messages or so, of a queue every 20, of the index every 30."""


class Place(NamedTuple):
    """Where a message lies."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int


@lru_cache(maxsize=100_000)
def message(number: int) -> Message:
    """The message with this number: one in ten is delayed, which `is_delayed` tells; the others may go in batches."""
    chance = random.Random(number)
    properties = {UNIQ_KEY: f"U{number}"} if number % 3 else None
    return Message(
        chance.choice(("orders", "payments", "%RETRY%group")),
        b"%d " % number + chance.randbytes(chance.choice((0, 8, 60, 200, 300, 900, 2500))),
        keys=(f"k{number}", f"again{number}")[: chance.randint(1, 2)],
        tags=chance.choice(("", "paid", "open", "Aa", "BB")),
        properties=properties,
        queue_id=chance.randrange(3),
        delay_level=chance.randint(1, 18) if is_delayed(number) else 0,
        flag=number % 1000,
        born_timestamp=1_600_000_000_000 + number,
    )


def is_delayed(number: int) -> bool:
    return number % 10 == 7


def number_of(record: Record) -> int:
    return int(record.body.split(b" ", 1)[0])


def place_of(record: Record) -> Place:
    return Place(record.topic, record.queue_id, record.queue_offset, record.physical_offset, record.size)


def place_put(number: int, result: PutResult) -> Place:
    """Where a put says that it stored message `number`."""
    topic = SCHEDULE_TOPIC if is_delayed(number) else message(number).topic
    return Place(topic, result.queue_id, result.queue_offset, result.physical_offset, result.size)


def is_as_put(record: Record) -> bool:
    """Whether everything that the producer gave is in the record."""
    number = number_of(record)
    made = message(number)
    topic, queue_id = made.topic, made.queue_id
    properties = {name: value for name, value in {**(made.properties or {}), TAGS: made.tags}.items() if value}
    properties[KEYS] = " ".join(made.keys)
    if is_delayed(number):
        properties |= {DELAY: str(made.delay_level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        topic, queue_id = SCHEDULE_TOPIC, made.delay_level - 1
    wanted = (topic, queue_id, made.body, made.flag, made.born_timestamp, properties)
    found = (record.topic, record.queue_id, record.body, record.flag, record.born_timestamp, record.properties)
    return found == wanted


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[Record]:
    """All messages of a queue, in order, each at its own offset; places of lost messages are passed over."""
    records: list[Record] = []
    if not store.max_offset(topic, queue_id):
        return records
    offset = store.min_offset(topic, queue_id)
    while (page := store.get(topic, queue_id, offset)).status is not GetStatus.OFFSET_OVERFLOW_ONE:
        assert page.status in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING), (topic, queue_id, offset, page)
        assert page.next_begin_offset > offset, (topic, queue_id, offset, page)
        records += page.messages
        offset = page.next_begin_offset
    offsets = [record.queue_offset for record in records]
    assert offsets == sorted(set(offsets)), (topic, queue_id)
    return records


def read_store(store: MessageStore, *, holes: bool = False) -> dict[int, Place]:
    """Every message of the store by its number, each looked at from all sides; none may be there twice.

    Unless `holes` are to be expected, no offset of a queue may be without its message.
    """
    found: dict[int, Place] = {}
    by_topic: dict[str, list[Record]] = {}
    store.catch_up()
    for queue in store.queues:
        records = read_queue(store, queue.topic, queue.queue_id)
        assert holes or len(records) == queue.max_offset - queue.min_offset, (queue.topic, queue.queue_id)
        by_topic.setdefault(queue.topic, []).extend(records)
        for record in records:
            number, place = number_of(record), place_of(record)
            assert is_as_put(record), f"message {number} is altered: {record}"
            assert number not in found, f"message {number} is twice in the store: {found[number]} and {place}"
            found[number] = place
            assert queue.unit(record.queue_offset)[2] == tags_code(record, store.settings.delay_levels), place
    for topic, records in by_topic.items():
        assert_keys_found_once(store, topic, records)
    return found


def assert_keys_found_once(store: MessageStore, topic: str, records: Sequence[Record]) -> None:
    wanted = [(key, record) for record in records for key in (*record.keys, record.unique_key) if key]
    numbers, offsets = store.query_many(topic, [key for key, _ in wanted])
    hits: dict[int, list[int]] = {}
    for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
        hits.setdefault(number, []).append(offset)
    for number, (key, record) in enumerate(wanted):
        assert hits.get(number, []) == [record.physical_offset], f"key {key} of {place_of(record)}"
