"""Frames: commands as bytes on a connection.

OFFSET  SIZE   DESCRIPTION
0       4      total: the length of everything after this field
4       1      serialisation of the header: 0 JSON, 1 binary
5       3      header length
8       n      header
…       rest   body

`encode` and `encode_parts` are pure. A `FrameReader` belongs to one connection and one thread; it holds at most one
unfinished frame, whose announced length was checked first.
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from penstock.errors import BadFrame, BadRequest
from penstock.protocol import binary_header, json_header
from penstock.protocol.command import Command
from penstock.protocol.versions import language_of

MAX_FRAME: Final = 16_777_216
"""What Java accepts unless told otherwise."""
MAX_HEADER: Final = 1_048_576
"""Properties of 32 767 bytes, each escaped, and room to spare."""
TLS_HANDSHAKE: Final = 0x16
"""The first byte of a TLS client; as a frame's length it would be beyond any limit."""

_PREFIX: Final = struct.Struct(">II")
_PREFIX_SIZE: Final = _PREFIX.size
_TOTAL_SIZE: Final = 4
_BINARY: Final = 1 << 24
_HEADER_LENGTH: Final = _BINARY - 1
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
    """The frame of a command. Raises BadRequest where it cannot be expressed."""
    return b"".join(encode_parts(command))


def encode_parts(command: Command) -> list[bytes | memoryview]:
    """The frame in pieces to be written one after the other; the body is not copied."""
    head = (binary_header if command.binary else json_header).encode_header(
        command.code, command.language, command.version, command.opaque, command.flag, command.remark, command.ext
    )
    length = len(head)
    if length > _HEADER_LENGTH:
        raise BadRequest("the arguments of a command are too long for a header", expected=_HEADER_LENGTH, found=length)
    body = command.body
    prefix = _PREFIX.pack(_TOTAL_SIZE + length + len(body), length | _BINARY if command.binary else length)
    return [prefix + head, body] if body else [prefix + head]


class FrameReader:
    """Turns what arrives on a connection into commands."""

    __slots__ = ("_held", "_limit", "_max_header", "_needed")

    def __init__(self, limit: int = MAX_FRAME, max_header: int = MAX_HEADER) -> None:
        self._limit = limit
        self._max_header = max_header
        self._held = bytearray()
        self._needed = _PREFIX_SIZE

    @property
    def held(self) -> int:
        """How many bytes of an unfinished frame are kept."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Command]:
        """The commands that `data` completes. Raises BadFrame: close the connection then, and drop the reader.

        Commands that stand before the bad frame in the same `data` are lost with it; nobody has answered them.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return []
            data = bytes(self._held)
            self._held.clear()
        commands: list[Command] = []
        at, end = 0, len(data)
        self._needed = _PREFIX_SIZE
        while end - at >= _PREFIX_SIZE:
            total, kind = _PREFIX.unpack_from(data, at)
            head_at = at + _PREFIX_SIZE
            body_at = head_at + (kind & _HEADER_LENGTH)
            stop = at + _TOTAL_SIZE + total
            if stop - at > self._limit or body_at > stop or body_at - head_at > self._max_header or kind >> 24 > 1:
                self._refuse(data[at : at + _PREFIX_SIZE])
            if stop > end:
                self._needed = stop - at
                break
            commands.append(_decode(data[head_at:body_at], data[body_at:stop], kind >= _BINARY))
            at = stop
        if at < end:
            self._held += data[at:]
            if end - at >= _TOTAL_SIZE and int.from_bytes(data[at : at + _TOTAL_SIZE], "big") >= self._limit:
                self._refuse(data[at : at + _PREFIX_SIZE])
        return commands

    def _refuse(self, prefix: bytes) -> NoReturn:
        """Says what is wrong with a frame that starts with `prefix`."""
        total = int.from_bytes(prefix[:_TOTAL_SIZE], "big")
        if total + _TOTAL_SIZE > self._limit:
            if prefix[0] == TLS_HANDSHAKE:
                raise BadFrame(
                    "a TLS handshake came where plain frames are expected; turn TLS off in the client, or on here"
                )
            if prefix.startswith(_HTTP_METHODS):
                raise BadFrame("this port speaks RocketMQ's remoting protocol, not HTTP")
            raise BadFrame(
                "a frame is too long, or this is no RocketMQ client",
                expected=f"at most {self._limit} bytes",
                found=total + _TOTAL_SIZE,
            )
        if prefix[_TOTAL_SIZE] > 1:
            raise BadFrame(
                "a frame's header is serialised in an unknown way",
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
    found = json_header.decode_header(head)
    language = language_of(found.language)
    return Command(found.code, found.ext, body, found.opaque, found.flag, found.remark, language, found.version)
