"""The languages a client may say it is written in; the numbers are those of the binary header."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Language(IntEnum):
    """A client's language. The JSON header carries the name, the binary one the number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


_KNOWN: Final[dict[object, Language]] = {
    **{language.name: language for language in Language},
    **{language.value: language for language in Language},
}


def language_of(name_or_number: object) -> Language:
    """The language of a name or a number; what nobody knows is OTHER, as no answer depends on it."""
    return _KNOWN.get(name_or_number, Language.OTHER)
