"""The record as a value: RocketMQ's golden records, read and written to the byte."""

from __future__ import annotations

import pytest
from support.messages import BORN, G1, G2, G3, STORED, as_v2, make_record

from penstock.errors import BadMessage, CorruptData
from penstock.format.record import Record, decode_record, encode_record, record_size, tags_code

pytestmark = pytest.mark.usefixtures("kernels_name")

HEAD = {"topic": "TopicTest", "born_timestamp": BORN, "store_timestamp": STORED}
HOSTS = {"born_host": "192.168.1.100:54321", "store_host": "127.0.0.1:10911"}
UNIQUE = "7F00000100002A139A55000000000000"
V6 = "[1050::5:600:300c:326b]"
GOLDEN = {
    "G1": (
        G1,
        Record(
            **HEAD,
            **HOSTS,
            queue_id=1,
            size=180,
            body=b"Hello RocketMQ",
            body_crc=0x69C865ED,
            properties={"KEYS": "order_123", "TAGS": "TagA", "UNIQ_KEY": UNIQUE},
        ),
    ),
    "G2": (G2, Record(**HEAD, **HOSTS, size=100)),
    "G3": (
        G3,
        Record(
            **HEAD,
            born_host=f"{V6}:54321",
            store_host=f"{V6}:10911",
            size=126,
            sys_flag=0x30,
            body=b"v6",
            body_crc=0x77065916,
        ),
    ),
}
golden = pytest.mark.parametrize(("data", "record"), GOLDEN.values(), ids=GOLDEN.keys())


@golden
def test_a_golden_record_is_read_field_by_field(data: bytes, record: Record) -> None:
    assert decode_record(data) == record


@golden
def test_a_golden_record_is_written_to_the_byte(data: bytes, record: Record) -> None:
    assert encode_record(record) == data


def test_the_golden_record_gives_its_keys_tags_and_ids() -> None:
    record = decode_record(G1)
    assert record.keys == ("order_123",)
    assert record.tags == "TagA"
    assert record.unique_key == UNIQUE
    assert record.tags_code == 2_598_919
    assert record.msg_id == "7F00000100002A9F0000000000000000"


def test_a_record_without_properties_has_empty_keys_and_tags() -> None:
    record = decode_record(G2)
    assert (record.keys, record.tags, record.unique_key, record.tags_code) == ((), "", "", 0)


def test_several_keys_are_split_on_single_spaces() -> None:
    record = Record(topic="T", properties={"KEYS": "a  b c "})
    assert record.keys == ("a", "b", "c")


def test_the_v2_form_is_one_byte_longer_and_read_as_the_same_message() -> None:
    data = as_v2(G1, b"TopicTest")
    assert len(data) == 181
    assert data[4:8].hex() == "daa320ab"
    assert data[102:104].hex() == "0009"
    record = decode_record(data)
    assert record.size == 181
    assert (record.topic, record.body, record.properties) == (
        "TopicTest",
        b"Hello RocketMQ",
        decode_record(G1).properties,
    )


def test_a_v2_topic_may_be_longer_than_v1_allows() -> None:
    plain, long = b"TopicTest", b"%RETRY%" + b"g" * 200
    data = as_v2(G1, plain).replace(b"\x00\x09" + plain, len(long).to_bytes(2, "big") + long)
    data = len(data).to_bytes(4, "big") + data[4:]
    assert decode_record(data).topic == long.decode()


def test_a_record_is_read_from_the_middle_of_a_buffer() -> None:
    assert decode_record(b"before" + G1 + b"after", 6) == decode_record(G1)


@pytest.mark.parametrize(("hosts", "size"), [((8, 8), 114), ((20, 8), 126), ((8, 20), 126), ((20, 20), 138)])
def test_record_lengths_by_address_family(hosts: tuple[int, int], size: int) -> None:
    assert record_size(14, 9, 0, *hosts) == size


def test_a_delayed_message_has_its_deliver_time_as_tags_code() -> None:
    record = Record(topic="SCHEDULE_TOPIC_XXXX", store_timestamp=STORED, properties={"DELAY": "3", "TAGS": "TagA"})
    assert record.tags_code == 1_600_000_011_234
    assert tags_code(record, (7,)) == STORED + 7


def test_the_tags_code_counts_bytes_that_are_not_utf8_as_java_decodes_them() -> None:
    damaged = decode_record(make_record(0, properties=b"TAGS\x01a\xffb"))
    replaced = decode_record(make_record(0, properties="TAGS\x01a\ufffdb".encode()))
    assert damaged.tags_code == replaced.tags_code


def test_bytes_that_are_not_utf8_survive_a_round_trip() -> None:
    data = make_record(0, properties=b"a\x01\xff\xfe")
    assert encode_record(decode_record(data)) == data


@pytest.mark.parametrize("data", [b"", G1[:90], G1[:179], G1[:4] + b"\0\0\0\0" + G1[8:], G1[:102] + b"\x0a" + G1[103:]])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_record(data)


@pytest.mark.parametrize(
    "record",
    [
        Record(topic="t" * 128),
        Record(topic="T", properties={"a": "b" * 32_766}),
        Record(topic="T", queue_id=2**31),
        Record(topic="T", born_host="example.org:1"),
    ],
)
def test_a_message_that_no_record_can_hold_is_refused(record: Record) -> None:
    with pytest.raises(BadMessage):
        encode_record(record)
