from __future__ import annotations

import os
import time

import pytest

from penstock.errors import BadMessage
from penstock.format.message_id import UniqueIds, decode_message_id, encode_message_id, make_unique_id


@pytest.mark.parametrize(
    ("host", "offset", "message_id"),
    [
        ("127.0.0.1:10911", 0, "7F00000100002A9F0000000000000000"),
        ("127.0.0.1:10911", 190, "7F00000100002A9F00000000000000BE"),
        ("[1050::5:600:300c:326b]:10911", 314, "105000000000000000050600300C326B00002A9F000000000000013A"),
    ],
)
def test_a_message_id_says_where_the_record_lies(host: str, offset: int, message_id: str) -> None:
    assert encode_message_id(host, offset) == message_id
    assert decode_message_id(message_id) == (host, offset)
    assert decode_message_id(message_id.lower()) == (host, offset)


@pytest.mark.parametrize(
    "text", ["", "7F", "7F00000100002A9F00000000000000BG", "7F00000100002A9F 0000000000000BE", "0" * 40]
)
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(BadMessage, match="is not a message id"):
        decode_message_id(text)


def test_unique_ids_differ_and_have_rocketmqs_shape() -> None:
    ids = [make_unique_id() for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert {len(text) for text in ids} == {32}
    assert all(text == text.upper() for text in ids)


def test_a_unique_id_holds_address_process_and_time_of_the_month() -> None:
    data = bytes.fromhex(UniqueIds(bytes([10, 0, 0, 7])).make())
    now = time.localtime()
    month_began = time.mktime((now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    assert data[:4] == bytes([10, 0, 0, 7])
    assert int.from_bytes(data[4:6], "big") == os.getpid() & 0xFFFF
    assert abs(int.from_bytes(data[10:14], "big") - (time.time() - month_began) * 1000) < 60_000


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    ids = UniqueIds()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, ids.make().encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    from_child = os.read(reading, 32).decode()
    os.close(reading)
    os.close(writing)
    mine = ids.make()
    assert len(from_child) == 32
    assert from_child[8:20] != mine[8:20]
