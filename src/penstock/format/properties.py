"""A message's properties as bytes: `name 0x01 value`, joined with 0x02.

Some RocketMQ versions end the string with 0x02, others do not. Penstock reads both forms, and writes no final 0x02. On
disk, an empty name or value looks like an absent property, so properties with an empty name or value are never written.
Bytes that are not UTF-8 survive a round trip (surrogateescape).
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import BadMessage
from penstock.format.constants import MAX_ZEROS, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

_SEPARATOR = PROPERTY_SEPARATOR.encode()
_TOO_MANY_ZEROS = bytes(MAX_ZEROS)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Returns the property string, in the mapping's order, without a trailing separator. Raises BadMessage."""
    text = PROPERTY_SEPARATOR.join(
        [f"{name}{NAME_VALUE_SEPARATOR}{value}" for name, value in properties.items() if name and value]
    )
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise BadMessage(f"a property holds text that UTF-8 cannot express: {error.object[error.start]!r}") from None


def decode_properties(data: bytes) -> dict[str, str]:
    """Returns the properties in a property string. If a name is there twice, the last value counts.

    A value may contain 0x01.
    """
    return split_properties(data.decode("utf-8", "surrogateescape"))


def split_properties(text: str) -> dict[str, str]:
    """Returns the properties in a property string that is already text, like `decode_properties`."""
    properties = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def join_properties(first: bytes, second: bytes) -> bytes:
    """Joins two property strings with exactly one separator, as RocketMQ 4.9.3 and later do."""
    if first and second and not first.endswith(_SEPARATOR):
        return first + _SEPARATOR + second
    return first + second


def check_no_zeros(encoded: bytes) -> None:
    """Raises BadMessage if a property string ends with NUL, or has MAX_ZEROS NUL in a row.

    After a power loss, such a string looks like one that lost a sector.
    """
    if encoded.endswith(b"\0") or _TOO_MANY_ZEROS in encoded:
        raise BadMessage(f"the properties end with NUL or have {MAX_ZEROS} NUL in a row; both look like a lost sector")


def check_property(name: str, value: str) -> None:
    """Raises BadMessage if a user's property cannot be stored as given."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise BadMessage(f"property {name!r} has the value {value!r}; both must be text, so write str(...)")
    if not name:
        raise BadMessage("a property needs a name")
    if NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name:
        raise BadMessage(f"the property name {name!r} holds 0x01 or 0x02, which separate properties on disk")
    if PROPERTY_SEPARATOR in value:
        raise BadMessage(f"the value of property '{name}' holds 0x02, which separates properties on disk")
