"""Frames that are served without commands: in order with the others, and within the same limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.loopback import ECHO, Raw, frames, requests, serving, small_limits, until

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import FrameReader, encode
from penstock.remoting.connection import Connection

if TYPE_CHECKING:
    from remoting.conftest import Run

DIRECT = 7
REPLY = bytes(64 << 10)


class DirectFrames:
    """Serves whole frames of the request DIRECT, a few for each call, with a large reply; leaves all others."""

    def __init__(self) -> None:
        self.served: list[int] = []

    def __call__(self, connection: Connection, data: bytes, at: int) -> tuple[int, int, list[bytes]]:
        replies: list[bytes] = []
        while at + 8 <= len(data) and len(replies) < 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            (command,) = FrameReader().feed(data[at:stop])
            if command.code != DIRECT:
                return at, stop, replies
            self.served.append(command.opaque)
            replies.append(encode(command.reply(ResponseCode.SUCCESS, body=REPLY)))
            at = stop
        return at, at, replies


def test_replies_come_in_order_whoever_serves_the_requests(run: Run) -> None:
    async def main() -> None:
        direct = DirectFrames()
        mixed = [Command((ECHO, DIRECT, DIRECT)[number % 3], opaque=number) for number in range(60)]
        async with serving({}, serve_frames=direct) as (_, address), await Raw.open(address) as peer:
            data = frames(mixed)
            peer.send(data[:-5])
            peer.send(data[-5:])
            replies = await peer.replies(60)
            assert [reply.opaque for reply in replies] == list(range(60))
            assert direct.served == [command.opaque for command in mixed if command.code == DIRECT]

    run(main())


def test_a_flood_of_such_frames_waits_until_its_replies_are_read(run: Run) -> None:
    async def main() -> None:
        direct, limits = DirectFrames(), small_limits(high_water=256 << 10)
        options = {"limits": limits, "serve_frames": direct}
        async with serving({}, **options) as (server, address), await Raw.open(address) as flood:
            flood.stop_reading()
            flood.send(frames(requests(2000, DIRECT)))  # 125 MiB of replies
            await until(lambda: server.pool.unsent_bytes > limits.high_water)
            assert len(direct.served) < 2000
            assert server.pool.unsent_bytes < limits.high_water + (1 << 20)
            flood.read_again()
            assert [reply.opaque for reply in await flood.replies(2000)] == list(range(1, 2001))

    run(main())


def test_a_bad_frame_behind_others_still_closes_the_connection(run: Run) -> None:
    async def main() -> None:
        direct = DirectFrames()
        async with serving({}, serve_frames=direct) as (server, address), await Raw.open(address) as peer:
            peer.send(frames([Command(DIRECT, opaque=1), Command(ECHO, opaque=2)]) + b"\x00\x00\x00\x05\x09bad")
            await until(lambda: not server.connections)
            assert direct.served == [1]

    run(main())
