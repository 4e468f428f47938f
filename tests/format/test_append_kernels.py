"""Encoding records: the bytes, what is written last, and what is rejected."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from support.messages import BORN, G1, G2, G3, STORED, make_record

from penstock.format import kernels
from penstock.format.constants import MESSAGE_MAGIC_V2
from penstock.format.hosts import encode_host
from penstock.format.kernel_row_types import Reason
from penstock.format.record_layout import size_and_magic

pytestmark = pytest.mark.usefixtures("kernels_name")

V4, V6 = encode_host("127.0.0.1:10911"), encode_host("[1050::5:600:300c:326b]:10911")


def encode(out: kernels.WritableBuffer, at: int = 0, **changes: object) -> int:
    fields = {
        "physical_offset": 0,
        "queue_offset": 0,
        "store_timestamp": STORED,
        "queue_id": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": BORN,
        "born_host": encode_host("192.168.1.100:54321"),
        "store_host": V4,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"",
        "topic": b"TopicTest",
        "properties": b"",
        "publish_now": True,
    }
    return kernels.encode_record(out, at, *(fields | changes).values())


def test_golden_records_are_encoded_to_the_byte() -> None:
    out = bytearray(406)
    properties = b"KEYS\x01order_123\x02TAGS\x01TagA\x02UNIQ_KEY\x017F00000100002A139A55000000000000"
    assert encode(out, 0, queue_id=1, body=b"Hello RocketMQ", properties=properties) == 180
    assert encode(out, 180) == 100
    born = encode_host("[1050::5:600:300c:326b]:54321")
    assert encode(out, 280, body=b"v6", sys_flag=0x30, born_host=born, store_host=V6) == 126
    assert bytes(out) == G1 + G2 + G3


@pytest.mark.parametrize("make", [bytearray, lambda size: mmap.mmap(-1, size), lambda size: np.zeros(size, np.uint8)])
def test_every_kind_of_buffer_is_written(make) -> None:
    out = make(128)
    assert encode(out, 28) == 100
    assert bytes(memoryview(out))[28:] == G2


def test_a_body_may_be_any_buffer() -> None:
    out = bytearray(102)
    encode(out, body=memoryview(b"xv6x")[1:3])
    assert out[88:90] == b"v6"


def test_an_unpublished_record_is_complete_but_for_its_first_eight_bytes() -> None:
    out = bytearray(b"\xee" * 100)
    size = encode(out, publish_now=False)
    assert out[:8] == b"\xee" * 8
    assert out[8:] == G2[8:]
    kernels.publish(out, 0, size)
    assert out == G2


def test_a_reader_sees_nothing_of_a_record_before_it_is_published() -> None:
    out = bytearray(100)
    encode(out, publish_now=False)
    assert kernels.check_record(out, 0, 0, True) == Reason.UNWRITTEN


@pytest.mark.parametrize(("size", "header"), [(96, "00000060cbd43194"), (8, "00000008cbd43194")])
def test_a_filler_is_its_header_only(size: int, header: str) -> None:
    out = bytearray(b"\xee" * 100)
    kernels.write_blank(out, 100 - size, size)
    assert out == b"\xee" * (100 - size) + bytes.fromhex(header) + b"\xee" * (size - 8)


def test_whole_records_are_copied() -> None:
    out = bytearray(300)
    kernels.copy_published(out, 10, G1 + G2)
    assert out == bytes(10) + G1 + G2 + bytes(10)


@pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 1024, 1025, 1500])
@pytest.mark.parametrize("first_size", [len(G1), 0])
def test_a_batch_that_is_taken_back_leaves_zeros(count: int, first_size: int) -> None:
    out = bytearray(G2 + count * G1 + G2)
    kernels.take_back(out, len(G2), len(out) - len(G2), first_size)
    assert out == G2 + bytes(count * len(G1)) + G2


def test_a_record_gets_the_magic_of_its_version() -> None:
    out = bytearray(100)
    kernels.publish(out, 0, 100, MESSAGE_MAGIC_V2)
    assert size_and_magic(out) == (100, MESSAGE_MAGIC_V2)


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": b"t" * 128},
        {"properties": bytes(32_768)},
        {"sys_flag": 0x10},
        {"sys_flag": 0x20},
        {"born_host": V6},
        {"store_host": b""},
        {"body": bytes(100_000)},
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(changes: dict[str, object]) -> None:
    out = bytearray(100_000)
    with pytest.raises(ValueError):
        encode(out, **changes)
    assert not any(out)


@pytest.mark.parametrize("field", ["queue_id", "flag", "sys_flag", "reconsume_times"])
@pytest.mark.parametrize("value", [2**31, -(2**32)])
def test_a_number_that_does_not_fit_its_field_is_refused(field: str, value: int) -> None:
    out = bytearray(200)
    with pytest.raises(OverflowError):
        encode(out, **{field: value})
    assert not any(out)


@pytest.mark.parametrize("at", [-1, 1, 100, 2**40])
def test_no_write_goes_past_the_buffer(at: int) -> None:
    out = bytearray(100)
    with pytest.raises(ValueError):
        encode(out, at)
    with pytest.raises(ValueError):
        kernels.publish(out, at, 100)
    with pytest.raises(ValueError):
        kernels.write_blank(out, at, 100)
    with pytest.raises(ValueError):
        kernels.copy_published(out, at, G2)
    assert not any(out)


@pytest.mark.parametrize("size", [-1, 0, 7, 2**31])
def test_a_head_needs_a_size_that_a_record_can_have(size: int) -> None:
    with pytest.raises(ValueError):
        kernels.publish(bytearray(100), 0, size)
    with pytest.raises(ValueError):
        kernels.write_blank(bytearray(100), 0, size)


def test_less_than_a_head_is_not_copied() -> None:
    with pytest.raises(ValueError):
        kernels.copy_published(bytearray(100), 0, bytes(7))


def test_a_read_only_buffer_is_refused() -> None:
    for write in (
        lambda out: encode(out),
        lambda out: kernels.publish(out, 0, 100),
        lambda out: kernels.copy_published(out, 0, G2),
    ):
        with pytest.raises(BufferError):
            write(bytes(100))


def test_the_stored_crc_is_that_of_the_body() -> None:
    assert make_record(0, b"123456789")[8:12].hex() == "4bf43926"
