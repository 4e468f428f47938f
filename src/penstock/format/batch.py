"""The body of a batch message: consecutive messages, which the store unpacks into ordinary records.

OFFSET  SIZE   DESCRIPTION
0       4      totalSize of this message
4       4      magic: 0
8       4      CRC: 0; the store computes the CRC itself
12      4      flag
16      4 + n  body
…       2 + n  properties
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from penstock.errors import BadMessage
from penstock.format.constants import MAX_PROPERTIES_LENGTH

_HEAD = struct.Struct(">iiiii")
_SIZE = struct.Struct(">i")
_PROPERTIES_LENGTH = struct.Struct(">h")
FIXED_SIZE = _HEAD.size + _PROPERTIES_LENGTH.size
"""The size of a message in a batch without its body and properties."""


class BatchItem(NamedTuple):
    """One message of a batch. Its topic, queue and hosts are those of the batch. `properties` is a property string."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch_body(items: Iterable[BatchItem | tuple[int, bytes, bytes]]) -> bytes:
    """Returns the body of a batch. Raises BadMessage if a message's properties are too long."""
    pieces = []
    for flag, body, properties in items:
        if len(properties) > MAX_PROPERTIES_LENGTH:
            raise BadMessage(
                "the properties of a message in a batch are too long",
                expected=f"at most {MAX_PROPERTIES_LENGTH} bytes",
                found=len(properties),
            )
        size = FIXED_SIZE + len(body) + len(properties)
        pieces += [_HEAD.pack(size, 0, 0, flag, len(body)), body]
        pieces += [_PROPERTIES_LENGTH.pack(len(properties)), properties]
    return b"".join(pieces)


def has_more_messages(data: bytes, most: int) -> bool:
    """Returns whether a batch's body has more than `most` messages. False if a size makes no sense.

    It reads the sizes of the first `most` messages, and of none if more would not fit into the body anyway.
    """
    at, end = 0, len(data)
    if end <= most * FIXED_SIZE:
        return False
    for _ in range(most):
        if end - at < FIXED_SIZE:
            return False
        (size,) = _SIZE.unpack_from(data, at)
        if size < FIXED_SIZE:
            return False
        at += size
    return at < end


def decode_batch_body(data: bytes) -> list[BatchItem]:
    """Returns the messages in a batch's body. Raises BadMessage if the lengths are inconsistent."""
    items, at = [], 0
    while at < len(data):
        if len(data) - at < FIXED_SIZE:
            raise BadMessage("a batch ends in the middle of a message", offset=at)
        size, _, _, flag, body_length = _HEAD.unpack_from(data, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_length + _PROPERTIES_LENGTH.size
        if body_length < 0 or not properties_at <= at + size <= len(data):
            raise BadMessage("a message of a batch does not fit its size", offset=at)
        (properties_length,) = _PROPERTIES_LENGTH.unpack_from(data, properties_at - _PROPERTIES_LENGTH.size)
        if properties_at + properties_length != at + size:
            raise BadMessage("a message of a batch does not fit its size", offset=at)
        body = bytes(data[body_at : body_at + body_length])
        items.append(BatchItem(flag, body, bytes(data[properties_at : at + size])))
        at += size
    return items
