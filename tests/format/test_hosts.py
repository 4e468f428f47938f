from __future__ import annotations

import pytest

from penstock.errors import BadMessage, CorruptData
from penstock.format.hosts import decode_host, encode_host


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("192.168.1.100:54321", "c0a801640000d431"),
        ("127.0.0.1:10911", "7f00000100002a9f"),
        ("0.0.0.0:0", "0000000000000000"),
        ("[1050::5:600:300c:326b]:10911", "105000000000000000050600300c326b00002a9f"),
        ("[::1]:65535", "000000000000000000000000000000010000ffff"),
    ],
)
def test_a_host_is_written_and_read(text: str, data: str) -> None:
    assert encode_host(text).hex() == data
    assert decode_host(bytes.fromhex(data)) == text


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "localhost:1", "::1:80", "[::1]"],
)
def test_what_is_no_host_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadMessage, match="is not a host; write 'ip:port'"):
        encode_host(text)


@pytest.mark.parametrize("size", [0, 7, 9, 19, 21])
def test_bytes_of_another_length_are_no_host(size: int) -> None:
    with pytest.raises(CorruptData):
        decode_host(bytes(size))
