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

_SPACE = r"[ \t\r\n]*+"
_STRING = re.compile(r'"((?:[^"\\]++|\\.|\\\Z)*+)(?:"|\Z)', re.DOTALL)
_BARE_KEY = re.compile(rf"([{{,]{_SPACE})(-?[0-9]{{1,19}}+)(?={_SPACE}:)")
_OBJECT_KEY = re.compile(rf"(\{{[^{{}}\[\]]*+\}})(?={_SPACE}:)")
_SIGNS = [chr(code) for code in range(0xE000, 0xE040)]
"""Characters of Unicode's private use area. Three that the text does not contain mark what the text does contain."""


def loads(text: str) -> Any:
    """Parses a text. Raises CorruptData, with the position of the first error in nearly all cases.

    The work is linear in the length of the text, and nearly all of it is done by `re` and `json`.
    """
    try:
        return _STRICT.decode(text)
    except (ValueError, RecursionError):
        return _LooseText(text).value()


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


class _LooseText:
    """A loose text as strict JSON: bare keys and objects as keys stand in quotes and marks.

    `{0:1}` becomes `{"m0m":1}`, where m is a mark. `{{"a":"x"}:1}` becomes `{"m{NaN:NxN}m":1}`, where N is another. The
    strings of the text are taken out meanwhile, so that nothing in them is changed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        lowered = text.lower() if "\\u" in text else ""
        unused = [sign for sign in _SIGNS if sign not in text and f"\\u{ord(sign):x}" not in lowered]
        if len(unused) < 3:
            raise CorruptData("this JSON uses too many characters for private use")
        self._mark, self._quote, self._string = unused[:3]
        self._in_key = str.maketrans('"\t\r\n', self._quote + "   ")
        self._marked = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=self._map)

    def value(self) -> Any:
        strict = self._strict()
        try:
            return self._marked.decode(strict)
        except json.JSONDecodeError as error:
            at = error.pos - 2 * strict.count(self._mark, 0, error.pos)
            found = repr(self._text[at : at + 12]) if at < len(self._text) else "the end of the text"
            raise CorruptData(f"this is not JSON: {error.msg}", offset=at, found=found) from None
        except RecursionError:
            raise CorruptData("this is not JSON: it is nested too deeply") from None
        except ValueError as error:
            raise CorruptData(f"this is not JSON: {error}") from None

    def _strict(self) -> str:
        mark = self._mark
        pieces = _STRING.split(self._text)
        strings = pieces[1::2]
        if sum(map(len, pieces)) + 2 * len(strings) != len(self._text):
            raise CorruptData("this is not JSON: a string has no end", offset=len(self._text))
        parts = _BARE_KEY.split(f'"{self._string}"'.join(pieces[::2]))
        parts[1::3] = [before + '"' + mark for before in parts[1::3]]
        parts[2::3] = [key + mark + '"' for key in parts[2::3]]
        parts = _OBJECT_KEY.split("".join(parts))
        parts[1::2] = [f'"{mark}{key.translate(self._in_key)}{mark}"' for key in parts[1::2]]
        pieces[::2] = "".join(parts).split(self._string)
        return "".join(pieces)

    def _map(self, pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
        mark = self._mark
        return {self._key(key) if key.startswith(mark) else key: value for key, value in pairs}

    def _key(self, marked: str) -> Any:
        key = marked[1:-1]
        if not key.startswith("{"):
            return int(key)
        pieces = key.split(self._quote)
        pieces[1::2] = map(_SCALAR.encode, pieces[1::2])
        return tuple(self._marked.decode("".join(pieces)).items())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
_SCALAR = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
