"""What a connection may send: limits before memory, one sentence for each kind of garbage."""

from __future__ import annotations

import pytest
from support.loopback import at_most

from penstock.errors import BadFrame
from penstock.protocol import Command, FrameReader, encode
from penstock.protocol.frame import MAX_FRAME, MAX_HEADER


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    total = 4 + len(header) + len(body)
    return total.to_bytes(4, "big") + bytes([kind]) + len(header).to_bytes(3, "big") + header + body


def prefix(total: int, kind: int, header: int) -> bytes:
    return total.to_bytes(4, "big") + bytes([kind]) + header.to_bytes(3, "big")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (prefix(2**32 - 1, 0, 4), "a frame is too long, or the peer is not a RocketMQ client"),
        (prefix(2**31, 0, 4), "a frame is too long"),
        (prefix(MAX_FRAME - 3, 0, 4), "a frame is too long"),
        (prefix(100, 2, 10), "has an unknown serialisation"),
        (prefix(100, 255, 10), "has an unknown serialisation"),
        (prefix(0, 0, 0), "announces a header of 0, which does not fit"),
        (prefix(3, 0, 0), "does not fit"),
        (prefix(100, 0, 97), "announces a header of 97, which does not fit"),
        (prefix(100, 1, 2**24 - 1), "does not fit"),
        (prefix(MAX_FRAME - 4, 0, MAX_HEADER + 1), "header is too long"),
        (bytes.fromhex("16030102000100"), "received a TLS handshake"),
        (bytes.fromhex("16030100"), "received a TLS handshake"),
        (b"GET / HTTP/1.1\r\n\r\n", "not HTTP"),
        (b"POST", "not HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "not HTTP"),
        (b"\xff" * 40, "not a RocketMQ client"),
        (b"EHLO example.org\r\n", "not a RocketMQ client"),
    ],
)
def test_a_bad_beginning_is_refused_in_one_sentence_before_the_rest_comes(data: bytes, sentence: str) -> None:
    with pytest.raises(BadFrame, match=sentence) as caught:
        FrameReader().feed(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_bad_beginning_is_refused_when_it_comes_in_pieces(step: int) -> None:
    reader, data = FrameReader(), prefix(100, 7, 10)
    last = (len(data) - 1) // step * step
    for at in range(0, last, step):
        assert reader.feed(data[at : at + step]) == []
    with pytest.raises(BadFrame, match="unknown serialisation"):
        reader.feed(data[last:])


def test_the_largest_frame_is_accepted_and_one_byte_more_is_not() -> None:
    header = b'{"code":1}'
    reader = FrameReader(limit=100)
    (command,) = reader.feed(frame(header, bytes(100 - 8 - len(header))))
    assert len(command.body) == 82
    with pytest.raises(BadFrame, match="at most 100 bytes, found 101"):
        reader.feed(frame(header, bytes(101 - 8 - len(header))))


def test_a_frame_that_only_announces_its_length_takes_no_memory() -> None:
    readers = [FrameReader() for _ in range(100)]
    with at_most(100_000):
        for reader in readers:
            assert reader.feed(prefix(MAX_FRAME - 4, 0, 10)) == []


def test_a_large_frame_in_tiny_pieces_takes_little_more_than_its_size() -> None:
    data = encode(Command(310, {"a": "g"}, bytes(2_000_000)))
    reader = FrameReader()
    last = (len(data) - 1) // 3 * 3
    with at_most(len(data) * 5 // 4):
        for at in range(0, last, 3):
            assert reader.feed(data[at : at + 3]) == []
    (command,) = reader.feed(data[last:])
    assert len(command.body) == 2_000_000


def test_frames_byte_by_byte() -> None:
    data = encode(Command(1, {"k": "v"}, b"body", opaque=5)) * 3
    reader = FrameReader()
    found = [command for at in range(len(data)) for command in reader.feed(data[at : at + 1])]
    assert [command.opaque for command in found] == [5, 5, 5]


def test_an_empty_read_is_nothing() -> None:
    assert FrameReader().feed(b"") == []


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"{}",
        b'{"code":"x"}',
        b'{"code":null}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1,"flag":1e400}',
        b'{"code":NaN}',
        b'{"code":Infinity}',
        b'{"code":1' + b"0" * 5000 + b"}",
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"remark":"\\ud8"}',
        b'{"code":1,"remark":5}',
        b'{"code":1,"x":' + b"[" * 100_000 + b"}",
        b'{"code":1,"x":' + b'{"a":' * 100_000 + b"}",
        b'{"code":1} x',
    ],
    ids=lambda header: header[:24].decode("latin-1"),
)
def test_a_json_header_that_is_none_is_refused(header: bytes) -> None:
    with pytest.raises(BadFrame, match="JSON header cannot be read"):
        FrameReader().feed(frame(header))


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("", "ends in the middle"),
        ("0001 00 0199 00000001 00000000", "ends in the middle"),
        ("0001 00 0199 00000001 00000000 ffffffff 00000000", "remark of a binary header is longer"),
        ("0001 00 0199 00000001 00000000 00000009 00000000", "remark of a binary header is longer"),
        ("0001 00 0199 00000001 00000000 00000000 00000001", "do not fill it"),
        ("0001 00 0199 00000001 00000000 00000000 ffffffff", "do not fill it"),
        ("0001 00 0199 00000001 00000000 00000000 00000000 00", "do not fill it"),
        ("0001 00 0199 00000001 00000000 00000000 00000001 00", "ends in the middle"),
        ("0001 00 0199 00000001 00000000 00000000 00000002 ffff", "ends in the middle"),
        ("0001 00 0199 00000001 00000000 00000000 00000007 0001 61 00000009", "longer than the header"),
        ("0001 00 0199 00000001 00000000 00000000 00000007 0001 61 ffffffff", "longer than the header"),
        ("0001 00 0199 00000001 00000000 00000000 00000008 0001 ff 00000001 61", "not UTF-8"),
        ("0001 00 0199 00000001 00000000 00000001 80 00000000", "not UTF-8"),
    ],
)
def test_a_binary_header_that_is_none_is_refused(header: str, sentence: str) -> None:
    with pytest.raises(BadFrame, match=sentence):
        FrameReader().feed(frame(bytes.fromhex(header), kind=1))


def test_unknown_languages_are_other() -> None:
    unknown = FrameReader().feed(frame(b'{"code":1,"language":"COBOL"}') + frame(b'{"code":1,"language":99}'))
    binary = FrameReader().feed(frame(bytes.fromhex("0001 63 0199 00000001 00000000 00000000 00000000"), kind=1))
    assert [command.language.name for command in unknown + binary] == ["OTHER"] * 3


def test_what_a_header_leaves_out_has_javas_defaults() -> None:
    (command,) = FrameReader().feed(frame(b'{"code":34}'))
    assert (command.opaque, command.flag, command.version, command.remark, command.ext) == (0, 0, 0, None, {})
