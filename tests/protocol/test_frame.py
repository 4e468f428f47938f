"""Frames byte by byte, as the format page says; the bytes here were written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.protocol import Command, FrameReader, Language, encode, encode_parts

JSON_HEADER = b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,"version":409}'
JSON_FRAME = bytes.fromhex("0000005e 0000005a") + JSON_HEADER
BINARY_FRAME = bytes.fromhex(
    "00000028 01000021"  # 4 + 33 + 3 of body; type 1, header of 33
    "0069 00 0199 00000001 00000000"  # code 105, JAVA, 4.9.8, opaque 1, no flag
    "00000000"  # no remark
    "0000000c 0005 746f706963 00000001 54"  # topic = T
    "616263"  # abc
)
ROUTE = Command(105, {"topic": "T"}, opaque=1, language=Language.JAVA)


def reply_frame(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def test_a_json_frame_is_written_as_java_writes_it() -> None:
    assert encode(ROUTE) == JSON_FRAME


def test_a_json_frame_is_read() -> None:
    assert FrameReader().feed(JSON_FRAME) == [ROUTE]


def test_a_binary_frame_is_written_to_the_byte() -> None:
    command = Command(105, {"topic": "T"}, b"abc", opaque=1, language=Language.JAVA, binary=True)
    assert encode(command) == BINARY_FRAME


def test_a_binary_frame_is_read() -> None:
    (command,) = FrameReader().feed(BINARY_FRAME)
    assert command.binary
    assert (command.code, command.language, command.version, command.opaque) == (105, Language.JAVA, 409, 1)
    assert (command.flag, command.remark, command.ext, command.body) == (0, None, {"topic": "T"}, b"abc")


def test_a_binary_reply_with_a_remark_is_read_and_written() -> None:
    frame = bytes.fromhex(
        "0000001e 0100001a 0011 0c 0199 7fffffff 00000001"  # code 17, RUST, the highest opaque, a response
        "00000005 6e6f206e6f"  # no no
        "00000000"
    )
    (command,) = FrameReader().feed(frame)
    assert command == Command(17, {}, b"", 2**31 - 1, 1, "no no", Language.RUST, 409, True)
    assert encode(command) == frame


def test_the_body_follows_the_header_and_is_not_copied_into_it() -> None:
    body = bytes(5_000_000)
    parts = encode_parts(Command(310, {"a": "g"}, body))
    assert parts[1] is body
    (command,) = FrameReader().feed(b"".join(parts))
    assert command.body == body


def test_a_frame_without_body_is_one_piece() -> None:
    assert len(encode_parts(ROUTE)) == 1


def test_an_empty_binary_value_is_the_same_as_none() -> None:
    command = Command(105, {"topic": "T", "empty": ""}, binary=True)
    assert FrameReader().feed(encode(command))[0].ext == {"topic": "T"}


@pytest.mark.parametrize("code", [200050, -40000])
def test_a_code_beyond_16_bits_cannot_be_sent_with_a_binary_header(code: int) -> None:
    with pytest.raises(BadRequest, match="send it as JSON"):
        encode(Command(code, binary=True))
    assert FrameReader().feed(encode(Command(code)))[0].code == code


def test_a_name_beyond_15_bits_cannot_be_sent_with_a_binary_header() -> None:
    with pytest.raises(BadRequest, match="name is too long"):
        encode(Command(1, {"n" * 40_000: "v"}, binary=True))


@pytest.mark.parametrize("binary", [False, True])
def test_arguments_beyond_24_bits_of_length_are_refused(binary: bool) -> None:
    with pytest.raises(BadRequest, match="too long for a header"):
        encode(Command(1, {"a": "x" * (1 << 24)}, binary=binary))


@pytest.mark.parametrize("binary", [False, True])
def test_text_that_utf_8_cannot_express_gets_question_marks(binary: bool) -> None:
    command = Command(1, {"a": "x\udc80y"}, remark="\ud800", binary=binary)
    (found,) = FrameReader().feed(encode(command))
    assert (found.ext, found.remark) == ({"a": "x?y"}, "?")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
full_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
ints = st.integers(-(2**31), 2**31 - 1)
shorts = st.integers(-(2**15), 2**15 - 1)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    binary = draw(st.booleans())
    strings = full_texts if binary else texts  # in the binary form an empty text is none
    return Command(
        code=draw(shorts if binary else ints),
        ext=draw(st.dictionaries(strings, strings, max_size=8)),
        body=draw(st.binary(max_size=64)),
        opaque=draw(ints),
        flag=draw(ints),
        remark=draw(st.none() | strings),
        language=draw(st.sampled_from(Language)),
        version=draw(shorts if binary else ints),
        binary=binary,
    )


@given(st.lists(commands(), max_size=5), st.data())
def test_whatever_is_written_is_read_however_it_is_cut(sent: list[Command], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, received = FrameReader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += reader.feed(stream[begin:end])
    assert received == sent
