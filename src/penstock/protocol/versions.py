"""Versions as the protocol counts them: a client or broker sends the place of its version in a fixed list.

The list has two entries a version, the snapshot and the release. Its older part is irregular, so only the versions
that something depends on stand here; from 4.9.0 on, each minor version has ten patch versions.


The languages a client may say it is written in; the numbers are those of the binary header.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

V3_0_7_SNAPSHOT: Final = 28
V3_0_11: Final = 37
V3_1_8: Final = 63
"""What the C++ client 0.4.4 sends."""
V3_4_9: Final = 121
"""From here on a client's own maxReconsumeTimes counts; ali-ons sends this."""
V3_5_3: Final = 127
V4_1_0: Final = 233
"""From here on a broker is trusted with SQL92 filters."""
V4_3_0: Final = 273
V4_9_0: Final = 393
V4_9_2: Final = 397
V4_9_4: Final = 401
"""From here on a client reads routes as strict JSON."""
V4_9_8: Final = 409
V5_0_0: Final = 413
V5_3_3: Final = 479
CURRENT: Final = V4_9_8
"""What Penstock says it is."""
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
    """`V4_9_8` for 409; `V?_121` in style for a number whose name is not known here."""
    if version in _NAMED:
        return _NAMED[version]
    if not V4_9_0 - 1 <= version <= _HIGHEST:
        return f"V?_{version}"
    steps, released = divmod(version - (V4_9_0 - 1), 2)
    minor, patch = divmod(steps, 10)
    major, minor = (4, 9) if minor == 0 else (5, minor - 1)
    return f"V{major}_{minor}_{patch}" + ("" if released else "_SNAPSHOT")


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
