"""The reply to a send that was stored, as a frame: no reply goes out more often.

It is what encoding a `Command` with these arguments gives, to the byte, at a third of the cost.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode

_PREFIX: Final = struct.Struct(">II")
_ID, _QUEUE, _OFFSET, _OPAQUE = "<id>", "<queue>", "<offset>", 2_000_000_011
"""What stands for the variable parts in the pattern that is cut to pieces."""


class SendReplyFrames:
    """Frames with a JSON header; what is the same in all of them is encoded once."""

    def __init__(self, always: Mapping[str, str]) -> None:
        arguments = {"msgId": _ID, "queueId": _QUEUE, "queueOffset": _OFFSET, **always}
        frame = encode(Command(ResponseCode.SUCCESS, arguments, b"", _OPAQUE, RESPONSE))
        self._first, _, rest = frame[_PREFIX.size :].decode().partition(_ID)
        self._second, _, rest = rest.partition(_QUEUE)
        self._third, _, rest = rest.partition(_OFFSET)
        self._fourth, _, self._last = rest.rpartition(str(_OPAQUE))

    def frame(self, opaque: int, msg_id: str, queue_id: int, queue_offset: int) -> bytes:
        """The frame of one reply."""
        header = (
            f"{self._first}{msg_id}{self._second}{queue_id}{self._third}{queue_offset}{self._fourth}{opaque}{self._last}"
        ).encode()
        length = len(header)
        return _PREFIX.pack(4 + length, length) + header
