"""The versions and languages that clients and brokers state in a header.

A version is a position in RocketMQ's list of versions, which has two entries per version: snapshot and release. The
older part of the list is irregular, so this module names only the versions that other code depends on. From 4.9.0 on,
each minor version has ten patch versions. The numbers of the languages are those of the binary header. Plain values.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

V3_0_7_SNAPSHOT: Final = 28
V3_0_11: Final = 37
V3_1_8: Final = 63
"""The version that the C++ client 0.4.4 sends."""
V3_4_9: Final = 121
"""The first version whose clients set their own maxReconsumeTimes. ali-ons sends it."""
V3_5_3: Final = 127
V4_1_0: Final = 233
"""The first broker version for which clients use SQL92 filters."""
V4_3_0: Final = 273
V4_9_0: Final = 393
V4_9_2: Final = 397
V4_9_4: Final = 401
"""The first version whose clients read routes as strict JSON."""
V4_9_8: Final = 409
V5_0_0: Final = 413
V5_3_3: Final = 479
CURRENT: Final = V4_9_8
"""The version that Penstock sends."""
_NAMED: Final = {
    V3_0_7_SNAPSHOT: "V3_0_7_SNAPSHOT",
    V3_0_11: "V3_0_11",
    V3_1_8: "V3_1_8",
    V3_4_9: "V3_4_9",
    V3_5_3: "V3_5_3",
    V4_1_0: "V4_1_0",
    V4_3_0: "V4_3_0",
}
_HIGHEST: Final = 611  # 5.9.9


def version_name(version: int) -> str:
    """Returns the name of a version number: `V4_9_8` for 409, `V?_50` for a number without a known name."""
    if version in _NAMED:
        return _NAMED[version]
    if not V4_9_0 - 1 <= version <= _HIGHEST:
        return f"V?_{version}"
    steps, released = divmod(version - (V4_9_0 - 1), 2)
    minor, patch = divmod(steps, 10)
    major, minor = (4, 9) if minor == 0 else (5, minor - 1)
    return f"V{major}_{minor}_{patch}" + ("" if released else "_SNAPSHOT")


class Language(IntEnum):
    """A client's language. The JSON header carries the name, the binary header the number."""

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


LANGUAGES: Final[dict[object, Language]] = {
    **{language.name: language for language in Language},
    **{language.value: language for language in Language},
}
"""The languages by name and by number."""


def language_of(name_or_number: object) -> Language:
    """Returns the language with this name or number; OTHER if it is unknown. No behaviour depends on OTHER."""
    return LANGUAGES.get(name_or_number, Language.OTHER)
