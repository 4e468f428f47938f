"""broker.conf is Java's properties text; these are Java's rules, and the ways people write such files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.java_properties import format_property, parse_properties


def pairs(data: bytes) -> list[tuple[str, str]]:
    return [(entry.name, entry.value) for entry in parse_properties(data)]


@pytest.mark.parametrize("line", [b"a=b", b"a:b", b"a b", b"  a = b", b"a\t:\tb", b"a  b", b"\fa=b"])
def test_a_name_and_its_value_may_be_parted_in_every_way_java_allows(line: bytes) -> None:
    assert pairs(line) == [("a", "b")]


def test_only_the_first_separator_counts() -> None:
    assert pairs(b"namesrvAddr=10.0.0.1:9876;10.0.0.2:9876\nkey = =x") == [
        ("namesrvAddr", "10.0.0.1:9876;10.0.0.2:9876"),
        ("key", "=x"),
    ]


def test_comments_and_blank_lines_are_left_out() -> None:
    assert pairs(b"# one\n  ! two\n\n \t\na=1\n#a=2\\\na=3") == [("a", "1"), ("a", "3")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_as_on_any_system(end: bytes) -> None:
    assert pairs(b"a=1" + end + b"b=2" + end) == [("a", "1"), ("b", "2")]


def test_a_backslash_at_the_end_goes_on_in_the_next_line() -> None:
    assert pairs(b"levels=1s \\\n   5s \\\n   # 10s\nb=2") == [("levels", "1s 5s # 10s"), ("b", "2")]


def test_two_backslashes_at_the_end_are_one_in_the_value() -> None:
    assert pairs(b"path=C:\\\\\nb=2") == [("path", "C:\\"), ("b", "2")]


def test_a_last_line_that_would_go_on_just_ends() -> None:
    assert pairs(b"a=1\\") == [("a", "1")]


def test_escapes_stand_for_their_characters() -> None:
    assert pairs(rb"a\ b\=c=\t\u4E2D\u6587\q \uD83D\uDE00") == [("a b=c", "\t中文q 😀")]


def test_a_name_alone_has_an_empty_value() -> None:
    assert pairs(b"a\nb=\n") == [("a", ""), ("b", "")]


def test_utf_8_with_or_without_a_mark_and_latin_1_are_read() -> None:
    assert pairs("a=café".encode()) == [("a", "café")]
    assert pairs("a=café".encode("utf-8-sig")) == [("a", "café")]
    assert pairs("a=café".encode("latin-1")) == [("a", "café")]


def test_entries_know_their_line() -> None:
    assert [entry.line for entry in parse_properties(b"# x\na=1\\\n2\n\nb=3")] == [2, 5]


def test_a_broken_unicode_escape_is_named_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"line 2: a \\u escape needs four"):
        parse_properties(b"a=1\nb=\\u12")


@given(st.text())
def test_any_value_is_read_back_as_it_was_written(value: str) -> None:
    line = format_property("name", value)
    assert line.isascii()
    assert pairs(line.encode() + b"\n") == [("name", value)]
