"""Frames of the two most frequent replies, those to a send and to a pull that found messages.

The bytes are the same as those of the encoded `Command`, at a third of the cost.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode
from penstock.store.message import GetStatus

_PREFIX: Final = struct.Struct(">II")
_ID, _QUEUE, _OFFSET, _OPAQUE = "<id>", "<queue>", "<offset>", 2_000_000_011
"""Placeholders for the variable parts of the template frames."""


class SendReplyFrames:
    """Frames of successful sends, with a JSON header. The constant parts, `always` included, are encoded once."""

    def __init__(self, always: Mapping[str, str]) -> None:
        arguments = {"msgId": _ID, "queueId": _QUEUE, "queueOffset": _OFFSET, **always}
        frame = encode(Command(ResponseCode.SUCCESS, arguments, b"", _OPAQUE, RESPONSE))
        self._first, _, rest = frame[_PREFIX.size :].decode().partition(_ID)
        self._second, _, rest = rest.partition(_QUEUE)
        self._third, _, rest = rest.partition(_OFFSET)
        self._fourth, _, self._last = rest.rpartition(str(_OPAQUE))

    def frame(self, opaque: int, msg_id: str, queue_id: int, queue_offset: int) -> bytes:
        header = (
            f"{self._first}{msg_id}{self._second}{queue_id}{self._third}{queue_offset}{self._fourth}{opaque}{self._last}"
        ).encode()
        length = len(header)
        return _PREFIX.pack(4 + length, length) + header


_BOUNDS: Final = {"nextBeginOffset": "<next>", "minOffset": "<min>", "maxOffset": "<max>"}


def _pieces() -> list[str]:
    arguments = {"suggestWhichBrokerId": "0", **_BOUNDS}
    template = Command(ResponseCode.SUCCESS, arguments, b"", _OPAQUE, RESPONSE, GetStatus.FOUND.name)
    rest, pieces = encode(template)[_PREFIX.size :].decode(), []
    for placeholder in (*_BOUNDS.values(), str(_OPAQUE)):
        piece, _, rest = rest.partition(placeholder)
        pieces.append(piece)
    return [*pieces, rest]


_FIRST, _SECOND, _THIRD, _FOURTH, _LAST = _pieces()


def pull_reply_head(opaque: int, next_begin_offset: int, min_offset: int, max_offset: int, size: int) -> bytes:
    """Returns the start of a FOUND reply's frame, with a JSON header. The caller sends `size` record bytes after it."""
    header = f"{_FIRST}{next_begin_offset}{_SECOND}{min_offset}{_THIRD}{max_offset}{_FOURTH}{opaque}{_LAST}".encode()
    length = len(header)
    return _PREFIX.pack(4 + length + size, length) + header
