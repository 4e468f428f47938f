"""JSON as fastjson writes it, for RocketMQ's config files and admin bodies.

fastjson writes maps with unquoted integer keys, `{0:250,1:249}`, and maps with objects as keys,
`{{"queueId":0,"topic":"T"}:5}`. `loads` reads strict JSON and both of these loose forms. `dumps` writes the pretty form
of the config files: indented with TABs, no space after a colon, integer keys unquoted and without line breaks.

In Python, an unquoted integer key is an int. A quoted key is a str. An object as key is a tuple of (name, value) pairs.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from penstock.errors import CorruptData

_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_MAX_DEPTH = 64


def loads(text: str) -> Any:
    """Parses a text. Raises CorruptData with the position of the first error."""
    try:
        return _STRICT.decode(text)
    except (ValueError, RecursionError):
        reader = _Reader(text)
        value, at = reader.value(reader.skip(0), 0)
        if at != len(text):
            reader.fail(at, "the end of the text")
        return value


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Returns the pretty form. Keeps the order of a dict, or sorts its keys, as fastjson sorts a bean's fields."""
    return "".join(_pieces(value, "\n", sort_keys))


def _pieces(value: Any, newline: str, sort_keys: bool) -> list[str]:
    if isinstance(value, dict) and value:
        pieces, inner, comma = ["{"], newline + "\t", ""
        for key, item in sorted(value.items()) if sort_keys else value.items():
            if isinstance(key, str):
                pieces += [comma, inner, _SCALAR.encode(key), ":"]
            elif isinstance(key, tuple):
                pieces += [comma, *_pieces(dict(key), inner, sort_keys), ":"]
            else:
                pieces += [comma, _SCALAR.encode(key), ":"]
            pieces += _pieces(item, inner, sort_keys)
            comma = ","
        return [*pieces, newline, "}"]
    if isinstance(value, list | tuple) and value:
        pieces, inner, comma = ["["], newline + "\t", ""
        for item in value:
            pieces += [comma, inner, *_pieces(item, inner, sort_keys)]
            comma = ","
        return [*pieces, newline, "]"]
    return [_SCALAR.encode(value)]


class _Reader:
    """Parses the loose form. Each method takes a position and returns a value and the position after it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        if depth > _MAX_DEPTH:
            self.fail(at, f"at most {_MAX_DEPTH} levels")
        read = {"{": self._map, "[": self._list}.get(self._text[at : at + 1], self._scalar)
        value, at = read(at, depth)
        return value, self.skip(at)

    def _map(self, at: int, depth: int) -> tuple[Any, int]:
        pairs: dict[Any, Any] = {}
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "}":
            return pairs, at + 1
        while True:
            key, at = self._key(at, depth)
            at = self.skip(self._expect(at, ":"))
            pairs[key], at = self.value(at, depth + 1)
            if self._text[at : at + 1] == "}":
                return pairs, at + 1
            at = self.skip(self._expect(at, ","))

    def _key(self, at: int, depth: int) -> tuple[Any, int]:
        integer = _INTEGER.match(self._text, at)
        if integer:
            return int(integer[0]), self.skip(integer.end())
        start, opening = at, self._text[at : at + 1]
        if opening not in ('"', "{"):
            self.fail(at, "a key")
        key, at = self.value(at, depth + 1)
        if isinstance(key, dict):
            if any(isinstance(part, dict | list) for part in key.values()):
                self.fail(start, "an object of plain values as key")
            key = tuple(key.items())
        return key, at

    def _list(self, at: int, depth: int) -> tuple[Any, int]:
        items: list[Any] = []
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "]":
            return items, at + 1
        while True:
            item, at = self.value(at, depth + 1)
            items.append(item)
            if self._text[at : at + 1] == "]":
                return items, at + 1
            at = self.skip(self._expect(at, ","))

    def _scalar(self, at: int, _depth: int) -> tuple[Any, int]:
        try:
            return _STRICT.raw_decode(self._text, at)
        except ValueError:
            self.fail(at, "a value")

    def _expect(self, at: int, sign: str) -> int:
        if self._text[at : at + 1] != sign:
            self.fail(at, f"'{sign}'")
        return at + 1

    def fail(self, at: int, expected: str) -> NoReturn:
        found = repr(self._text[at : at + 12]) if at < len(self._text) else "the end of the text"
        raise CorruptData("this is not JSON", offset=at, expected=expected, found=found)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
_SCALAR = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
