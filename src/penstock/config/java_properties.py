"""Java's `.properties` syntax, the syntax of broker.conf.

The reader accepts comments that begin with `#` or `!`. It accepts `=`, `:` or white space between name and value. A
backslash at the end of a line continues the line. A backslash before t, n, r, f or uXXXX is an escape; before any other
character, it is dropped. Java decodes Latin-1, but UTF-8 files are common, so the reader tries UTF-8 first. The writer
produces one `name=value` per line in ASCII, which is the same in both encodings. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SPACES = " \t\f"
_PARTS = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A name and a value, and the number of the first line of their text."""

    name: str
    value: str
    line: int


def parse_properties(data: bytes) -> list[Entry]:
    """Returns the entries in file order. Raises ValueError, with the line number, for an invalid unicode escape."""
    entries = []
    for number, line in _logical_lines(_decode(data)):
        matched = _PARTS.fullmatch(line)
        assert matched is not None  # the pattern matches any text
        name, value = matched.groups()
        entries.append(Entry(_unescape(name, number), _unescape(value, number), number))
    return entries


def format_property(name: str, value: str) -> str:
    """Returns the line for a name and a value, without a line break."""
    escaped = "".join(_escape(character) for character in value)
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    return f"{name}={escaped}"


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each logical line and its first line's number. Joins continued lines; skips blank lines and comments."""
    parts: list[str] = []
    start = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_SPACES)
        if not parts:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield start, "".join((*parts, line))
        parts = []
    if parts:
        yield start, "".join(parts)


def _unescape(text: str, line: int) -> str:
    def plain(matched: re.Match[str]) -> str:
        escape = matched[1]
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        if escape == "u":
            raise ValueError(f"line {line}: a \\u escape needs four hexadecimal digits")
        return _CONTROL.get(escape, escape)

    units = _ESCAPE.sub(plain, text)
    # Join the surrogate pairs that encode characters above U+FFFF.
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
