"""Frames: the bytes of a command on a connection.

OFFSET  SIZE   DESCRIPTION
0       4      total: the number of bytes after this field
4       1      serialisation of the header: 0 JSON, 1 binary
5       3      header length
8       n      header
…       rest   body

All numbers are big-endian. `encode` and `encode_parts` are pure. A `FrameReader` belongs to one connection and one
thread. It buffers at most one incomplete frame, whose announced length it has checked.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from penstock.errors import BadFrame, BadRequest
from penstock.protocol import binary_header, json_header
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.versions import LANGUAGES, Language

MAX_FRAME: Final = 16_777_216
"""Limit of a frame in bytes; Java's default."""
MAX_HEADER: Final = 1_048_576
"""Limit of a header in bytes: a reply's may have the ids of a batch."""
MAX_REQUEST_HEADER: Final = 262_144
"""Limit of a request's header in bytes, which a server reads before it knows who sends it: enough for 32,767 bytes of
properties with escapes."""
TLS_HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection. No frame starts with it, because its length would exceed the limit."""

_OTHER: Final = Language.OTHER  # each look-up in an enum costs as much as a call
_PREFIX: Final = struct.Struct(">II")
_PREFIX_SIZE: Final = _PREFIX.size
_TOTAL_SIZE: Final = 4
_BINARY: Final = 1 << 24
_HEADER_LENGTH: Final = _BINARY - 1
_LAST_KIND: Final = _BINARY | _HEADER_LENGTH
_HTTP_METHODS: Final = (
    b"GET ",
    b"HEAD",
    b"POST",
    b"PUT ",
    b"PATC",
    b"DELE",
    b"OPTI",
    b"CONN",
    b"TRAC",
    b"PRI ",
    b"HTTP",
)


def encode(command: Command) -> bytes:
    """Returns the frame of a command. Raises BadRequest if the header cannot express the command."""
    return b"".join(encode_parts(command))


def encode_parts(command: Command) -> list[bytes | memoryview]:
    """Returns the frame as one or two parts. The second part is the body, which is not copied.

    Raises BadRequest if the body is not bytes, and for a header that is longer than a `FrameReader` accepts: its peer
    would close the connection, and every other request on it would fail, too.
    """
    head = (binary_header if command.binary else json_header).encode_header(
        command.code, command.language, command.version, command.opaque, command.flag, command.remark, command.ext
    )
    length, longest = len(head), MAX_HEADER if command.flag & RESPONSE else MAX_REQUEST_HEADER
    if length > longest:
        raise BadRequest("the arguments of a command are too long for a header", expected=longest, found=length)
    body = command.body
    if type(body) is not bytes and not isinstance(body, (bytearray, memoryview)):
        raise BadRequest(f"the body of a command must be bytes, not {type(body).__name__}; use text.encode()")
    prefix = _PREFIX.pack(_TOTAL_SIZE + length + len(body), length | _BINARY if command.binary else length)
    return [prefix + head, body] if body else [prefix + head]


class FrameReader:
    """Decodes the bytes of a connection into commands."""

    __slots__ = ("_held", "_limit", "_max_header", "_needed")

    def __init__(self, limit: int = MAX_FRAME, max_header: int = MAX_HEADER) -> None:
        self._limit = limit
        self._max_header = max_header
        self._held = bytearray()
        self._needed = _PREFIX_SIZE

    @property
    def held(self) -> int:
        """The number of buffered bytes, which belong to an incomplete frame."""
        return len(self._held)

    def join(self, data: bytes) -> bytes:
        """Returns `data` behind the bytes that were held; empty if they are still held, as the frame is incomplete.

        The caller feeds what it returns, or the rest of it from the start of a frame on.
        """
        if not self._held:
            return data
        self._held += data
        if len(self._held) < self._needed:
            return b""
        data = bytes(self._held)
        self._held.clear()
        return data

    def feed(self, data: bytes) -> list[Command]:
        """Returns the commands that `data` completes. Raises BadFrame: the caller must close the connection.

        Commands before the bad frame in the same `data` are lost without an answer.
        """
        data = self.join(data)
        if not data:
            return []
        commands: list[Command] = []
        at, end, longest = 0, len(data), self._limit - _TOTAL_SIZE
        self._needed = _PREFIX_SIZE
        while end - at >= _PREFIX_SIZE:
            total, kind = _PREFIX.unpack_from(data, at)
            length = kind & _HEADER_LENGTH
            head_at = at + _PREFIX_SIZE
            body_at = head_at + length
            stop = at + _TOTAL_SIZE + total
            if total > longest or body_at > stop or length > self._max_header or kind > _LAST_KIND:
                self._reject(data[at:head_at])
            if stop > end:
                self._needed = stop - at
                break
            commands.append(_decode(data[head_at:body_at], data[body_at:stop], kind >= _BINARY))
            at = stop
        if at < end:
            self._held += data[at:]
            if end - at >= _TOTAL_SIZE and int.from_bytes(data[at : at + _TOTAL_SIZE], "big") >= self._limit:
                self._reject(data[at : at + _PREFIX_SIZE])
        return commands

    def _reject(self, prefix: bytes) -> NoReturn:
        """Raises BadFrame with the reason why a frame that starts with `prefix` is bad."""
        total = int.from_bytes(prefix[:_TOTAL_SIZE], "big")
        if total + _TOTAL_SIZE > self._limit:
            if prefix[0] == TLS_HANDSHAKE:
                raise BadFrame(
                    "received a TLS handshake on a plain connection; disable TLS in the client or enable it here"
                )
            if prefix.startswith(_HTTP_METHODS):
                raise BadFrame("this port speaks RocketMQ's remoting protocol, not HTTP")
            raise BadFrame(
                "a frame is too long, or the peer is not a RocketMQ client",
                expected=f"at most {self._limit} bytes",
                found=total + _TOTAL_SIZE,
            )
        if prefix[_TOTAL_SIZE] > 1:
            raise BadFrame(
                "a frame's header has an unknown serialisation",
                expected="0 (JSON) or 1 (binary)",
                found=prefix[_TOTAL_SIZE],
            )
        header = int.from_bytes(prefix[5:], "big")
        if header > total - _TOTAL_SIZE:
            raise BadFrame(f"a frame of {total} bytes announces a header of {header}, which does not fit into it")
        raise BadFrame("a frame's header is too long", expected=f"at most {self._max_header} bytes", found=header)


def _decode(head: bytes, body: bytes, binary: bool) -> Command:
    if binary:
        code, language, version, opaque, flag, remark, ext = binary_header.decode_header(head)
        return Command(code, ext, body, opaque, flag, remark, language, version, True)
    header = json_header.decode_header(head)
    language = LANGUAGES.get(header.language, _OTHER)
    return Command(header.code, header.ext, body, header.opaque, header.flag, header.remark, language, header.version)
