"""A body in the forms that people read: text, JSON, hex. What comes out is text to be shown as text, never markup."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_SHOWN: Final = 64 << 10
"""Bytes of a body that are shown; all of it can be downloaded."""
_PER_LINE: Final = 16


class Form(StrEnum):
    TEXT = "text"
    JSON = "JSON"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class Shown:
    """A body, or the beginning of it, in one form."""

    form: Form
    text: str
    is_cut: bool


def best_form(body: bytes) -> Form:
    """The form that tells most."""
    if _as_json(body) is not None:
        return Form.JSON
    try:
        text = body[:MOST_SHOWN].decode()
    except UnicodeDecodeError as error:
        if error.start < min(len(body), MOST_SHOWN) - 4:  # not merely cut within a character
            return Form.HEX
        text = ""
    control = sum(not (each.isprintable() or each in "\r\n\t") for each in text)
    return Form.HEX if control > len(text) // 10 else Form.TEXT


def show(body: bytes, form: Form | None = None) -> Shown:
    """The body in a form, or in the best one."""
    form = form or best_form(body)
    if form is Form.JSON:
        text = _as_json(body)
        if text is not None:
            return Shown(form, text[:MOST_SHOWN], len(text) > MOST_SHOWN)
        form = Form.TEXT
    part = body[:MOST_SHOWN]
    is_cut = len(body) > MOST_SHOWN
    if form is Form.HEX:
        return Shown(form, _as_hex(part), is_cut)
    return Shown(form, part.decode("utf-8", "replace"), is_cut)


def _as_json(body: bytes) -> str | None:
    """Indented; None if it is no JSON object or list, or too long to be worth it."""
    if len(body) > MOST_SHOWN or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _as_hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), _PER_LINE):
        row = body[at : at + _PER_LINE]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{_PER_LINE * 3 - 1}}  {text}")
    return "\n".join(lines)
