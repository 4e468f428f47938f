"""A closed loop: so many requests are under way at any time, and each reply makes room for the next.

Replies are told apart by their lengths alone; whether they say SUCCESS is seen in the header's first bytes, where both
brokers write the code. One in a thousand is decoded, to be sure that this reads them right.
"""

from __future__ import annotations

import socket
import struct
import time

from bench.broker.frames import Ring
from penstock.protocol.frame import FrameReader

_PREFIX = struct.Struct(">II")
_SUCCESS = b'{"code":0,'
_EVERY = 1000
_READ = 1 << 20


class BadReply(Exception):
    """A sentence about an answer that is not the expected one."""


def closed_loop(connection: socket.socket, ring: Ring, total: int, window: int) -> dict[str, float]:
    """Sends `total` frames of a ring; returns how long it took, and the bytes of the replies' bodies."""
    if len(ring) < window:
        raise ValueError("the ring is shorter than the window")
    buffer = bytearray(4 * _READ)
    view = memoryview(buffer)
    unpack, header_at = _PREFIX.unpack_from, _PREFIX.size
    code_end = header_at + len(_SUCCESS)
    held = done = body_bytes = 0
    started = time.perf_counter()
    sent = min(window, total)
    _send(connection, ring, sent)
    while done < total:
        got = connection.recv_into(view[held:], _READ)
        if not got:
            raise BadReply(f"the broker closed the connection after {done} replies")
        end = held + got
        at = before = 0
        before = done
        while end - at >= code_end:
            length, header = unpack(buffer, at)
            stop = at + 4 + length
            if stop > end:
                if stop - at > len(buffer) - _READ:
                    raise BadReply(f"a reply has {length} bytes")
                break
            if buffer[at + header_at : at + code_end] != _SUCCESS or done % _EVERY == 0:
                check(bytes(view[at:stop]))
            body_bytes += length - 4 - (header & 0xFFFFFF)
            done += 1
            at = stop
        held = end - at
        if held and at:
            buffer[:held] = buffer[at:end]
        more = min(done - before, total - sent)
        if more > 0:
            _send(connection, ring, more)
            sent += more
    return {"seconds": time.perf_counter() - started, "body_bytes": body_bytes, "replies": done}


def _send(connection: socket.socket, ring: Ring, count: int) -> None:
    for piece in ring.take(count):
        connection.sendall(piece)


def check(frame: bytes) -> None:
    """Raises BadReply unless this is one reply that says SUCCESS."""
    (reply,) = FrameReader().feed(frame)
    if not reply.is_response or reply.code != 0:
        raise BadReply(f"the broker answered {reply.code}: {reply.remark}")
