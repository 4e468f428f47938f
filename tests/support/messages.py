"""Messages and logs whose content is known in advance.

Message number 7 is made from its number alone, so a test that kills the writer, or cuts the power, has to remember
numbers and places only. `make_log` and its neighbours build small log files record by record.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.format import kernels
from penstock.format.constants import DELAY, KEYS, MESSAGE_MAGIC_V2, SCHEDULE_TOPIC, TAGS, UNIQ_KEY
from penstock.format.hosts import encode_host
from penstock.format.properties import encode_properties
from penstock.format.record import record_size, tags_code
from penstock.format.sys_flag import with_hosts
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
SMALL_STEPS = {"penstock.store.files.preallocate.STEP": 1024, "penstock.store.commit_log.FIRST_STEP": 1024}
"""What has to be set, so that the small files of a log that grows do so in steps."""


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


G1 = bytes.fromhex(
    "000000b4daa320a769c865ed00000001000000000000000000000000000000000000000000000000"
    "00000174876e8000c0a801640000d43100000174876e84d27f00000100002a9f0000000000000000"
    "000000000000000e48656c6c6f20526f636b65744d5109546f7069635465737400424b455953016f"
    "726465725f3132330254414753015461674102554e49515f4b455901374630303030303130303030"
    "3241313339413535303030303030303030303030"
)
G2 = bytes.fromhex(
    "00000064daa320a70000000000000000000000000000000000000000000000000000000000000000"
    "00000174876e8000c0a801640000d43100000174876e84d27f00000100002a9f0000000000000000"
    "000000000000000009546f706963546573740000"
)
G3 = bytes.fromhex(
    "0000007edaa320a77706591600000000000000000000000000000000000000000000000000000030"
    "00000174876e8000105000000000000000050600300c326b0000d43100000174876e84d210500000"
    "0000000000050600300c326b00002a9f00000000000000000000000000000002763609546f706963"
    "546573740000"
)
BORN, STORED = 1_600_000_000_000, 1_600_000_001_234
HOST = "127.0.0.1:10911"


def make_record(
    position: int,
    body: bytes = b"body",
    *,
    topic: str = "T",
    queue_id: int = 0,
    queue_offset: int = 0,
    sys_flag: int = 0,
    store_timestamp: int = STORED,
    born_host: str = HOST,
    properties: dict[str, str] | bytes = b"",
) -> bytes:
    """The bytes of a record that says it lies at `position`."""
    if isinstance(properties, dict):
        properties = encode_properties(properties)
    host, born, name = encode_host(HOST), encode_host(born_host), topic.encode()
    sys_flag = with_hosts(sys_flag, born, host)
    out = bytearray(record_size(len(body), len(name), len(properties), len(born)))
    kernels.encode_record(
        *(out, 0, position, queue_offset, store_timestamp, queue_id, 7, sys_flag, BORN, born, host, 0, 0),
        *(body, name, properties, True),
    )
    return bytes(out)


def make_log(bodies: list[bytes], base: int = 0, **fields: object) -> bytearray:
    """Records one after the other, the first at `base`."""
    log = bytearray()
    for number, body in enumerate(bodies):
        log += make_record(base + len(log), body, queue_offset=number, **fields)  # type: ignore[arg-type]
    return log


def make_file(bodies: list[bytes], base: int = 0, blank: int = 0, tail: int = 0) -> bytearray:
    """RecordReader, then a filler of `blank` bytes or `tail` bytes that were never written."""
    log = make_log(bodies, base)
    log += bytes(blank + tail)
    if blank:
        kernels.write_blank(log, len(log) - blank, blank)
    return log


def as_v2(record: bytes, topic: bytes) -> bytes:
    """A V1 record in 5.x's form: another magic, and two bytes for the topic's length."""
    at = record.rindex(bytes([len(topic)]) + topic)
    grown = record[:at] + len(topic).to_bytes(2, "big") + record[at + 1 :]
    return len(grown).to_bytes(4, "big") + MESSAGE_MAGIC_V2.to_bytes(4, "big") + grown[8:]
