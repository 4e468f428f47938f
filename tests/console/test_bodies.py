"""Bodies as people read them."""

from __future__ import annotations

from support.clients import MARKUP

from penstock.console.pages.messages import MAX_SHOWN, Form, best_form, show


def test_the_form_that_tells_most_is_chosen() -> None:
    assert best_form(b'{"a": 1}') is Form.JSON
    assert best_form(b"{not json") is Form.TEXT
    assert best_form("gr\u00fc\u00df dich".encode()) is Form.TEXT
    assert best_form(bytes(range(256))) is Form.HEX
    assert best_form(b"") is Form.TEXT


def test_json_is_indented_and_what_is_none_is_text() -> None:
    assert show(b'{"a":[1]}').text == '{\n  "a": [\n    1\n  ]\n}'
    assert show(b"plain", Form.JSON).form is Form.TEXT
    assert show(b"[" * 100_000, Form.JSON).form is Form.TEXT


def test_hex_shows_offset_bytes_and_letters() -> None:
    assert show(b"hello\x00", Form.HEX).text == f"00000000  {'68 65 6c 6c 6f 00':<47}  hello."


def test_a_long_body_is_cut_and_said_to_be_and_may_end_within_a_letter() -> None:
    long = "\u00e4".encode() * MAX_SHOWN
    assert best_form(b"x" + long) is Form.TEXT
    shown = show(long)
    assert shown.is_cut
    assert len(shown.text) <= MAX_SHOWN


def test_markup_stays_as_it_was_written() -> None:
    assert show(MARKUP.encode()).text == MARKUP
