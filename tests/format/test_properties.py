from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadMessage
from penstock.format.properties import check_property, decode_properties, encode_properties, join_properties


@pytest.mark.parametrize(
    ("data", "properties"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02c\x01d\x02", {"a": "b", "c": "d"}),  # the trailing separator of other versions
        (b"a\x01b\x02\x02c\x01d", {"a": "b", "c": "d"}),
        (b"a\x01b\x02a\x01c", {"a": "c"}),  # later duplicates win
        (b"a\x01b\x01c", {"a": "b\x01c"}),  # a value may hold 0x01
        (b"a\x01\x01", {"a": "\x01"}),
        (b"a\x01", {}),  # an empty value is an absent one
        (b"\x01b", {}),
        (b"ab", {}),
        (b"\x01", {}),
        (b"\x02", {}),
    ],
)
def test_a_property_string_is_read_by_rocketmqs_rules(data: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(data) == properties


def test_nothing_is_written_after_the_last_property() -> None:
    assert encode_properties({"KEYS": "k", "TAGS": "中"}) == "KEYS\x01k\x02TAGS\x01中".encode()


def test_empty_names_and_values_are_not_written() -> None:
    assert encode_properties({"a": "", "b": "c", "": "d"}) == b"b\x01c"


def test_text_that_utf8_cannot_express_is_refused() -> None:
    with pytest.raises(BadMessage):
        encode_properties({"a": "\ud800"})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1)


@given(st.dictionaries(texts, texts), st.sampled_from([b"", b"\x02"]))
def test_what_is_written_is_read_with_or_without_a_trailing_separator(
    properties: dict[str, str], trailing: bytes
) -> None:
    data = encode_properties(properties)
    assert decode_properties(data + trailing if data else b"") == properties


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (b"TAGS\x01TagB", b"CLUSTER\x01c", b"TAGS\x01TagB\x02CLUSTER\x01c"),
        (b"TAGS\x01TagB\x02", b"CLUSTER\x01c", b"TAGS\x01TagB\x02CLUSTER\x01c"),
        (b"", b"CLUSTER\x01c", b"CLUSTER\x01c"),
        (b"TAGS\x01TagB", b"", b"TAGS\x01TagB"),
        (b"", b"", b""),
    ],
)
def test_two_property_strings_are_joined_with_one_separator(first: bytes, second: bytes, joined: bytes) -> None:
    assert join_properties(first, second) == joined


@pytest.mark.parametrize(("name", "value"), [("", "b"), ("a\x01", "b"), ("a\x02", "b"), ("a", "b\x02c")])
def test_a_property_that_would_tear_others_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadMessage):
        check_property(name, value)


@pytest.mark.parametrize(("name", "value"), [("a", "b\x01c"), ("a b", ""), ("中", "文")])
def test_other_properties_are_allowed(name: str, value: str) -> None:
    check_property(name, value)
