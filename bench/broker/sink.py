"""A server that only answers: what the generator reaches with it is the most that it could ever measure.

    python -m bench.broker.sink REQUEST_LENGTH REPLY_LENGTH

prints its port and serves one connection. It counts bytes, not frames, and has its replies ready.
"""

from __future__ import annotations

import socket
import sys

from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import encode

_MOST = 1024
"""Replies in one write."""


def reply_frame(length: int) -> bytes:
    """A reply that says SUCCESS, with the arguments of one to a send and a body of `length`."""
    told = {"msgId": "7F000001" + "0" * 24, "queueId": "0", "queueOffset": "100000", "MSG_REGION": "DefaultRegion"}
    return encode(Command(0, {**told, "TRACE_ON": "true"}, bytes(length), 100_000, RESPONSE))


def main(request_length: int, body_length: int) -> None:
    frame = reply_frame(body_length)
    replies = memoryview(frame * _MOST)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 20)
        held = 0
        while got := connection.recv_into(buffer):
            count, held = divmod(held + got, request_length)
            while count:
                now = min(count, _MOST)
                connection.sendall(replies[: now * len(frame)])
                count -= now


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
