"""Frames of the most frequent replies: to a send, and to a pull that found messages; and the pieces of their headers.

The bytes are the same as those of the encoded `Command`, at a third of the cost. `format.kernels.RequestPath` lays out
the same bytes from the pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from penstock.errors import BadRequest
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import MAX_HEADER, encode
from penstock.store.message import GetStatus

_PREFIX: Final = struct.Struct(">II")
_ID, _QUEUE, _OFFSET, _OPAQUE = "<id>", "<queue>", "<offset>", 2_000_000_011
"""Placeholders for the variable parts of the template frames."""
_TO_FIELDS: Final = 16
"""Bytes from the opaque of a binary header to its first field, if it has no remark."""


class SendReplyFrames:
    """Frames of successful sends, with a JSON header. The constant parts, `always` included, are encoded once."""

    def __init__(self, always: Mapping[str, str]) -> None:
        arguments = {"msgId": _ID, "queueId": _QUEUE, "queueOffset": _OFFSET, **always}
        frame = encode(Command(ResponseCode.SUCCESS, arguments, b"", _OPAQUE, RESPONSE))
        self._first, _, rest = frame[_PREFIX.size :].decode().partition(_ID)
        self._second, _, rest = rest.partition(_QUEUE)
        self._third, _, rest = rest.partition(_OFFSET)
        self._fourth, _, self._last = rest.rpartition(str(_OPAQUE))
        binary = encode(Command(ResponseCode.SUCCESS, dict(always), b"", _OPAQUE, RESPONSE, binary=True))
        opaque_at = binary.index(_OPAQUE.to_bytes(4), _PREFIX.size)
        self.binary_head = binary[_PREFIX.size : opaque_at]
        """The binary header of a reply up to its opaque."""
        self.binary_tail = binary[opaque_at + _TO_FIELDS :]
        """The fields `always` of a binary header."""

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The JSON header around message id, queue id, queue offset and opaque."""
        return tuple(piece.encode() for piece in (self._first, self._second, self._third, self._fourth, self._last))

    def frame(self, opaque: int, msg_id: str, queue_id: int, queue_offset: int) -> bytes:
        """Returns the frame of a reply. Raises BadRequest if its header is longer than peers accept."""
        header = (
            f"{self._first}{msg_id}{self._second}{queue_id}{self._third}{queue_offset}{self._fourth}{opaque}{self._last}"
        ).encode()
        length = len(header)
        if length > MAX_HEADER:
            raise BadRequest("the message ids of a batch are too long for a header", expected=MAX_HEADER, found=length)
        return _PREFIX.pack(4 + length, length) + header


_BOUNDS: Final = {"nextBeginOffset": "<next>", "minOffset": "<min>", "maxOffset": "<max>"}


def _pieces(arguments: Mapping[str, str], remark: str | None, *placeholders: str) -> tuple[str, ...]:
    """Returns the JSON header of a successful reply around the placeholders among its arguments and its opaque."""
    template = Command(ResponseCode.SUCCESS, dict(arguments), b"", _OPAQUE, RESPONSE, remark)
    rest, pieces = encode(template)[_PREFIX.size :].decode(), []
    for placeholder in (*placeholders, str(_OPAQUE)):
        piece, _, rest = rest.partition(placeholder)
        pieces.append(piece)
    return (*pieces, rest)


_FOUND: Final = _pieces({"suggestWhichBrokerId": "0", **_BOUNDS}, GetStatus.FOUND.name, *_BOUNDS.values())
_FIRST, _SECOND, _THIRD, _FOURTH, _LAST = _FOUND
PULL_PIECES: Final = tuple(piece.encode() for piece in _FOUND)
"""The JSON header of a FOUND reply around its next, lowest and highest offset and its opaque."""
QUERY_PIECES: Final = tuple(piece.encode() for piece in _pieces({"offset": _OFFSET}, None, _OFFSET))
"""The JSON header of a reply to a query of an offset, around the offset and its opaque."""
BARE_PIECES: Final = tuple(piece.encode() for piece in _pieces({}, None))
"""The JSON header of a bare success, around its opaque."""


def pull_reply_head(opaque: int, next_begin_offset: int, min_offset: int, max_offset: int, size: int) -> bytes:
    """Returns the start of a FOUND reply's frame, with a JSON header. The caller sends `size` record bytes after it."""
    header = f"{_FIRST}{next_begin_offset}{_SECOND}{min_offset}{_THIRD}{max_offset}{_FOURTH}{opaque}{_LAST}".encode()
    length = len(header)
    return _PREFIX.pack(4 + length + size, length) + header
