"""Replies to sends and pulls, built for speed.

`PutReplies` turns the store's result into a client's reply. `SendReplyFrames` and `pull_reply_head` build the two most
frequent replies directly as frames. The bytes are the same as those of the encoded `Command`, at a third of the cost.
`PeerHosts` caches the host of each connection in the form that records contain.
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
from penstock.store.message_store import MessageStore


def host_text(host: str, port: int) -> str:
    """Returns `ip:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PeerHosts(dict[Connection, str]):
    """`ip:port` of each connection's peer. An entry is computed once and removed when the connection closes."""

    def __missing__(self, connection: Connection) -> str:
        text = self[connection] = host_text(*connection.peer)
        connection.on_close.append(self._remove)
        return text

    def _remove(self, connection: Connection) -> None:
        self.pop(connection, None)


STORED: Final = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}
"""The statuses of a put that stored the message. Clients treat their response codes as a result, not as an error."""
_REFUSED: Final = {
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_MAPEDFILE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGECACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
}


def code_of(status: PutStatus) -> ResponseCode:
    """Returns the response code of a put. A full disk is SERVICE_NOT_AVAILABLE, so that clients try another broker."""
    return STORED.get(status) or _REFUSED.get(status, ResponseCode.SUCCESS)


class PutReplies:
    """Message ids and refusals for one store."""

    def __init__(self, store: MessageStore) -> None:
        self._host = encode_host(store.settings.store_host).hex().upper()
        self._folder = str(store.layout.root)

    def msg_id(self, physical_offset: int) -> str:
        """Returns the offset message id of a record: the store's host and the physical offset, in hex."""
        return f"{self._host}{physical_offset:016X}"

    def msg_ids(self, physical_offsets: Sequence[int]) -> str:
        """Returns the offset message ids of a batch, joined by commas."""
        offsets = struct.pack(f">{len(physical_offsets)}q", *physical_offsets).hex(",", 8).upper()
        return self._host + offsets.replace(",", f",{self._host}")

    def refused(
        self, command: Command, result: PutResult | BatchResult, ext: Mapping[str, str] | None = None
    ) -> Command:
        """Returns the reply to a put that stored nothing. It does not show clients the store's path."""
        return command.reply(code_of(result.status), result.reason.replace(self._folder, "the store"), ext)


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
