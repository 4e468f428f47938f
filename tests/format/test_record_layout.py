"""The places of a record's fields."""

from __future__ import annotations

import pytest

from penstock.format.constants import BLANK_MAGIC, MESSAGE_MAGIC
from penstock.format.record import Record, decode_record, encode_record
from penstock.format.record_layout import (
    LONG,
    belongs_to,
    body_length_at,
    head_of,
    is_filler,
    physical_offset_of,
    size_and_magic,
    size_of_parts,
    store_timestamp_at,
)

_HOSTS = ("10.0.0.1:80", "[2001:db8::1]:80")
RECORDS = [
    Record(
        topic="orders",
        queue_id=3,
        queue_offset=7,
        physical_offset=4096,
        flag=9,
        born_timestamp=11,
        born_host=born,
        store_timestamp=1_600_000_000_000,
        store_host=store,
        properties={"KEYS": "k"},
        body=b"body",
    )
    for born in _HOSTS
    for store in _HOSTS
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: f"{each.born_host} {each.store_host}")
def test_the_fields_are_where_the_encoder_puts_them(record: Record) -> None:
    data = b"before" + encode_record(record)
    stored = decode_record(data, 6)
    head = head_of(data, 6)
    assert head == (
        stored.size,
        MESSAGE_MAGIC,
        stored.body_crc,
        stored.queue_id,
        stored.flag,
        stored.queue_offset,
        stored.physical_offset,
        stored.sys_flag,
        stored.born_timestamp,
    )
    assert size_and_magic(data, 6) == (stored.size, MESSAGE_MAGIC)
    assert physical_offset_of(data, 6) == 4096
    assert LONG.unpack_from(data, 6 + store_timestamp_at(stored.sys_flag)) == (1_600_000_000_000,)
    assert data[6 + body_length_at(stored.sys_flag) :][:8] == b"\0\0\0\4body"
    assert size_of_parts(data, 6) == stored.size
    assert not is_filler(data, 6)


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: f"{each.born_host} {each.store_host}")
def test_a_record_belongs_to_one_topic_queue_and_queue_offset(record: Record) -> None:
    data = encode_record(record)
    assert belongs_to(data, b"orders", 3, 7)
    assert not belongs_to(data, b"order", 3, 7)
    assert not belongs_to(data, b"orders", 2, 7)
    assert not belongs_to(data, b"orders", 3, 6)


def test_lengths_that_run_past_the_data_have_no_sum() -> None:
    data = bytearray(encode_record(RECORDS[0]))
    at = body_length_at(head_of(data).sys_flag)
    data[at : at + 4] = (len(data)).to_bytes(4, "big")
    assert size_of_parts(data, 0) is None
    data[at : at + 4] = (-1).to_bytes(4, "big", signed=True)
    assert size_of_parts(data, 0) is None


def test_a_filler_is_known_by_its_magic() -> None:
    assert is_filler(bytes(3) + (8).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big"), 3)
