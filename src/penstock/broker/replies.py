"""Peers in the form in which records hold hosts, made once for each connection.

From the store's answer to a put to the reply that a client gets.

The reply to a send that was stored, as a frame: no reply goes out more often.

It is what encoding a `Command` with these arguments gives, to the byte, at a third of the cost.


The reply to a pull that found messages, as the beginning of a frame: what consumers get more often than all else.

It is what encoding a `Command` with these arguments gives, to the byte, at a third of the cost. The records that follow
it are not copied.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.format.hosts import encode_host
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode
from penstock.remoting.connection import Connection
from penstock.store.message import BatchResult, GetStatus, PutResult, PutStatus
from penstock.store.store import MessageStore


def host_text(host: str, port: int) -> str:
    """`ip:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PeerHosts(dict[Connection, str]):
    """By connection; a connection that closes is forgotten."""

    def __missing__(self, connection: Connection) -> str:
        text = self[connection] = host_text(*connection.peer)
        connection.on_close.append(self._forget)
        return text

    def _forget(self, connection: Connection) -> None:
        self.pop(connection, None)


STORED: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""The message is there; clients take these as a result."""
_REFUSED: Final = {
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPEDFILE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGECACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}


def code_of(status: PutStatus) -> ResponseCode:
    """What a put's status is to a client. A full disk is SERVICE_NOT_AVAILABLE, which clients try elsewhere."""
    return STORED.get(status) or _REFUSED.get(status, ResponseCode.SUCCESS)


class PutReplies:
    """What clients are told of a store's puts."""

    def __init__(self, store: MessageStore) -> None:
        self._host = encode_host(store.settings.store_host).hex().upper()
        self._folder = str(store.layout.root)

    def msg_id(self, physical_offset: int) -> str:
        """The offset id of a record, without taking the host apart each time."""
        return f"{self._host}{physical_offset:016X}"

    def msg_ids(self, physical_offsets: Sequence[int]) -> str:
        """The same for a batch, joined by commas."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", 8).upper()
        return self._host + offsets.replace(",", f",{self._host}")

    def refused(
        self, command: Command, result: PutResult | BatchResult, ext: Mapping[str, str] | None = None
    ) -> Command:
        """The reply to a put of which nothing is stored. Where the store lies is not a stranger's business."""
        return command.reply(code_of(result.status), result.reason.replace(self._folder, "the store"), ext)


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


_PLACES: Final = {"nextBeginOffset": "<next>", "minOffset": "<min>", "maxOffset": "<max>"}
_PULL_OPAQUE: Final = 2_000_000_011
"""What stands for the variable parts in the pattern that is cut to pieces."""


def _pieces() -> list[str]:
    arguments = {"suggestWhichBrokerId": "0", **_PLACES}
    pattern = Command(ResponseCode.SUCCESS, arguments, b"", _PULL_OPAQUE, RESPONSE, GetStatus.FOUND.name)
    rest, pieces = encode(pattern)[_PREFIX.size :].decode(), []
    for place in (*_PLACES.values(), str(_PULL_OPAQUE)):
        piece, _, rest = rest.partition(place)
        pieces.append(piece)
    return [*pieces, rest]


_FIRST, _SECOND, _THIRD, _FOURTH, _LAST = _pieces()


def found_head(opaque: int, next_begin_offset: int, min_offset: int, max_offset: int, size: int) -> bytes:
    """What comes before `size` bytes of records in a frame with a JSON header."""
    header = f"{_FIRST}{next_begin_offset}{_SECOND}{min_offset}{_THIRD}{max_offset}{_FOURTH}{opaque}{_LAST}".encode()
    length = len(header)
    return _PREFIX.pack(4 + length + size, length) + header
