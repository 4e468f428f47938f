from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadMessage
from penstock.format.batch import BatchItem, decode_batch_body, encode_batch_body, has_more_messages
from penstock.format.properties import decode_properties, join_properties

TWO = [BatchItem(1, b"one", b"TAGS\x01TagB"), BatchItem(-1, b"", b"")]


def test_a_batch_is_written_message_after_message() -> None:
    first = bytes.fromhex("00000022 00000000 00000000 00000001 00000003 6f6e65 0009 544147530154616742")
    second = bytes.fromhex("00000016 00000000 00000000 ffffffff 00000000 0000")
    assert encode_batch_body(TWO) == first + second
    assert decode_batch_body(first + second) == TWO


def test_a_batch_of_nothing_is_empty() -> None:
    assert encode_batch_body([]) == b""
    assert decode_batch_body(b"") == []


items = st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=99), st.binary(max_size=99)))


@given(items)
def test_what_is_put_into_a_batch_comes_out(messages: list[tuple[int, bytes, bytes]]) -> None:
    assert decode_batch_body(encode_batch_body(messages)) == messages


@pytest.mark.parametrize("cut", range(1, len(encode_batch_body(TWO)) - 1))
def test_a_batch_that_was_cut_is_refused_unless_the_cut_is_between_messages(cut: int) -> None:
    data = encode_batch_body(TWO)[:cut]
    if cut == 34:
        assert decode_batch_body(data) == TWO[:1]
    else:
        with pytest.raises(BadMessage):
            decode_batch_body(data)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_read_but_never_an_accident(data: bytes) -> None:
    try:
        messages = decode_batch_body(data)
    except BadMessage:
        return
    assert sum(22 + len(item.body) + len(item.properties) for item in messages) == len(data)


def test_properties_that_no_record_can_hold_are_refused() -> None:
    with pytest.raises(BadMessage, match="too long"):
        encode_batch_body([(0, b"", bytes(32_768))])


def test_the_batchs_properties_do_not_tear_the_last_one_of_a_message() -> None:
    joined = join_properties(TWO[0].properties, b"CLUSTER\x01DefaultCluster")
    assert decode_properties(joined) == {"TAGS": "TagB", "CLUSTER": "DefaultCluster"}


@given(items, st.integers(0, 12))
def test_messages_of_a_batch_are_counted_up_to_a_limit(messages: list[tuple[int, bytes, bytes]], most: int) -> None:
    assert has_more_messages(encode_batch_body(messages), most) == (len(messages) > most)


@given(st.binary(max_size=200), st.integers(0, 5))
def test_rubbish_is_counted_without_an_error(data: bytes, most: int) -> None:
    assert has_more_messages(data, most) in (False, True)
    assert not has_more_messages(bytes(22 * 10), 5), "a size of 0 makes no sense"
