"""The reply to a pull that found messages, as the beginning of a frame: what consumers get more often than all else.

It is what encoding a `Command` with these arguments gives, to the byte, at a third of the cost. The records that follow
it are not copied.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode
from penstock.store.status import GetStatus

_PREFIX: Final = struct.Struct(">II")
_PLACES: Final = {"nextBeginOffset": "<next>", "minOffset": "<min>", "maxOffset": "<max>"}
_OPAQUE: Final = 2_000_000_011
"""What stands for the variable parts in the pattern that is cut to pieces."""


def _pieces() -> list[str]:
    arguments = {"suggestWhichBrokerId": "0", **_PLACES}
    pattern = Command(ResponseCode.SUCCESS, arguments, b"", _OPAQUE, RESPONSE, GetStatus.FOUND.name)
    rest, pieces = encode(pattern)[_PREFIX.size :].decode(), []
    for place in (*_PLACES.values(), str(_OPAQUE)):
        piece, _, rest = rest.partition(place)
        pieces.append(piece)
    return [*pieces, rest]


_FIRST, _SECOND, _THIRD, _FOURTH, _LAST = _pieces()


def found_head(opaque: int, next_begin_offset: int, min_offset: int, max_offset: int, size: int) -> bytes:
    """What comes before `size` bytes of records in a frame with a JSON header."""
    header = f"{_FIRST}{next_begin_offset}{_SECOND}{min_offset}{_THIRD}{max_offset}{_FOURTH}{opaque}{_LAST}".encode()
    length = len(header)
    return _PREFIX.pack(4 + length + size, length) + header
